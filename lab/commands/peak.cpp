// `tessera peak`: what this machine can do at best.
#include "lab/commands/peak.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "cpu/machine/cores.h"
#include "cpu/machine/cpu_info.h"
#include "cpu/machine/parallel_for.h"
#include "cpu/machine/thread_pool.h"
#include "lab/commands/commands.h"
#include "lab/commands/parse.h"
#include "lab/measure/machine/ceilings.h"
#include "lab/measure/machine/machine_text.h"
#include "lab/terminal/progress.h"
#include "lab/terminal/table.h"
#include "lab/terminal/terminal.h"
#include "lab/terminal/units.h"
#include "tessera/version.h"

namespace tessera::lab {
namespace {

// Keeps results alive, so that no loop is optimised away.
std::atomic<std::uint64_t> kept_results;

// Calls run(task) for each task on `threads` threads, as kernels do: a thread that is held up for a moment
// takes fewer tasks.
template <typename Run>
void run_tasks(int threads, std::int64_t tasks, const Run& run) {
  cpu::parallel_for(cpu::ThreadPool::instance(), threads, tasks, [&](std::int64_t task, int) {
    kept_results.fetch_xor(static_cast<std::uint64_t>(run(task)), std::memory_order_relaxed);
  });
}

// Work that can be had in any amount; `units` FLOPs or bytes are one task.
struct Load {
  Peak peak;
  double units = 0;
  std::function<void(std::int64_t tasks)> run;
};

// How many tasks keep the threads busy for so long.
std::int64_t tasks_for(const Load& load, double seconds) {
  using Clock = std::chrono::steady_clock;
  for (std::int64_t tasks = load.peak.threads;; tasks *= 2) {
    const Clock::time_point begin = Clock::now();
    load.run(tasks);
    if (std::chrono::duration<double>(Clock::now() - begin).count() >= seconds) return tasks;
  }
}

Load arithmetic_load(const Arithmetic& arithmetic, int threads) {
  constexpr std::int64_t kSteps = 20'000;  // per task: some 0.1 ms
  Load load{{arithmetic.name, arithmetic.instructions, "GFLOP/s", threads}, 0, {}};
  if (arithmetic.run == nullptr) {
    load.peak.missing = arithmetic.missing;
    return load;
  }
  load.units = arithmetic.flops_per_step * kSteps;
  load.run = [run = arithmetic.run, threads](std::int64_t tasks) {
    run_tasks(threads, tasks, [run](std::int64_t) { return run(kSteps); });
  };
  return load;
}

// Memory that no cache holds.
class Buffer {
 public:
  Buffer() : blocks_(blocks()), data_(blocks_ * kReadBlock) {
    std::fill(data_.begin(), data_.end(), std::byte{1});
  }

  [[nodiscard]] const std::byte* block(std::int64_t task) const {
    return data_.data() + static_cast<std::size_t>(task) % blocks_ * kReadBlock;
  }

 private:
  static std::size_t blocks() {
    constexpr std::size_t kLeast = std::size_t{256} << 20, kTimesLastLevel = 4;
    return std::max(kLeast, kTimesLastLevel * cpu::caches().l3) / kReadBlock;
  }

