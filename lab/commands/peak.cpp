// `tessera peak`: the highest arithmetic and memory throughput of this machine.
#include "lab/measure/peak.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cpu/machine/cores.h"
#include "lab/commands/commands.h"
#include "lab/commands/parse.h"
#include "lab/measure/machine/machine_text.h"
#include "lab/terminal/progress.h"
#include "lab/terminal/table.h"
#include "lab/terminal/terminal.h"
#include "lab/terminal/units.h"
#include "tessera/version.h"

namespace tessera::lab {
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
      const std::string line = fmt::format("{}: not measured; {}\n", peak.name, peak.missing);
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
    print(report.dump(2, ' ', true) + "\n");
  } else {
    print(fmt::format("tessera {} on {}\n{}", version(), machine_text(), peak_table(peaks)));
  }
  return 0;
}

}  // namespace

void add_peak(CLI::App& application, Action& action) {
  CLI::App* command = application.add_subcommand(
      "peak", "Measure the highest arithmetic and memory throughput of this machine");
  command->allow_extras();
  auto arguments = std::make_shared<PeakArguments>();
  auto add = [&](const char* option, std::string& value, const char* text, const char* description) {
    command->add_option(option, value, description)->option_text(text)->group("Measuring");
  };
  add("--ceilings", arguments->ceilings, "LIST", "Ceilings to measure, of those named below [all]");
  add("--threads", arguments->threads, "N", "CPU threads, a list; 0: all [1 and all]");
  add("--repetitions", arguments->repetitions, "N", "Measured calls of 0.05 s each; the median counts [9]");
  command->add_flag("--json", arguments->json, "Print one JSON object instead")->group("Output");
  command->footer(
      "fp32_fma     fused multiply-adds in registers, with the widest vectors of this CPU\n"
      "bf16_dot     dot products of bf16 pairs (vdpbf16ps), where the CPU has them\n"
      "bf16_amx     products of bf16 tiles (AMX), where CPU and operating system have them\n"
      "l1_read      reads of a level-1 cache, by each thread of its own\n"
      "l2_read      reads of a level-2 cache, likewise\n"
      "l3_read      reads of the last cache, which the threads share\n"
      "memory_read  reads of a buffer larger than the caches\n\n"
      "Compare a kernel's throughput with these. GB/s and GFLOP/s count powers of ten.\n\n"
      "Examples:\n"
      "  tessera peak\n"
      "  tessera peak --threads 1,2 --json\n"
      "  tessera peak --ceilings memory_read --threads 1..16");
  command->callback([&action, arguments] { action = [arguments] { return run_peak(*arguments); }; });
}

}  // namespace tessera::lab
