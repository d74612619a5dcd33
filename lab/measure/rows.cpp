#include "lab/measure/rows.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "lab/commit.h"
#include "lab/measure/fields.h"
#include "lab/measure/machine/gpu_timer.h"
#include "lab/measure/machine/machine_text.h"
#include "lab/measure/machine/surroundings.h"
#include "lab/measure/read_results.h"
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

nlohmann::ordered_json verdict(const Comparison& comparison) {
  if (!comparison.largest) return nullptr;
  return comparison.agrees() ? "agrees" : "differs";
}

// Visible pairs as a share of all.
nlohmann::ordered_json kept_share(const Row& row) {
  const Problem& p = row.problem;
  const double all = static_cast<double>(p.batch) * static_cast<double>(p.heads) *
                     static_cast<double>(p.seq) * static_cast<double>(keys(p));
  if (!row.plan || all <= 0) return nullptr;
  return row.plan->visible_pairs / all;
}

std::string traffic_note(const Row& row) {
  if (!row.traffic_note.empty()) return row.traffic_note;
  if (row.problem.device.type == DeviceType::cpu) return "not measured: the lab reads no counters of CPUs";
  return row.status == Status::ok ? "not measured: only experiments that show it count it"
                                  : "not measured: there was no call";
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

std::string commit_text() { return TESSERA_COMMIT; }

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

nlohmann::ordered_json to_json(const Row& row, const std::string& experiment, const Stamp& stamp,
                               const std::string& date) {
  using Json = nlohmann::ordered_json;
  const Problem& problem = row.problem;
  const bool ok = row.status == Status::ok;
  auto measured = [&](auto value) { return ok ? Json(value) : Json(nullptr); };
  auto planned = [&](auto Plan::* member) { return row.plan ? Json((*row.plan).*member) : Json(nullptr); };
  auto sampled = [&](auto SampledError::* member) {
    return row.error ? Json((*row.error).*member) : Json(nullptr);
  };
  auto known = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  auto text = [](const std::string& value) { return value.empty() ? Json(nullptr) : Json(value); };
  auto compared = [&](auto&& value) { return row.comparison ? Json(value(*row.comparison)) : Json(nullptr); };
  auto theory = [&](auto Theory::* member) {
    return row.theory ? Json((*row.theory).*member) : Json(nullptr);
  };
  static const std::string kMachine = machine_text();
  const Surroundings& around = surroundings(problem.device);
  const bool on_gpu = problem.device.type == DeviceType::cuda;
  return {{"schema", kSchema},
          {"commit", stamp.commit},
          {"experiment", experiment},
          {"date", date},
          {"scale", stamp.scale},
          {"study_factor", known(stamp.study_factor)},
          {"settings", stamp.settings},
          {"version", version()},
          {"machine", kMachine},
          {"gpu", on_gpu ? Json(gpu_name(problem.device.index)) : Json(nullptr)},
          {"device", to_string(problem.device)},
          {"driver", text(around.driver)},
          {"cuda", text(around.cuda)},
          {"libraries", text(around.libraries)},
          {"governor", text(around.governor)},
          {"usable_cpus", around.usable_cpus},
          {"load_average", known(load_average())},
          {"algorithm", name(row.method)},
          {"kernel", planned(&Plan::kernel)},
          {"stage", text(row.method.stage)},
          {"level", row.level ? Json(row.level->name) : Json(nullptr)},
          {"direction", name(problem.direction)},
          {"dtype", tessera::name(problem.dtype)},
          {"batch", problem.batch},
          {"q_length", problem.seq},
          {"k_length", keys(problem)},
          {"q_heads", problem.heads},
          {"kv_heads", kv_heads(problem)},
          {"qk_dim", problem.dim},
          {"v_dim", value_dim(problem)},
          {"mask", mask_text(problem)},
          {"visible", problem.visible},
          {"bias", problem.bias},
          {"alibi", problem.alibi},
          {"softcap", problem.softcap},
          {"dropout", problem.dropout},
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
          {"host_ms", measured(row.host_seconds.value_or(row.seconds.median) * 1e3)},
          {"sm_clock_mhz", known(row.sm_clock_mhz)},
          {"flops", planned(&Plan::flops)},
          {"executed_flops", known(row.executed_flops)},
          {"visible_pairs", planned(&Plan::visible_pairs)},
          {"tflops", row.plan ? measured(row.tflops()) : Json(nullptr)},
          {"speedup_over_standard", known(row.speedup)},
          {"tensor_bytes", row.tensor_bytes},
          {"planned_workspace_bytes", planned(&Plan::workspace_bytes)},
          {"peak_extra_bytes", measured(row.peak_extra_bytes)},
          {"peak_bytes", measured(row.tensor_bytes + row.peak_extra_bytes)},
          {"minimum_traffic_bytes", planned(&Plan::minimum_bytes)},
          {"predicted_traffic_bytes", planned(&Plan::traffic_bytes)},
          {"standard_traffic_bytes", planned(&Plan::standard_traffic_bytes)},
          {"sampled_rows", sampled(&SampledError::rows)},
          {"max_error", sampled(&SampledError::largest)},
          {"rms_error", sampled(&SampledError::root_mean_square)},
          {"rms_reference", sampled(&SampledError::reference_magnitude)},
          {"max_difference", compared([&](const Comparison& c) { return known(c.largest); })},
          {"compared_with", compared([&](const Comparison& c) { return text(c.with); })},
          {"atol", compared([](const Comparison& c) { return Json(c.atol); })},
          {"verdict", compared([](const Comparison& c) { return verdict(c); })},
          {"embedding", problem.heads * problem.dim},
          {"kept_share", kept_share(row)},
          {"requested_block_k", row.method.block_k > 0 ? Json(row.method.block_k) : Json(nullptr)},
          {"memory_budget_bytes", known(row.memory_budget)},
          {"level_bytes", row.level ? Json(row.level->bytes) : Json(nullptr)},
          {"bandwidth_gbs", row.level && ok ? Json(row.level->bytes_per_second / 1e9) : Json(nullptr)},
          {"tile_traffic_bytes", theory(&Theory::tile_bytes)},
          {"bound_traffic_bytes", theory(&Theory::bound_bytes)},
          {"bound_memory_bytes", theory(&Theory::bound_memory_bytes)},
          {"measured_traffic_bytes", known(row.measured_traffic)},
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
  if (format_ == Format::csv) write_line(csv_header(default_row("bench")));
}

void RowFile::write(const Row& row) {
  const nlohmann::ordered_json fields = to_json(row, kBench, {.scale = kBench}, date_text());
  write_line(format_ == Format::csv ? to_csv(fields) : fields.dump(-1, ' ', true));
}

void RowFile::write_line(const std::string& line) {
  const std::string text = line + "\n";
  const bool written = std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size();
  if (!written || std::fflush(file_.get()) != 0) {
    throw OutputError(fmt::format("cannot write {} '{}': {}", option_, path_, std::strerror(errno)));
  }
}

}  // namespace tessera::lab
