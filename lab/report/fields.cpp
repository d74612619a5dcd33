#include "lab/report/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

struct FieldName {
  const char* field;
  const char* label;
  const char* symbol;
  const char* unit;  // of the value as it stands in the row
  Measure measure;
};

constexpr std::array kFields = {
    FieldName{"q_length", "sequence length N", "N", "tokens", Measure::other},
    FieldName{"k_length", "keys", "keys", "tokens", Measure::other},
    FieldName{"batch", "batch size", "batch", "", Measure::other},
    FieldName{"q_heads", "heads", "heads", "", Measure::other},
    FieldName{"kv_heads", "key/value heads", "kv heads", "", Measure::other},
    FieldName{"qk_dim", "head dimension d", "d", "", Measure::other},
    FieldName{"v_dim", "head dimension of V", "d_v", "", Measure::other},
    FieldName{"embedding", "embedding", "embedding", "", Measure::other},
    FieldName{"block_q", "queries per tile", "block_q", "", Measure::other},
    FieldName{"block_k", "keys per tile", "block_k", "", Measure::other},
    FieldName{"requested_block_k", "keys per tile", "keys per tile", "", Measure::other},
    FieldName{"kept_share", "share of the matrix that is kept", "kept share", "", Measure::other},
    FieldName{"status", "does it fit?", "status", "", Measure::other},
    FieldName{"blocks", "tile (queries × keys)", "tile", "", Measure::other},
    FieldName{"threads", "threads", "threads", "", Measure::other},
    FieldName{"run", "machine", "", "", Measure::other},
    FieldName{"depth", "layers", "layers", "", Measure::other},
    FieldName{"preset", "model", "model", "", Measure::other},
    FieldName{"step", "step", "step", "", Measure::other},
    FieldName{"train_seconds", "time of training", "time", "s", Measure::other},
    FieldName{"loss", "loss on held-out text", "loss", "nats per token", Measure::loss},
    FieldName{"train_loss", "loss in training", "loss", "nats per token", Measure::loss},
    FieldName{"tokens_per_second", "speed", "speed", "tokens/s", Measure::rate},
    FieldName{"peak_bytes", "peak memory", "peak memory", "B", Measure::memory},
    FieldName{"memory_used_bytes", "memory held", "memory", "B", Measure::memory},
    FieldName{"time_saved_percent", "time saved", "time", "%", Measure::saving},
    FieldName{"memory_saved_percent", "peak memory saved", "peak memory", "%", Measure::saving},
    FieldName{"median_ms", "time", "time", "ms", Measure::time},
    FieldName{"min_ms", "shortest time", "shortest time", "ms", Measure::time},
    FieldName{"lower_quartile_ms", "lower quartile of time", "time", "ms", Measure::time},
    FieldName{"upper_quartile_ms", "upper quartile of time", "time", "ms", Measure::time},
    FieldName{"max_ms", "longest time", "longest time", "ms", Measure::time},
    FieldName{"tflops", "rate", "rate", "TFLOP/s", Measure::rate},
    FieldName{"speedup_over_standard", "speed-up over standard", "speed-up", "×", Measure::rate},
    FieldName{"flops", "arithmetic", "arithmetic", "FLOP", Measure::other},
    FieldName{"peak_extra_bytes", "peak extra memory", "memory", "B", Measure::memory},
    FieldName{"planned_workspace_bytes", "planned workspace", "workspace", "B", Measure::memory},
    FieldName{"tensor_bytes", "memory of the tensors", "memory", "B", Measure::memory},
    FieldName{"predicted_traffic_bytes", "memory traffic (predicted)", "predicted traffic", "B",
              Measure::memory},
    FieldName{"measured_traffic_bytes", "memory traffic (measured)", "measured traffic", "B",
              Measure::memory},
    FieldName{"standard_traffic_bytes", "Θ(Nd + N²): standard", "traffic", "B", Measure::memory},
    FieldName{"tile_traffic_bytes", "memory traffic (theory of this tile)", "theoretical traffic", "B",
              Measure::memory},
    FieldName{"bound_traffic_bytes", "Θ(N²d²/M)", "traffic", "B", Measure::memory},
    FieldName{"minimum_traffic_bytes", "lower bound: every tensor once", "traffic", "B", Measure::memory},
    FieldName{"max_error", "largest error against fp64", "error", "", Measure::error},
    FieldName{"rms_error", "RMS error against fp64", "error", "", Measure::error},
};

struct Scale {
  const char* unit;
  double in_base;  // how many of the row's unit one of these is
};
constexpr std::array kBytes = {Scale{"TiB", 1024.0 * 1024 * 1024 * 1024}, Scale{"GiB", 1024.0 * 1024 * 1024},
                               Scale{"MiB", 1024.0 * 1024}, Scale{"KiB", 1024.0}, Scale{"B", 1}};
