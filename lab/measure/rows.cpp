#include "lab/measure/rows.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lab/measure/fields.h"
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

nlohmann::ordered_json to_json(const Row& row) {
  using Json = nlohmann::ordered_json;
  const Problem& problem = row.problem;
  const bool ok = row.status == Status::ok;
  auto measured = [&](auto value) { return ok ? Json(value) : Json(nullptr); };
  auto planned = [&](auto Plan::* member) { return row.plan ? Json((*row.plan).*member) : Json(nullptr); };
  auto sampled = [&](auto SampledError::* member) {
    return row.error ? Json((*row.error).*member) : Json(nullptr);
  };
  static const std::string kMachine = machine_text();
  const bool on_gpu = problem.device.type == DeviceType::cuda;
  return {{"version", version()},
          {"machine", kMachine},
          {"gpu", on_gpu ? Json(gpu_name(problem.device.index)) : Json(nullptr)},
          {"device", to_string(problem.device)},
          {"algorithm", name(row.method)},
          {"kernel", planned(&Plan::kernel)},
          {"direction", tessera::name(problem.direction)},
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
          {"embedding", problem.heads * problem.dim},
          {"kept_share", kept_share(row)},
          {"requested_block_k", row.method.block_k > 0 ? Json(row.method.block_k) : Json(nullptr)},
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

std::string csv_header() { return csv_header(default_row("bench")); }
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

}  // namespace tessera::lab
