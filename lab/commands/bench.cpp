// `tessera bench`: measures algorithms over a sweep of problems.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lab/commands/commands.h"
#include "lab/commands/options.h"
#include "lab/measure/machine/machine_text.h"
#include "lab/measure/measure.h"
#include "lab/measure/row_table.h"
#include "lab/problem/operation.h"
#include "lab/terminal/progress.h"
#include "lab/terminal/terminal.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"
#include "tessera/version.h"

namespace tessera::lab {
namespace {

constexpr double kAtol = 1e-2;  // of --check, as in the study of a minimal CUDA kernel

struct BenchOptions {
  ProblemOptions problem;
  std::string warmup = "1", repetitions, min_time, memory_budget, seed = "0", check_rows = "16";
  std::string json, csv, atol;
  bool check = false;
};

MeasureOptions measure_options(const BenchOptions& options, Device device) {
  MeasureOptions result;
  result.repetitions.warmup = static_cast<int>(parse_integer("--warmup", options.warmup, {0, 10'000}));
  if (!options.repetitions.empty() && !options.min_time.empty()) {
    throw UsageError("--repetitions and --min-time cannot be combined; give one of them");
  }
  if (!options.repetitions.empty()) {
    result.repetitions.repetitions =
        static_cast<int>(parse_integer("--repetitions", options.repetitions, {1, 1'000'000}));
  }
  if (!options.min_time.empty()) {
    result.repetitions.min_time = parse_number("--min-time", options.min_time, {0, 86'400});
  }
  result.seed = static_cast<std::uint64_t>(parse_integer("--seed", options.seed, {0, std::int64_t{1} << 62}));
  result.check_rows = static_cast<int>(parse_integer("--check-rows", options.check_rows, {0, 1'000'000}));
  if (!options.atol.empty() && !options.check) throw UsageError("--atol: needs --check");
  if (options.check) {
    result.atol = options.atol.empty() ? kAtol : parse_number("--atol", options.atol, {0, 1e30});
  }
  // A tenth stays free, because the system only estimates the available memory.
  result.memory_budget = options.memory_budget.empty()
                             ? available_memory(device) / 10 * 9
                             : parse_bytes("--memory-budget", options.memory_budget);
  return result;
}

// Where finished rows go: to the files first, so that they are complete whatever happens to the
// terminal.
class Output {
 public:
  Output(const BenchOptions& options, const std::vector<Problem>& problems,
         const std::vector<Method>& methods)
      : device_(problems.front().device),
        table_(problems, methods, options.check),
        shows_table_(options.json != "-" && options.csv != "-") {
    if (options.json == "-" && options.csv == "-") {
      throw UsageError("--csv '-': standard output already carries --json; write one of them to a file");
    }
    if (!options.json.empty()) files_.emplace_back("--json", options.json, RowFile::Format::json_lines);
    if (!options.csv.empty()) files_.emplace_back("--csv", options.csv, RowFile::Format::csv);
  }

  void begin() const {
    if (shows_table_)
      print(fmt::format("tessera {} on {}\n{}", version(), machine_text(device_), table_.header()));
  }

  void write(const Row& row) {
    for (RowFile& file : files_) file.write(row);
    if (shows_table_) print(table_.row(row, use_color(stdout)));
  }

 private:
  Device device_;
  std::vector<RowFile> files_;
  RowTable table_;
  bool shows_table_;
};

// Counts what became of the rows, for the exit code.
struct Tally {
  int results = 0;  // measured, or found not to fit: both are answers
  int invalid = 0;
  int compared = 0, differing = 0;  // by --check
  std::string first_reason{};

  void add(const Row& row) {
    if (row.status == Status::ok || row.status == Status::out_of_memory) ++results;
    if (row.status == Status::invalid) ++invalid;
    if (first_reason.empty()) first_reason = row.reason;
    if (!row.comparison || !row.comparison->largest) return;
    ++compared;
    if (!row.comparison->agrees()) ++differing;
  }

  int exit_code(const std::optional<double>& atol) const {
    if (atol && differing > 0) {
      fmt::print(stderr, "tessera bench: {} of {} differ by more than --atol {}\n", differing,
                 counted(static_cast<std::size_t>(compared), "compared row"), *atol);
      return 1;
    }
    if (atol && compared == 0 && results > 0) {
      throw UsageError(
          "--check: nothing to compare; name two algorithms, or compare a forward output with fp64");
    }
    if (results > 0) return 0;
    if (invalid > 0) throw UsageError(first_reason);
    fmt::print(stderr, "tessera bench: no row could be measured\n");
    return 1;
  }
};

int run_bench(const BenchOptions& options) {
  const std::vector<Problem> problems = parse_problems(options.problem);
  const MeasureOptions measuring = measure_options(options, problems.front().device);
  std::vector<Algorithm> algorithms = parse_algorithms(options.problem);
  if (algorithms.empty()) algorithms = algorithms_here(problems);
  const std::vector<Method> methods = methods_of(algorithms);
  // One invalid problem is a wrong argument; among several it is a row.
  if (std::equal(problems.begin() + 1, problems.end(), problems.begin(), same_but_direction)) {
    (void)Operation(problems.front());
  }
  Output output(options, problems, methods);
  output.begin();

  double total = 0, done = 0;
  auto expected = [&](const Problem& problem) {
    return expected_seconds(problem, methods.size(), measuring.repetitions);
  };
  for (const Problem& problem : problems) total += expected(problem);
  Tally tally;
  Progress progress;
  for (const Problem& problem : problems) {
    const std::string what = fmt::format("{} {}", name(problem.direction), to_string(problem));
    auto proceed = [&](double share) {
      progress.show(what, (done + share * expected(problem)) / total);
      return interrupted() == 0;
    };
    const auto rows = measure(problem, methods, measuring, proceed);
    progress.clear();
    if (!rows) return report_interrupt("tessera bench");
    for (const Row& row : *rows) {
      output.write(row);
      tally.add(row);
    }
    if (interrupted() != 0) return report_interrupt("tessera bench");
    done += expected(problem);
  }
  return tally.exit_code(measuring.atol);
}

}  // namespace

void add_bench(CLI::App& application, Action& action) {
  CLI::App* command = application.add_subcommand(
      "bench", "Measure algorithms: time, TFLOP/s, memory, error; sweeps over lists");
  command->allow_extras();
  auto options = std::make_shared<BenchOptions>();
  add_problem_options(*command, options->problem, "all of the device");
  auto add = [&](const char* option, std::string& value, const char* text, const char* description,
                 const char* group) {
    command->add_option(option, value, description)->option_text(text)->group(group);
  };
  constexpr const char* kMeasuring = "Measuring";
  add("--warmup", options->warmup, "N", "Calls before the first measured one [1]", kMeasuring);
  add("--repetitions", options->repetitions, "N", "Measured calls [by time, see --min-time]", kMeasuring);
  add("--min-time", options->min_time, "SECONDS", "Measure for this long, and at least 5 calls [0.3]",
      kMeasuring);
  add("--memory-budget", options->memory_budget, "SIZE",
      "Calls that need more become out-of-memory rows, e.g. 16GiB [90% of the free memory]", kMeasuring);
  add("--check-rows", options->check_rows, "N", "Output rows compared with fp64 (forward); 0: none [16]",
      kMeasuring);
  add("--seed", options->seed, "N", "Seed of the random data [0]", kMeasuring);
  command
      ->add_flag("--check", options->check,
                 "Compare outputs and gradients with the first algorithm's; exit 1 when some differ [no]")
      ->group(kMeasuring);
  add("--atol", options->atol, "X", "How far --check lets numbers differ [0.01]", kMeasuring);
  constexpr const char* kOutput = "Output";
  add("--json", options->json, "FILE", "Also write rows as JSON Lines; - is standard output", kOutput);
  add("--csv", options->csv, "FILE", "Also write rows as CSV; - is standard output", kOutput);
  command->footer(
      "Lists make a sweep over every combination: 256,512 or a range 256..4096 (doubling), 64..256+64\n"
      "(adding), 1..27*3 (multiplying); 4k is 4096; --causal no,yes; repeat --window to sweep over windows.\n"
      "Without --algorithm the command measures every algorithm of the device. It interleaves their calls, "
      "so\n"
      "that all of them meet the same conditions. On a GPU, CUDA events time each call after the L2 cache "
      "was\n"
      "emptied. TFLOP/s follow FlashAttention's convention: 2 * pairs * (dim + v-dim) forward and 2.5 times\n"
      "that backward, for the pairs that the mask keeps (causal: half of all). Each finished row is printed\n"
      "and flushed to the files.\n\n"
      "Examples:\n"
      "  tessera bench --seq 512..4096 --heads 8 --dim 64 --causal no,yes\n"
      "  tessera bench --algorithm standard,flash2 --seq 1k,2k --direction forward,backward --csv rows.csv\n"
      "  tessera bench --algorithm standard,flash2,minimal --seq 512 --direction both --check --atol 1e-3\n"
      "  tessera bench --batch 1,8 --seq 8192 --memory-budget 4GiB --repetitions 3\n"
      "  tessera bench --device cuda --dtype bf16 --seq 1k..16k --heads 16 --dim 128 --causal no,yes\n"
      "  tessera bench --seq 2048 --block-mask none,local:2,bigbird:1,1,2 --block-size 64 --json -");
  command->callback([&action, options] { action = [options] { return run_bench(*options); }; });
}

}  // namespace tessera::lab