constexpr std::array kDecimalBytes = {Scale{"TB", 1e12}, Scale{"GB", 1e9}, Scale{"MB", 1e6}, Scale{"KB", 1e3},
                                      Scale{"B", 1}};
constexpr std::array kTimes = {Scale{"s", 1e3}, Scale{"ms", 1}, Scale{"µs", 1e-3}};
constexpr std::array kRates = {Scale{"TFLOP/s", 1}, Scale{"GFLOP/s", 1e-3}, Scale{"MFLOP/s", 1e-6}};
constexpr std::array kCounts = {Scale{"TFLOP", 1e12}, Scale{"GFLOP", 1e9}, Scale{"MFLOP", 1e6},
                                Scale{"FLOP", 1}};

// Below this share of a unit the next smaller one reads better.
constexpr double kTooSmall = 0.5;

// The unit asked for, or the largest one that keeps the values readable.
Scale choose(std::span<const Scale> scales, const std::string& unit, double largest) {
  bool allowed = unit.empty();
  for (const Scale& scale : scales) {
    allowed = allowed || unit == scale.unit;
    if (allowed && largest >= scale.in_base * (unit.empty() ? 1 : kTooSmall)) return scale;
  }
  return scales.back();
}

std::span<const Scale> scales_of(const std::string& base, const std::string& unit) {
  if (base == "B")
    return unit == "GB" || unit == "MB" || unit == "KB" ? std::span<const Scale>(kDecimalBytes) : kBytes;
  if (base == "ms") return kTimes;
  if (base == "TFLOP/s") return kRates;
  if (base == "FLOP") return kCounts;
  return {};
}

}  // namespace

Quantity quantity_of(const std::string& field, const std::string& unit, double largest) {
  Quantity quantity{field, field, field, unit};
  for (char& c : quantity.label) c = c == '_' ? ' ' : c;
  for (const FieldName& known : kFields) {
    if (field != known.field) continue;
    quantity.label = known.label;
    quantity.symbol = known.symbol;
    quantity.measure = known.measure;
    const std::span<const Scale> scales = scales_of(known.unit, unit);
    if (unit.empty() && known.measure == Measure::time)
      quantity.unit = known.unit;  // times are compared in ms
    if (scales.empty()) {
      if (unit.empty()) quantity.unit = known.unit;
    } else {
      const Scale scale = choose(scales, quantity.unit, largest);
      quantity.unit = scale.unit;
      quantity.scale = 1 / scale.in_base;
    }
  }
  return quantity;
}

bool is_measurement(const std::string& field) {
  for (const FieldName& known : kFields) {
    if (field == known.field) return known.measure != Measure::other || field == "flops";
  }
  return false;
}

bool is_setting(const std::string& field) {
  const bool known =
      std::any_of(kFields.begin(), kFields.end(), [&](const FieldName& one) { return field == one.field; });
  return known && !is_measurement(field) && field != "status";
}

std::string axis_label(const Quantity& quantity) {
  return quantity.unit.empty() ? quantity.label : fmt::format("{}, {}", quantity.label, quantity.unit);
}

std::string quantity_text(const Quantity& quantity, double scaled) {
  if (quantity.measure == Measure::memory && quantity.unit.find('i') != std::string::npos) {
    return bytes_text(scaled / quantity.scale);
  }
  if (quantity.measure == Measure::error) return error_text(scaled);
  if (quantity.measure == Measure::time) return duration_text(scaled / quantity.scale / 1e3);
  const std::string number = significant(scaled);
  if (quantity.unit.empty()) return number;
  return number + (quantity.unit == "×" ? "" : " ") + quantity.unit;
}

json field_value(const json& row, const std::string& field) {
  if (row.contains(field)) return row[field];
  auto both = [&](const char* a, const char* b) {
    return row.contains(a) && row.contains(b) && row[a].is_number() && row[b].is_number();
  };
  if (field == "embedding" && both("q_heads", "qk_dim")) {
    return row["q_heads"].get<double>() * row["qk_dim"].get<double>();
  }
  if (field == "blocks" && both("block_q", "block_k")) {
    return fmt::format("{} × {}", value_text(row["block_q"]), value_text(row["block_k"]));
  }
  return nullptr;
}

std::optional<double> number_of(const json& row, const std::string& field) {
  const json value = field_value(row, field);
  if (!value.is_number()) return std::nullopt;
  return value.get<double>();
}

std::string value_text(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_null()) return "–";
  if (!value.is_number()) return value.dump();
  const double number = value.get<double>();
  if (number == std::floor(number) && std::fabs(number) < 1e15) return fmt::format("{:.0f}", number);
  return significant(number);
}

std::string named_value_text(const json& row, const std::string& field) {
  const json value = field_value(row, field);
  const std::string text = value_text(value);
  if (value.is_string()) return text;
  return fmt::format("{} {}", quantity_of(field, "", 0).symbol, text);
}

}  // namespace tessera::lab::report