  std::size_t blocks_;
  std::vector<std::byte> data_;
};

Load reading_load(const Buffer& buffer, int threads) {
  const Reading reading = reading_ceiling();
  Load load{{"memory_read", reading.instructions, "GB/s", threads}, static_cast<double>(kReadBlock), {}};
  load.run = [&buffer, run = reading.run, threads](std::int64_t tasks) {
    run_tasks(threads, tasks, [&](std::int64_t task) { return run(buffer.block(task)); });
  };
  return load;
}

// Measures the loads in turn and adds their peaks to `peaks`.
bool measure_loads(std::vector<Load> loads, const PeakOptions& options, std::vector<Peak>& peaks,
                   const std::function<bool(double)>& proceed) {
  std::vector<Contender> contenders;
  std::vector<double> units;
  for (Load& load : loads) {
    if (!load.run) continue;
    if (!proceed(0)) return false;
    const std::int64_t tasks = tasks_for(load, options.call_seconds);
    units.push_back(load.units * static_cast<double>(tasks));
    contenders.push_back({[&load, tasks] { load.run(tasks); }});
  }
  const Schedule schedule{.warmup = 0, .repetitions = options.repetitions};
  const bool finished = measure(contenders, schedule, proceed);
  std::size_t measured = 0;
  for (Load& load : loads) {
    if (load.run) {
      std::vector<double> rates;
      for (const double seconds : contenders[measured].seconds) {
        rates.push_back(units[measured] / seconds / 1e9);
      }
      load.peak.rate = summarise(std::move(rates));
      ++measured;
    }
    peaks.push_back(std::move(load.peak));
  }
  return finished;
}

}  // namespace

std::vector<Peak> measure_peaks(const PeakOptions& options,
                                const std::function<bool(double share)>& proceed) {
  const Buffer buffer;
  const std::vector<Arithmetic> kinds = arithmetic_ceilings();
  auto wanted = [&](const std::string& name) {
    return std::find(options.ceilings.begin(), options.ceilings.end(), name) != options.ceilings.end();
  };
  std::vector<Peak> peaks;
  const auto rounds = static_cast<double>(options.threads.size());
  double done = 0;
  for (const int threads : options.threads) {
    std::vector<Load> loads;
    for (const Arithmetic& kind : kinds) loads.push_back(arithmetic_load(kind, threads));
    loads.push_back(reading_load(buffer, threads));
    std::erase_if(loads, [&](const Load& load) { return !wanted(load.peak.name); });
    auto overall = [&](double share) { return proceed((done + share) / rounds); };
    if (!measure_loads(std::move(loads), options, peaks, overall)) break;
    done += 1;
  }
  return peaks;
}

nlohmann::ordered_json to_json(const Peak& peak) {
  nlohmann::ordered_json json = {{"name", peak.name},
                                 {"instructions", peak.instructions},
                                 {"threads", peak.threads},
                                 {"unit", peak.unit}};
  const bool measured = peak.missing.empty();
  auto set = [&](const char* key, double value) {
    json[key] = measured ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  set("median", peak.rate.median);
  set("lower_quartile", peak.rate.lower_quartile);
  set("upper_quartile", peak.rate.upper_quartile);
  set("min", peak.rate.lowest);
  set("max", peak.rate.highest);
  json["missing"] = measured ? nlohmann::ordered_json() : nlohmann::ordered_json(peak.missing);
  return json;
}

namespace {

struct PeakArguments {
  std::string threads, ceilings, repetitions = "9";
  bool json = false;
};

PeakOptions peak_options(const PeakArguments& arguments) {
  PeakOptions options;
  options.repetitions = static_cast<int>(parse_integer("--repetitions", arguments.repetitions, {1, 10'000}));
  const int cores = cpu::available_cores();
  if (arguments.threads.empty()) {
    options.threads = {1, cores};
  } else {
    for (const std::int64_t threads : parse_integers("--threads", arguments.threads, {0, 4096})) {
      options.threads.push_back(threads == 0 ? cores : static_cast<int>(threads));
    }
  }
  if (!arguments.ceilings.empty()) {
    options.ceilings.clear();
    for (const std::size_t index : parse_choices("--ceilings", arguments.ceilings, kCeilings)) {
      options.ceilings.push_back(kCeilings[index]);
    }
  }
  std::sort(options.threads.begin(), options.threads.end());
  options.threads.erase(std::unique(options.threads.begin(), options.threads.end()), options.threads.end());
  return options;
}

std::string peak_table(const std::vector<Peak>& peaks) {
  std::vector<Column> columns = {{"ceiling", 0, Justify::left},
                                 {"instructions", 0, Justify::left},
                                 {"threads"},
                                 {"median"},
                                 {"unit", 0, Justify::left},
                                 {"spread"}};
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> missing;
  for (const Peak& peak : peaks) {
    if (peak.missing.empty()) {
      rows.push_back({peak.name, peak.instructions, fmt::format("{}", peak.threads),
                      significant(peak.rate.median), peak.unit,
                      fmt::format("{:.1f}%", 100 * peak.rate.spread())});
    } else {
      const std::string line = fmt::format("no {}: {}\n", peak.name, peak.missing);
      if (std::find(missing.begin(), missing.end(), line) == missing.end()) missing.push_back(line);
    }
  }
  return render(std::move(columns), rows) + fmt::format("{}", fmt::join(missing, ""));
}

int run_peak(const PeakArguments& arguments) {
  const PeakOptions options = peak_options(arguments);
  Progress progress;
  const std::vector<Peak> peaks = measure_peaks(options, [&](double share) {
    progress.show("measuring the ceilings of this machine", share);
    return interrupted() == 0;
  });
  progress.clear();
  if (interrupted() != 0) return report_interrupt("tessera peak");
  if (arguments.json) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const Peak& peak : peaks) all.push_back(to_json(peak));
    const nlohmann::ordered_json report = {{"version", version()},
                                           {"machine", machine_text()},
                                           {"repetitions", options.repetitions},
                                           {"peaks", all}};
    print(report.dump(2) + "\n");
  } else {
    print(fmt::format("tessera {} on {}\n{}", version(), machine_text(), peak_table(peaks)));
  }
  return 0;
}

}  // namespace

void add_peak(CLI::App& application, Action& action) {
  CLI::App* command =
      application.add_subcommand("peak", "Measure what this machine can do at best: arithmetic, memory");
  command->allow_extras();
  auto arguments = std::make_shared<PeakArguments>();
  auto add = [&](const char* option, std::string& value, const char* text, const char* description) {
    command->add_option(option, value, description)->option_text(text)->group("Measuring");
  };
  add("--ceilings", arguments->ceilings, "LIST", "Some of those named below [all]");
  add("--threads", arguments->threads, "N", "CPU threads, a list; 0: all [1 and all]");
  add("--repetitions", arguments->repetitions, "N", "Measured calls of 0.05 s each; the median counts [9]");
  command->add_flag("--json", arguments->json, "Print one JSON object instead")->group("Output");
  command->footer(
      "fp32_fma     fused multiply-adds in registers, with the widest vectors of this CPU\n"
      "bf16_dot     dot products of bf16 pairs (vdpbf16ps), where the CPU has them\n"
      "bf16_amx     products of bf16 tiles (AMX), where CPU and operating system have them\n"
      "memory_read  reading a buffer that no cache holds\n\n"
      "A kernel is as good as its share of these. GB/s and GFLOP/s count powers of ten.\n\n"
      "Examples:\n"
      "  tessera peak\n"
      "  tessera peak --threads 1,2 --json\n"
      "  tessera peak --ceilings memory_read --threads 1..16");
  command->callback([&action, arguments] { action = [arguments] { return run_peak(*arguments); }; });
}

}  // namespace tessera::lab
