#include "lab/measure/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lab/measure/machine/gpu_timer.h"
#include "lab/measure/machine/machine_text.h"
#include "lab/terminal/terminal.h"
#include "lab/terminal/units.h"
#include "tessera/version.h"

namespace tessera::lab {
namespace {

std::string csv_cell(const nlohmann::ordered_json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

// Visible pairs as a share of all.
nlohmann::ordered_json kept_share(const Row& row) {
  const Point& p = row.point;
  const double all = static_cast<double>(p.batch) * static_cast<double>(p.heads) *
                     static_cast<double>(p.seq) * static_cast<double>(keys(p));
  if (!row.plan || all <= 0) return nullptr;
  return row.plan->visible_pairs / all;
}

std::string traffic_note(const Row& row) {
  if (!row.traffic_note.empty()) return row.traffic_note;
  if (row.device.type == DeviceType::cpu) return "not measured: no counters of the CPU are read";
  return row.status == Status::ok ? "not measured: only experiments of the lab that show it count it"
                                  : "not measured: the call was not made";
}

}  // namespace

const char* name(Status status) {
  switch (status) {
    case Status::ok: return "ok";
    case Status::out_of_memory: return "out_of_memory";
    case Status::unsupported: return "unsupported";
    case Status::invalid: return "invalid";
    case Status::failed: break;
  }
  return "failed";
}

nlohmann::ordered_json to_json(const Row& row) {
  using Json = nlohmann::ordered_json;
  const Point& point = row.point;
  const bool ok = row.status == Status::ok;
  auto measured = [&](auto value) { return ok ? Json(value) : Json(nullptr); };
  auto planned = [&](auto Plan::*member) { return row.plan ? Json((*row.plan).*member) : Json(nullptr); };
  auto sampled = [&](auto SampledError::*member) {
    return row.error ? Json((*row.error).*member) : Json(nullptr);
  };
  static const std::string kMachine = machine_text();
  const bool on_gpu = row.device.type == DeviceType::cuda;
  return {{"version", version()},
          {"machine", kMachine},
          {"gpu", on_gpu ? Json(gpu_name(row.device.index)) : Json(nullptr)},
          {"device", to_string(row.device)},
          {"algorithm", row.label.empty() ? tessera::name(row.algorithm) : row.label},
          {"kernel", planned(&Plan::kernel)},
          {"direction", tessera::name(row.direction)},
          {"dtype", tessera::name(point.dtype)},
          {"batch", point.batch},
          {"q_length", point.seq},
          {"k_length", keys(point)},
          {"q_heads", point.heads},
          {"kv_heads", kv_heads(point)},
          {"qk_dim", point.dim},
          {"v_dim", value_dim(point)},
          {"mask", mask_text(point)},
          {"bias", point.bias},
          {"alibi", point.alibi},
          {"softcap", point.softcap},
          {"dropout", point.dropout},
          {"seed", row.seed},
          {"threads", planned(&Plan::threads)},
          {"block_q", planned(&Plan::block_q)},
          {"block_k", planned(&Plan::block_k)},
          {"status", name(row.status)},
          {"reason", ok ? Json(nullptr) : Json(row.reason)},
          {"warmup", row.warmup},
          {"repetitions", measured(row.seconds.count)},
          {"median_ms", measured(row.seconds.median * 1e3)},
          {"lower_quartile_ms", measured(row.seconds.lower_quartile * 1e3)},
          {"upper_quartile_ms", measured(row.seconds.upper_quartile * 1e3)},
          {"min_ms", measured(row.seconds.lowest * 1e3)},
          {"max_ms", measured(row.seconds.highest * 1e3)},
          {"sm_clock_mhz", row.sm_clock_mhz ? Json(*row.sm_clock_mhz) : Json(nullptr)},
          {"flops", planned(&Plan::flops)},
          {"visible_pairs", planned(&Plan::visible_pairs)},
          {"tflops", measured(row.tflops())},
          {"speedup_over_standard", row.speedup ? Json(*row.speedup) : Json(nullptr)},
          {"tensor_bytes", row.tensor_bytes},
          {"planned_workspace_bytes", planned(&Plan::workspace_bytes)},
          {"peak_extra_bytes", measured(row.peak_extra_bytes)},
          {"minimum_traffic_bytes", planned(&Plan::minimum_bytes)},
          {"predicted_traffic_bytes", planned(&Plan::traffic_bytes)},
          {"standard_traffic_bytes", planned(&Plan::standard_traffic_bytes)},
          {"sampled_rows", sampled(&SampledError::rows)},
          {"max_error", sampled(&SampledError::largest)},
          {"rms_error", sampled(&SampledError::root_mean_square)},
          {"rms_reference", sampled(&SampledError::reference_magnitude)},
          {"embedding", point.heads * point.dim},
          {"kept_share", kept_share(row)},
          {"requested_block_k", row.requested_block_k > 0 ? Json(row.requested_block_k) : Json(nullptr)},
          {"memory_budget_bytes", row.memory_budget ? Json(*row.memory_budget) : Json(nullptr)},
          {"tile_traffic_bytes", row.theory ? Json(row.theory->tile_bytes) : Json(nullptr)},
          {"bound_traffic_bytes", row.theory ? Json(row.theory->bound_bytes) : Json(nullptr)},
          {"measured_traffic_bytes", row.measured_traffic ? Json(*row.measured_traffic) : Json(nullptr)},
          {"measured_traffic_note", traffic_note(row)}};
}

std::string csv_header(const nlohmann::ordered_json& fields) {
  std::string line;
  for (const auto& [key, value] : fields.items()) line += (line.empty() ? "" : ",") + key;
  return line;
}

std::string to_csv(const nlohmann::ordered_json& fields) {
  std::string line;
  bool first = true;
  for (const auto& value : fields) {
    line += (first ? "" : ",") + csv_cell(value);
    first = false;
  }
  return line;
}

std::string csv_header() { return csv_header(to_json(Row{})); }
std::string to_csv(const Row& row) { return to_csv(to_json(row)); }

void RowFile::Close::operator()(std::FILE* file) const {
  if (file != stdout) std::fclose(file);
}

RowFile::RowFile(const std::string& option, const std::string& path, Format format)
    : option_(option),
      path_(path),
      format_(format),
      file_(path == "-" ? stdout : std::fopen(path.c_str(), "w")) {
  if (!file_) {
    throw UsageError(fmt::format("{} '{}': cannot be written: {}", option, path, std::strerror(errno)));
  }
  if (format_ == Format::csv) write_line(csv_header());
}

void RowFile::write(const Row& row) {
  write_line(format_ == Format::csv ? to_csv(row) : to_json(row).dump());
}

void RowFile::write_line(const std::string& line) {
  const std::string text = line + "\n";
  const bool written = std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size();
  if (!written || std::fflush(file_.get()) != 0) {
    throw OutputError(fmt::format("cannot write {} '{}': {}", option_, path_, std::strerror(errno)));
  }
}

RowTable::RowTable(const Sweep& sweep, const std::vector<Algorithm>& algorithms) : table_({}) {
  std::vector<std::string> shared;
  const Point& first = sweep.points.front();
  for (const Property& property : properties()) {
    const std::string same = property.value(first);
    auto all = [&](auto&& holds) { return std::all_of(sweep.points.begin(), sweep.points.end(), holds); };
    if (all(property.implied)) continue;
    if (all([&](const Point& point) { return property.value(point) == same; })) {
      shared.push_back(fmt::format("{} {}", property.name, same));
    } else {
      varying_.push_back(property);
    }
  }
  directions_vary_ = sweep.directions.size() > 1;
  if (!directions_vary_) shared.emplace_back(tessera::name(sweep.directions.front()));
  caption_ = fmt::format("{}, on {}", fmt::join(shared, ", "), to_string(sweep.device));
  with_speedup_ = algorithms.size() > 1 &&
                  std::find(algorithms.begin(), algorithms.end(), Algorithm::standard) != algorithms.end();
  build_table(sweep, algorithms);
  for (bool* dispensable : {&with_traffic_, &with_spread_}) {
    if (table_.width() <= kWidestLine) break;
    *dispensable = false;
    build_table(sweep, algorithms);
  }
}

void RowTable::build_table(const Sweep& sweep, const std::vector<Algorithm>& algorithms) {
  std::vector<Column> columns;
  for (const Property& property : varying_) {
    const bool numbers =
        std::isdigit(static_cast<unsigned char>(property.value(sweep.points.front())[0])) != 0;
    columns.push_back({property.name, 0, numbers ? Justify::right : Justify::left});
  }
  if (directions_vary_) columns.push_back({"direction", 8, Justify::left});
  columns.push_back({"algorithm", 0, Justify::left});
  columns.push_back({"median ms", 9});
  if (with_spread_) columns.push_back({"spread", 6});
  columns.push_back({"TFLOP/s", 8});
  columns.push_back({"extra mem", 9});
  if (with_traffic_) columns.push_back({"traffic", 9});
  columns.push_back({"max error", 9});
  if (with_speedup_) columns.push_back({"vs standard", 11});
  table_ = Table(std::move(columns));
  for (const Point& point : sweep.points) {
    for (const Algorithm algorithm : algorithms) {
      table_.fit(labels({.point = point, .algorithm = algorithm}));
    }
  }
}

std::vector<std::string> RowTable::labels(const Row& row) const {
  std::vector<std::string> cells;
  for (const Property& property : varying_) cells.push_back(property.value(row.point));
  if (directions_vary_) cells.emplace_back(tessera::name(row.direction));
  cells.emplace_back(tessera::name(row.algorithm));
  return cells;
}

std::string RowTable::header() const { return wrap(caption_, kWidestLine, 0) + "\n\n" + table_.header(); }

std::string RowTable::row(const Row& row, bool color) const {
  std::vector<std::string> cells = labels(row);
  if (row.status != Status::ok) {
    const bool memory = row.status == Status::out_of_memory;
    const std::string text = fmt::format("{}: {}", memory ? "out of memory" : name(row.status), row.reason);
    const std::string wrapped = wrap(text, kWidestLine, table_.offset(cells.size()));
    cells.push_back(colored(wrapped, memory ? Color::yellow : Color::red, color));
    return table_.row(cells);
  }
  cells.push_back(significant(row.seconds.median * 1e3, 4));
  if (with_spread_) cells.push_back(fmt::format("{:.1f}%", row.seconds.spread() * 100));
  cells.push_back(significant(row.tflops()));
  cells.push_back(bytes_text(static_cast<double>(row.peak_extra_bytes)));
  if (with_traffic_) cells.push_back(row.plan ? bytes_text(row.plan->traffic_bytes) : "");
  cells.push_back(row.error ? error_text(row.error->largest) : "-");
  if (with_speedup_) cells.push_back(row.speedup ? fmt::format("{:.2f}x", *row.speedup) : "-");
  return table_.row(cells);
}

}  // namespace tessera::lab
