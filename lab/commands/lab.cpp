// `tessera lab`: runs the experiments, keeps their rows and draws the report.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lab/commands/commands.h"
#include "lab/commands/options.h"
#include "lab/experiments/experiment.h"
#include "lab/experiments/studies.h"
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

// The options that replace a setting of every experiment, with their help.
struct SettingOption {
  const char* name;
  const char* text;
  const char* description;
};
constexpr std::array<SettingOption, 6> kSettings = {
    {{"--causal", "[yes|no]", "Each query attends to keys up to its own position [by experiment]"},
     {"--dtype", "TYPE", "fp64, fp32, fp16 or bf16 [fp32 on a CPU, fp16 on a GPU]"},
     {"--algorithm", "LIST", "Algorithms to compare [all of the device]"},
     {"--threads", "N", "CPU threads; 0: all [0]"},
     {"--batch", "N", "Batch entries [by experiment]"},
     {"--dropout", "P", "Dropout probability, 0 to below 1 [0]"}}};

struct LabOptions {
  std::vector<std::string> experiments;
  std::string study, device, memory_budget, out;
  std::array<std::string, kSettings.size()> settings;  // values of kSettings; empty: not given
  bool list = false, quick = false, full = false, resume = false;

  [[nodiscard]] Overrides overrides() const {
    Overrides all;
    for (std::size_t i = 0; i < settings.size(); ++i) {
      if (!settings[i].empty()) all.emplace_back(kSettings[i].name, settings[i]);
    }
    return all;
  }
  [[nodiscard]] std::vector<const Study*> studies() const {
    return study.empty() ? std::vector<const Study*>{} : find_studies(split(study, ','));
  }
};

int run_list(const LabOptions& options) {
  const std::vector<const Study*> chosen = options.studies();
  if (options.experiments.empty() && chosen.empty()) {
    print(list_text(experiments()) + "\ntessera lab --list NAME describes one experiment in full.\n");
    return 0;
  }
  std::string text;
  for (const Study* study : chosen) text += describe(*study);
  for (const Experiment* experiment :
       chosen.empty() ? find_experiments(options.experiments) : experiments_of(chosen, options.experiments)) {
    text += (text.empty() ? "" : "\n") + describe(*experiment);
  }
  print(text);
  return 0;
}

// The experiments to measure. One that varies an option given for all of them is an error when it
// was named, and else skipped.
std::vector<const Experiment*> chosen_experiments(const LabOptions& options, Scale scale) {
  const std::vector<const Study*> studies = options.studies();
  std::vector<const Experiment*> chosen = studies.empty() ? find_own_experiments(options.experiments)
                                                          : experiments_of(studies, options.experiments);
  const Overrides overrides = options.overrides();
  std::erase_if(chosen, [&](const Experiment* experiment) {
    const std::string varied = varied_option(*experiment, scale, overrides);
    if (varied.empty()) return false;
    if (!options.experiments.empty()) {
      throw UsageError(
          fmt::format("{}: the experiment {} chooses it itself; leave the option or the experiment out",
                      varied, experiment->name));
    }
    print(fmt::format("{} is skipped, because it chooses {} itself\n", experiment->name, varied));
    return true;
  });
  if (chosen.empty())
    throw UsageError("every experiment chooses one of the given options itself; leave one out");
  return chosen;
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
  if (!options.study.empty() && (options.quick || options.full))
    throw UsageError("--study has its own sizes; leave --quick and --full out");
  if (!options.study.empty()) return Scale::study;
  if (options.quick) return Scale::quick;
  if (options.full) return Scale::full;
  return device.type == DeviceType::cpu ? Scale::normal : Scale::full;
}

// A new directory for each run, so that no run overwrites another.
std::string directory_of(const LabOptions& options) {
  if (options.resume && !options.out.empty() && !std::filesystem::exists(options.out + "/results.jsonl")) {
    throw UsageError(fmt::format(
        "--resume: '{}' has no results.jsonl to continue; leave --resume out to start there", options.out));
  }
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
  if (!options.study.empty()) text += " --study " + options.study;
  if (options.quick) text += " --quick";
  if (options.full) text += " --full";
  if (!options.device.empty()) text += " --device " + options.device;
  if (!options.memory_budget.empty()) text += fmt::format(" --memory-budget '{}'", options.memory_budget);
  if (const Overrides overrides = options.overrides(); !overrides.empty()) text += " " + to_string(overrides);
  return fmt::format("{} --out '{}' --resume", text, directory);
}

// The options that change what is measured, for the rows. --algorithm only selects.
std::string settings_text(const LabOptions& options, std::optional<std::size_t> budget) {
  Overrides overrides = options.overrides();
  std::erase_if(overrides, [](const auto& one) { return one.first == "--algorithm"; });
  if (budget) overrides.emplace_back("--memory-budget", bytes_text(static_cast<double>(*budget)));
  return to_string(overrides);
}

