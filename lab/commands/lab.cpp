// `tessera lab`: runs the experiments, keeps their rows and draws the report.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lab/commands/commands.h"
#include "lab/commands/options.h"
#include "lab/experiments/experiment.h"
#include "lab/measure/machine/machine_text.h"
#include "lab/measure/results.h"
#include "lab/measure/run.h"
#include "lab/report/report.h"
#include "lab/terminal/progress.h"
#include "lab/terminal/table.h"
#include "lab/terminal/terminal.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"
#include "tessera/version.h"

namespace tessera::lab {
namespace {

constexpr int kInterrupted = 130;

struct LabOptions {
  std::vector<std::string> experiments;
  std::string device, memory_budget, out;
  bool list = false, quick = false, full = false, resume = false;
};

int run_list(const LabOptions& options) {
  if (options.experiments.empty()) {
    print(list_text(experiments()) + "\ntessera lab --list NAME describes one experiment in full.\n");
    return 0;
  }
  std::string text;
  for (const Experiment* experiment : find_experiments(options.experiments)) {
    text += (text.empty() ? "" : "\n") + describe(*experiment);
  }
  print(text);
  return 0;
}

// The requested device, which must exist; by default a GPU if there is one, else the CPU.
Device device_of(const LabOptions& options) {
  const std::vector<DeviceInfo> here = devices();
  std::vector<std::string> names;
  for (const DeviceInfo& info : here) names.push_back(to_string(info.device));
  if (options.device.empty()) return (here.size() > 1 ? here[1] : here.front()).device;
  const Device asked = parse_device("--device", options.device);
  if (std::find(names.begin(), names.end(), to_string(asked)) != names.end()) return asked;
  throw UsageError(fmt::format("--device '{}': not usable here; this machine and this build have {}",
                               options.device, fmt::join(names, ", ")));
}

Scale scale_of(const LabOptions& options, Device device) {
  if (options.quick && options.full)
    throw UsageError("--quick and --full cannot be combined; give one of them");
  if (options.quick) return Scale::quick;
  if (options.full) return Scale::full;
  return device.type == DeviceType::cpu ? Scale::normal : Scale::full;
}

// A new directory for each run, so that no run overwrites another.
std::string directory_of(const LabOptions& options) {
  if (!options.out.empty()) return options.out;
  if (options.resume) throw UsageError("--resume: needs --out DIR, the directory to continue");
  std::string stamp = date_text();
  std::replace(stamp.begin(), stamp.end(), ':', '-');
  return "lab-results/" + stamp;
}

// The command that continues a run.
std::string resume_command(const LabOptions& options, const std::string& directory) {
  std::string text = "tessera lab";
  for (const std::string& name : options.experiments) text += " " + name;
  if (options.quick) text += " --quick";
  if (options.full) text += " --full";
  if (!options.device.empty()) text += " --device " + options.device;
  if (!options.memory_budget.empty()) text += fmt::format(" --memory-budget '{}'", options.memory_budget);
  return fmt::format("{} --out '{}' --resume", text, directory);
}

// Short enough for one line of a terminal, the time left included.
std::string progress_what(const Measurement& measurement) {
  const Problem& problem = measurement.problem;
  return fmt::format("{} {}, batch {}, seq {}", measurement.experiment, name(problem.direction),
                     problem.batch, problem.seq);
}

std::string what_runs(const Measurement& measurement) {
  const Problem& problem = measurement.problem;
  std::string text =
      fmt::format("{}: {} {}", measurement.experiment, name(problem.direction), to_string(problem));
  const std::int64_t block_k = measurement.methods.front().block_k;
  if (block_k > 0) text += fmt::format(", {} keys per tile", block_k);
  return text;
}

// "flash2 1.23 ms", "standard out of memory".
std::string outcome(const Row& row) {
  const std::string who = name(row.method);
  if (row.status == Status::ok) return fmt::format("{} {} ms", who, significant(row.seconds.median * 1e3));
  return fmt::format("{} {}", who, row.status == Status::out_of_memory ? "out of memory" : name(row.status));
}

int run_lab(const LabOptions& options) {
  if (options.list) return run_list(options);
  const std::vector<const Experiment*> chosen = find_own_experiments(options.experiments);
  const Device device = device_of(options);
  const Scale scale = scale_of(options, device);
  std::optional<std::size_t> budget;
  if (!options.memory_budget.empty()) budget = parse_bytes("--memory-budget", options.memory_budget);
  const std::string directory = directory_of(options);
  const std::vector<Measurement> measurements = measurements_of(chosen, scale, device, budget);
  Results results(directory, {.scale = name(scale)}, device, options.resume);
  // All of them: a directory that is continued with other names still explains every row.
  results.describe(find_experiments({}));
  print(fmt::format("tessera {} ({}) on {}\n{}, {} sizes, into {}\n\n", version(), commit_text(),
                    machine_text(device), counted(chosen.size(), "experiment"), name(scale), directory));

  const auto start = std::chrono::steady_clock::now();
  Progress progress;
  Listener listener;
  listener.proceed = [&](const Measurement& measurement, double share) {
    progress.show(progress_what(measurement), share);
    return interrupted() == 0;
  };
  listener.finished = [&](const Measurement& measurement, const std::vector<Row>& rows) {
    progress.clear();
    std::vector<std::string> outcomes;
    for (const Row& row : rows) outcomes.push_back(outcome(row));
    print(wrap(fmt::format("{}: {}", what_runs(measurement), fmt::join(outcomes, ", ")), line_width(), 4) +
          "\n");
  };
  const RunTally tally = run_all(measurements, results, listener);
  progress.clear();

  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  print(fmt::format("\n{} measured in {}{}; {} and results.csv hold {}\n", counted(tally.measured, "row"),
                    duration_text(seconds), tally.kept > 0 ? fmt::format(", {} kept", tally.kept) : "",
                    results.path(), counted(results.rows(), "row")));
  if (results.rows() > 0) write_report({directory}, directory + "/report.html");
  if (tally.stopped) {
    report_interrupt("tessera lab");
    fmt::print(stderr, "the finished rows are kept; continue with\n  {}\n",
               resume_command(options, directory));
    return kInterrupted;
  }
  if (tally.failed == 0) return 0;
  fmt::print(stderr, "tessera lab: {} failed; the first reason: {}\n", counted(tally.failed, "row"),
             tally.first_failure);
  return 1;
}

}  // namespace

void add_lab(CLI::App& application, Action& action) {
  CLI::App* command = application.add_subcommand(
      "lab", "Run the experiments of the FlashAttention studies and draw their figures");
  command->allow_extras();
  auto options = std::make_shared<LabOptions>();
  command->add_option("experiment", options->experiments, "Experiments to run, by name [all]")
      ->option_text("NAME...");
  command->add_flag("--list", options->list, "List the experiments, or describe those named, and exit");
  command->add_flag("--quick", options->quick, "Small sizes: about 3 minutes on two cores")->group("Sizes");
  command->add_flag("--full", options->full, "The sizes of the studies, for a GPU [on a GPU]")
      ->group("Sizes");
  command->add_option("--device", options->device, "cpu, cuda or cuda:N [a GPU if there is one]")
      ->option_text("DEVICE");
  command
      ->add_option("--memory-budget", options->memory_budget,
                   "Calls that need more become out-of-memory rows; 15GiB imitates a T4 [free memory]")
      ->option_text("SIZE");
  command->add_option("--out", options->out, "Directory for the results [lab-results/DATE]")
      ->option_text("DIR")
      ->group("Output");
  command->add_flag("--resume", options->resume, "Continue the run in --out; finished measurements are kept")
      ->group("Output");
  command->footer(
      "Writes DIR/results.jsonl (one row per line, flushed after each measurement), DIR/results.csv (the "
      "same\n"
      "rows), DIR/experiments.json (the figures) and DIR/report.html (the page of tessera report). Ctrl-C "
      "keeps\n"
      "the finished rows and draws them; --resume continues the run. Points that do not fit are recorded as "
      "out\n"
      "of memory, and the sweep continues.\n\n"
      "Examples:\n"
      "  tessera lab --list\n"
      "  tessera lab --quick --out my-results\n"
      "  tessera lab sequence causal --device cuda:0 --full --out gpu\n"
      "  tessera lab out_of_memory --memory-budget 15GiB --out t4");
  command->callback([&action, options] { action = [options] { return run_lab(*options); }; });
}

}  // namespace tessera::lab
