#include "lab/measure/run.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "cpu/machine/cores.h"
#include "lab/commands/parse.h"
#include "lab/experiments/studies.h"
#include "lab/measure/machine/machine_text.h"
#include "lab/measure/peak.h"

namespace tessera::lab {
namespace {

Repetitions repetitions_at(Scale scale, int repetitions) {
  Repetitions result{.warmup = 1, .repetitions = repetitions};
  switch (scale) {
    case Scale::quick: result.min_time = 0.1; break;
    case Scale::normal:
    case Scale::study: result.min_time = 0.2; break;
    case Scale::full: break;
  }
  return result;
}

// The free memory less a tenth, because the system only estimates it; or the budget, if that is
// less.
std::size_t usable_memory(const Measurement& measurement) {
  const std::size_t free = available_memory(measurement.problem.device) / 10 * 9;
  return measurement.memory_budget ? std::min(*measurement.memory_budget, free) : free;
}

// Divides the lengths of a problem.
void shorten(Problem& problem, std::int64_t factor) {
  for (std::int64_t* length : {&problem.seq, &problem.seq_k, &problem.block_size}) {
    if (*length > 0) *length = std::max<std::int64_t>(1, *length / factor);
  }
}

// The methods of `problems` for its algorithms: one list for each forced tile.
std::vector<std::vector<Method>> method_lists(const Problems& problems,
                                              const std::vector<Algorithm>& algorithms) {
  std::vector<std::int64_t> tiles = problems.block_k;
  if (tiles.empty()) tiles = {0};
  std::vector<std::vector<Method>> lists;
  for (const std::int64_t block_k : tiles) {
    std::vector<Method>& list = lists.emplace_back();
    for (const Algorithm algorithm : algorithms) {
      Method& method = list.emplace_back(problems.method);
      method.algorithm = algorithm;
      method.block_k = block_k;
    }
  }
  return lists;
}

// The levels of memory and the ceilings (lab/measure/peak.h) that read them.
constexpr std::array<std::pair<const char*, std::string_view>, 4> kLevels = {
    {{"L1", "l1_read"}, {"L2", "l2_read"}, {"L3", "l3_read"}, {"memory", "memory_read"}}};

std::vector<Measurement> levels_of(const Experiment& experiment, const RunSettings& settings) {
  std::vector<Measurement> all;
  Problem nothing{.batch = 0, .seq = 0, .heads = 0, .dim = 0};
  nothing.threads = cpu::available_cores();
  for (const auto& [name, value] : settings.overrides) {
    if (name == "--threads" && value != "0") nothing.threads = parse_integer(name, value, {});
  }
  for (const auto& [level, ceiling] : kLevels) {
    all.push_back({.experiment = experiment.name,
                   .problem = nothing,
                   .methods = {{.label = "read"}},
                   .repetitions = {.repetitions = 9},
                   .level = level});
  }
  return all;
}

std::optional<std::vector<Row>> read_level(const Measurement& measurement, const Proceed& proceed) {
  const auto* const known = std::find_if(kLevels.begin(), kLevels.end(),
                                         [&](const auto& one) { return one.first == measurement.level; });
  const PeakOptions options{.threads = {static_cast<int>(measurement.problem.threads)},
                            .ceilings = {known->second},
                            .repetitions = measurement.repetitions.repetitions};
  bool stopped = false;
  const std::vector<Peak> peaks = measure_peaks(options, [&](double share) {
    stopped = !proceed(share);
    return !stopped;
  });
  if (stopped || peaks.empty()) return {};
  const Peak& peak = peaks.front();
  Row row = row_before(measurement, measurement.methods.front());
  row.level = MemoryLevel{measurement.level, peak.bytes, peak.rate.median * 1e9};
  // As times: of reading a gigabyte.
  row.seconds = {
      peak.rate.count,       1 / peak.rate.median, 1 / peak.rate.upper_quartile, 1 / peak.rate.lower_quartile,
      1 / peak.rate.highest, 1 / peak.rate.lowest};
  return std::vector<Row>{row};
}

}  // namespace

std::vector<Measurement> measurements_of(const std::vector<const Experiment*>& chosen,
                                         const RunSettings& settings) {
  const Device device = settings.device;
  const Scale scale = settings.scale;
  const std::int64_t factor = scale == Scale::study ? study_factor(device) : 1;
  std::vector<Measurement> all;
  for (const Experiment* experiment : chosen) {
    const Scaled<std::string>& budgets = experiment->memory_budget;
    const std::string& own = factor > 1 ? budgets.normal : budgets.at(scale);
    std::optional<std::size_t> budget = settings.memory_budget;
    if (!budget && !own.empty()) budget = parse_bytes("memory budget of " + experiment->name, own);
    if (experiment->levels && device.type == DeviceType::cpu) {
      for (Measurement& one : levels_of(*experiment, settings)) all.push_back(std::move(one));
    }
    const bool counted = shows(*experiment, "measured_traffic_bytes");
    for (const Problems& problems : experiment->problems) {
      if (problems.only_on && *problems.only_on != device.type) continue;
      for (const BenchText& sweep : problems.sweeps.at(scale)) {
        const SweptProblems swept = sweep_of(problems, sweep, device, settings.overrides);
        const auto lists = method_lists(problems, swept.algorithms);
        for (Problem problem : swept.problems) {
          shorten(problem, factor);
          for (const std::vector<Method>& methods : lists) {
            all.push_back({.experiment = experiment->name,
                           .problem = problem,
                           .methods = methods,
                           .repetitions = repetitions_at(scale, experiment->repetitions),
                           .memory_budget = budget,
                           .count_traffic = counted});
          }
        }
      }
    }
  }
  return all;
}

Row row_before(const Measurement& measurement, const Method& method) {
  Row row{.problem = measurement.problem, .method = method, .memory_budget = measurement.memory_budget};
  if (!measurement.level.empty()) row.level = MemoryLevel{.name = measurement.level};
  return row;
}

std::optional<std::vector<Row>> run(const Measurement& measurement, const Proceed& proceed) {
  if (!measurement.level.empty()) return read_level(measurement, proceed);
  const MeasureOptions options{.repetitions = measurement.repetitions,
                               .memory_budget = usable_memory(measurement),
                               .count_traffic = measurement.count_traffic};
  auto rows = measure(measurement.problem, measurement.methods, options, proceed);
  if (!rows) return {};
  for (Row& row : *rows) {
    row.memory_budget = measurement.memory_budget;
    if (!row.method.label.empty()) row.speedup.reset();  // Results compares it with the row of `standard`
  }
  return rows;
}

RunTally run_all(const std::vector<Measurement>& measurements, Results& results, const Listener& listener) {
  RunTally tally;
  std::vector<Measurement> todo;
  double total = 0, done = 0;
  auto expected = [](const Measurement& one) {
    return expected_seconds(one.problem, one.methods.size(), one.repetitions);
  };
  for (Measurement one : measurements) {
    tally.kept += std::erase_if(one.methods, [&](const Method& method) {
      return results.has(row_before(one, method), one.experiment);
    });
    if (one.methods.empty()) continue;
    total += expected(one);
    todo.push_back(std::move(one));
  }
  for (const Measurement& one : todo) {
    auto proceed = [&](double share) {
      return !listener.proceed || listener.proceed(one, (done + share * expected(one)) / total);
    };
    const auto rows = proceed(0) ? run(one, proceed) : std::nullopt;
    if (!rows) {
      tally.stopped = true;
      return tally;
    }
    for (const Row& row : *rows) {
      results.write(row, one.experiment);
      ++tally.measured;
      if (row.status != Status::failed && row.status != Status::invalid) continue;
      if (tally.failed++ == 0) tally.first_failure = row.reason;
    }
    if (listener.finished) listener.finished(one, *rows);
    done += expected(one);
  }
  return tally;
}

}  // namespace tessera::lab
