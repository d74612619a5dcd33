#include "lab/measure/run.h"

#include <algorithm>

#include "lab/commands/parse.h"
#include "lab/measure/machine/machine_text.h"
#include "lab/problem/operation.h"
#include "lab/problem/theory.h"

namespace tessera::lab {
namespace {

Repetitions repetitions_at(Scale scale, int repetitions) {
  Repetitions result{.warmup = 1, .repetitions = repetitions};
  switch (scale) {
    case Scale::quick: result.min_time = 0.1; break;
    case Scale::normal: result.min_time = 0.2; break;
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

// For rows of the library's tiled kernels.
void add_theory(Row& row) {
  if (!row.plan || row.plan->algorithm == Algorithm::standard || !row.method.baseline.empty()) return;
  const std::int64_t block_k = row.method.block_k > 0 ? row.method.block_k : row.plan->block_k;
  row.theory = theory_of(Operation(row.problem), row.problem.direction, row.plan->block_q, block_k);
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

}  // namespace

std::vector<Measurement> measurements_of(const std::vector<const Experiment*>& chosen, Scale scale,
                                         Device device, std::optional<std::size_t> memory_budget) {
  std::vector<Measurement> all;
  for (const Experiment* experiment : chosen) {
    const std::string& own = experiment->memory_budget.at(scale);
    std::optional<std::size_t> budget = memory_budget;
    if (!budget && !own.empty()) budget = parse_bytes("memory budget of " + experiment->name, own);
    const bool counted = shows(*experiment, "measured_traffic_bytes");
    for (const Problems& problems : experiment->problems) {
      if (problems.only_on && *problems.only_on != device.type) continue;
      for (const BenchText& sweep : problems.sweeps.at(scale)) {
        const SweptProblems swept = sweep_of(problems, sweep, device);
        const auto lists = method_lists(problems, swept.algorithms);
        for (const Problem& problem : swept.problems) {
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
  return {.problem = measurement.problem, .method = method, .memory_budget = measurement.memory_budget};
}

std::optional<std::vector<Row>> run(const Measurement& measurement, const Proceed& proceed) {
  const MeasureOptions options{.repetitions = measurement.repetitions,
                               .memory_budget = usable_memory(measurement),
                               .count_traffic = measurement.count_traffic};
  auto rows = measure(measurement.problem, measurement.methods, options, proceed);
  if (!rows) return {};
  for (Row& row : *rows) {
    row.memory_budget = measurement.memory_budget;
    if (!row.method.label.empty()) row.speedup.reset();  // Results compares it with the row of `standard`
    add_theory(row);
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