// What a directory must explain: everything that a run with other names could add, and every row.
std::vector<const Experiment*> described(const LabOptions& options, const Results& results) {
  if (options.study.empty()) return find_experiments({});
  std::vector<const Experiment*> all = all_experiments();
  const std::vector<const Experiment*> own = experiments_of(options.studies(), {});
  std::erase_if(all, [&](const Experiment* experiment) {
    return results.experiments().count(experiment->name) == 0 &&
           std::find(own.begin(), own.end(), experiment) == own.end();
  });
  return all;
}

// "study sizes, sequence lengths divided by 4".
std::string sizes_text(Scale scale, Device device) {
  if (scale != Scale::study) return fmt::format("{} sizes", name(scale));
  const std::int64_t factor = study_factor(device);
  if (factor == 1) return "sizes of the study";
  return fmt::format("sizes of the study with every sequence length divided by {}", factor);
}

// Short enough for one line of a terminal, the time left included.
std::string progress_what(const Measurement& measurement) {
  const Problem& problem = measurement.problem;
  if (!measurement.level.empty()) return fmt::format("{} {}", measurement.experiment, measurement.level);
  return fmt::format("{} {}, batch {}, seq {}", measurement.experiment, name(problem.direction),
                     problem.batch, problem.seq);
}

std::string what_runs(const Measurement& measurement) {
  const Problem& problem = measurement.problem;
  if (!measurement.level.empty()) return fmt::format("{}: {}", measurement.experiment, measurement.level);
  std::string text =
      fmt::format("{}: {} {}", measurement.experiment, name(problem.direction), to_string(problem));
  const std::int64_t block_k = measurement.methods.front().block_k;
  if (block_k > 0) text += fmt::format(", {} keys per tile", block_k);
  return text;
}

// "flash2 1.23 ms", "standard out of memory".
std::string outcome(const Row& row) {
  if (row.level && row.status == Status::ok) return significant(row.level->bytes_per_second / 1e9) + " GB/s";
  const std::string who = name(row.method) + (row.method.stage.empty() ? "" : ", " + row.method.stage);
  if (row.status == Status::ok) return fmt::format("{} {} ms", who, significant(row.seconds.median * 1e3));
  return fmt::format("{} {}", who, row.status == Status::out_of_memory ? "out of memory" : name(row.status));
}

int run_lab(const LabOptions& options) {
  if (options.list) return run_list(options);
  const Device device = device_of(options);
  const Scale scale = scale_of(options, device);
  check_overrides(options.overrides(), device);
  const std::vector<const Experiment*> chosen = chosen_experiments(options, scale);
  std::optional<std::size_t> budget;
  if (!options.memory_budget.empty()) budget = parse_bytes("--memory-budget", options.memory_budget);
  const std::string directory = directory_of(options);
  const RunSettings settings{
      .scale = scale, .device = device, .memory_budget = budget, .overrides = options.overrides()};
  const std::vector<Measurement> measurements = measurements_of(chosen, settings);
  Stamp stamp{.scale = name(scale), .settings = settings_text(options, budget)};
  if (scale == Scale::study) stamp.study_factor = study_factor(device);
  Results results(directory, stamp, device, options.resume);
  results.describe(described(options, results));
  print(fmt::format("tessera {} ({}) on {}\n{}, {}, into {}\n\n", version(), commit_text(),
                    machine_text(device), counted(chosen.size(), "experiment"), sizes_text(scale, device),
                    directory));

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
  for (const Study* study : options.studies()) {
    for (const std::string& command : study->commands)
      print(fmt::format("the rest of {} needs PyTorch: {}\n", study->name, command));
  }
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
  command
      ->add_option("--study", options->study,
                   "Repeat a study at its settings: t4, sweeps, l4, tables or paper, or a list [none]")
      ->option_text("NAME")
      ->group("Sizes");
  command->add_flag("--quick", options->quick, "Small sizes: about 3 minutes on two cores")->group("Sizes");
  command->add_flag("--full", options->full, "Large sizes, for a GPU [on a GPU]")->group("Sizes");
  command->add_option("--device", options->device, "cpu, cuda or cuda:N [a GPU if there is one]")
      ->option_text("DEVICE");
  command
      ->add_option("--memory-budget", options->memory_budget,
                   "Calls that need more become out-of-memory rows; 15GiB imitates a T4 [free memory]")
      ->option_text("SIZE");
  for (std::size_t i = 0; i < kSettings.size(); ++i) {
    CLI::Option* option =
        command->add_option(kSettings[i].name, options->settings[i], kSettings[i].description)
            ->option_text(kSettings[i].text)
            ->group("Settings of every experiment");
    if (std::string_view(kSettings[i].name) == "--causal") option->expected(0, 1)->default_str("yes");
  }
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
      "  tessera lab --study t4 --out t4\n"
      "  tessera lab sequence heads --causal --dtype bf16 --threads 1\n"
      "  tessera lab out_of_memory --memory-budget 15GiB --out small");
  command->callback([&action, options] { action = [options] { return run_lab(*options); }; });
}

}  // namespace tessera::lab
