#include "lab/report/figure/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "lab/measure/fields.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

struct UnitPrefix {
  const char* unit;
  double in_base;  // how many of the row's unit one of these is
};
constexpr std::array kBytes = {UnitPrefix{"TiB", 1024.0 * 1024 * 1024 * 1024},
                               UnitPrefix{"GiB", 1024.0 * 1024 * 1024}, UnitPrefix{"MiB", 1024.0 * 1024},
                               UnitPrefix{"KiB", 1024.0}, UnitPrefix{"B", 1}};
constexpr std::array kDecimalBytes = {UnitPrefix{"TB", 1e12}, UnitPrefix{"GB", 1e9}, UnitPrefix{"MB", 1e6},
                                      UnitPrefix{"KB", 1e3}, UnitPrefix{"B", 1}};
constexpr std::array kTimes = {UnitPrefix{"s", 1e3}, UnitPrefix{"ms", 1}, UnitPrefix{"µs", 1e-3}};
constexpr std::array kRates = {UnitPrefix{"TFLOP/s", 1}, UnitPrefix{"GFLOP/s", 1e-3},
                               UnitPrefix{"MFLOP/s", 1e-6}};
constexpr std::array kCounts = {UnitPrefix{"TFLOP", 1e12}, UnitPrefix{"GFLOP", 1e9}, UnitPrefix{"MFLOP", 1e6},
                                UnitPrefix{"FLOP", 1}};

// Below this share of a unit the next smaller one reads better.
constexpr double kTooSmall = 0.5;

// The requested unit, or the largest one that keeps the values readable.
UnitPrefix choose(std::span<const UnitPrefix> prefixes, const std::string& unit, double largest) {
  bool allowed = unit.empty();
  for (const UnitPrefix& prefix : prefixes) {
    allowed = allowed || unit == prefix.unit;
    if (allowed && largest >= prefix.in_base * (unit.empty() ? 1 : kTooSmall)) return prefix;
  }
  return prefixes.back();
}

std::span<const UnitPrefix> prefixes_of(const std::string& base, const std::string& unit) {
  if (base == "B")
    return unit == "GB" || unit == "MB" || unit == "KB" ? std::span<const UnitPrefix>(kDecimalBytes) : kBytes;
  if (base == "ms") return kTimes;
  if (base == "TFLOP/s") return kRates;
  if (base == "FLOP") return kCounts;
  return {};
}

}  // namespace

Quantity quantity_of(const std::string& field, const std::string& unit, double largest) {
  const Field* known = find_field(field);
  if (known == nullptr) {
    std::string label = field;
    std::replace(label.begin(), label.end(), '_', ' ');
    return {.field = field, .label = label, .symbol = label, .unit = unit};
  }
  Quantity quantity{field, known->label, known->symbol, unit, 1, known->measure};
  const std::span<const UnitPrefix> prefixes = prefixes_of(known->unit, unit);
  // Times are compared in ms.
  if (unit.empty() && (prefixes.empty() || known->measure == Measure::time)) quantity.unit = known->unit;
  if (!prefixes.empty()) {
    const UnitPrefix prefix = choose(prefixes, quantity.unit, largest);
    quantity.unit = prefix.unit;
    quantity.scale = 1 / prefix.in_base;
  }
  return quantity;
}

bool is_measurement(const std::string& field) {
  const Field* known = find_field(field);
  return known != nullptr && known->role == Role::result && field != "status";
}

bool is_setting(const std::string& field) {
  const Field* known = find_field(field);
  return known != nullptr && (known->role == Role::key || known->role == Role::setting);
}

std::string axis_label(const Quantity& quantity) {
  return quantity.unit.empty() ? quantity.label : fmt::format("{}, {}", quantity.label, quantity.unit);
}

std::string quantity_text(const Quantity& quantity, double scaled) {
  if (quantity.measure == Measure::memory && quantity.unit.find('i') != std::string::npos) {
    return bytes_text(scaled / quantity.scale);
  }
  if (quantity.measure == Measure::error) return error_text(scaled);
  if (quantity.measure == Measure::time) {
    std::string text = duration_text(scaled / quantity.scale / 1e3);
    if (text.ends_with(" us")) text.replace(text.size() - 2, 1, "\u00b5");
    return text;
  }
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
  const std::string symbol = quantity_of(field, "", 0).symbol;
  return symbol.size() <= 3 ? fmt::format("{} = {}", symbol, text) : fmt::format("{} {}", symbol, text);
}

}  // namespace tessera::lab::report
