#include "lab/measure/trials.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/environment.h"
#include "lab/measure/contests.h"
#include "lab/measure/machine/machine_text.h"
#include "lab/problem/theory.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

Schedule schedule_for(Scale scale, int repetitions) {
  Schedule schedule{.warmup = 1, .repetitions = repetitions};
  switch (scale) {
    case Scale::quick: schedule.min_time = 0.1; break;
    case Scale::normal: schedule.min_time = 0.2; break;
    case Scale::full: break;
  }
  return schedule;
}

// What is free less a tenth, as the system's word is an estimate; or the budget, if that is less.
std::size_t usable_memory(const Trial& trial) {
  const std::size_t there = available_memory(trial.contest.device) / 10 * 9;
  return trial.memory_budget ? std::min(*trial.memory_budget, there) : there;
}

// Why a kernel would not take the keys per step that the trial forces; empty: it would, or cannot run at all.
std::string ignores_block_k(const Trial& trial, const Workload& workload, Row& row) {
  if (trial.block_k == 0) return {};
  const Contest& contest = trial.contest;
  try {
    row.plan = plan(workload.attention(row.algorithm), workload.shapes(), contest.device, contest.direction);
  } catch (const Error&) {
    return {};  // the contest will say why
  }
  const std::int64_t taken = row.plan->block_k;
  if (taken == trial.block_k || taken == std::min(trial.block_k, keys(contest.point))) return {};
  return fmt::format("the tiles of {} are fixed: {} queries x {} keys", row.plan->kernel, row.plan->block_q,
                     row.plan->block_k);
}

// For rows of the library's tiled kernels.
void add_theory(Row& row, const Workload& workload, const Trial& trial) {
  if (!row.plan || row.plan->algorithm == Algorithm::standard || !trial.contest.baseline.empty()) return;
  const std::int64_t block_k = row.requested_block_k > 0 ? row.requested_block_k : row.plan->block_k;
  row.theory = theory_of(workload, row.direction, row.plan->block_q, block_k);
}

// The rows of a trial whose kernel will not do as it is told: nothing is measured.
std::optional<std::vector<Row>> refused(const Trial& trial, const Workload& workload) {
  std::vector<Row> rows;
  for (const Algorithm algorithm : trial.contest.algorithms) {
    Row row = row_to_be(trial, algorithm);
    row.reason = ignores_block_k(trial, workload, row);
    if (row.reason.empty()) return {};
    row.status = Status::unsupported;
    add_theory(row, workload, trial);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::vector<Trial> trials_of(const std::vector<const Experiment*>& chosen, Scale scale, Device device,
                             std::optional<std::size_t> memory_budget) {
  std::vector<Trial> all;
  for (const Experiment* experiment : chosen) {
    const std::string& own = experiment->memory_budget.at(scale);
    std::optional<std::size_t> budget = memory_budget;
    if (!budget && !own.empty()) budget = parse_bytes("memory budget of " + experiment->name, own);
    const bool counted = shows(*experiment, "measured_traffic_bytes");
    for (const Part& part : experiment->parts) {
      if (part.only_on && *part.only_on != device.type) continue;
      const std::vector<std::int64_t> blocks =
          part.block_k.empty() ? std::vector<std::int64_t>{0} : part.block_k;
      for (const BenchText& text : part.sweeps.at(scale)) {
        const Sweep sweep = sweep_of(part, text, device);
        for (Contest& contest : contests(sweep, sweep.algorithms)) {
          contest.baseline = part.baseline;
          for (const std::int64_t block_k : blocks) {
            all.push_back({.experiment = experiment->name,
                           .contest = contest,
                           .schedule = schedule_for(scale, experiment->repetitions),
                           .label = part.label,
                           .kernel = part.kernel,
                           .block_k = block_k,
                           .memory_budget = budget,
                           .count_traffic = counted});
          }
        }
      }
    }
  }
  return all;
}

Row row_to_be(const Trial& trial, Algorithm algorithm) {
  Row row{.point = trial.contest.point,
          .algorithm = algorithm,
          .direction = trial.contest.direction,
          .device = trial.contest.device};
  row.label = trial.label;
  row.requested_block_k = trial.block_k;
  row.memory_budget = trial.memory_budget;
  return row;
}

std::optional<std::vector<Row>> run_trial(const Trial& trial,
                                          const std::function<bool(double share)>& proceed) {
  std::optional<core::EnvironmentOverride> kernel, block_k;
  if (!trial.kernel.empty()) kernel.emplace(&core::Environment::kernel, trial.kernel);
  if (trial.block_k > 0) block_k.emplace(&core::Environment::block_k, std::to_string(trial.block_k));
  const Workload workload(trial.contest.point);
  if (auto rows = refused(trial, workload)) return rows;
  const RunnerOptions options{.schedule = trial.schedule,
                              .memory_budget = usable_memory(trial),
                              .count_traffic = trial.count_traffic};
  auto rows = run_contest(trial.contest, options, proceed);
  if (!rows) return {};
  for (Row& row : *rows) {
    const Row known = row_to_be(trial, row.algorithm);
    row.label = known.label;
    row.requested_block_k = known.requested_block_k;
    row.memory_budget = known.memory_budget;
    if (!row.label.empty()) row.speedup.reset();  // over itself; the row of `standard` knows better
    add_theory(row, workload, trial);
  }
  return rows;
}

RunTally run_trials(const std::vector<Trial>& trials, Results& results, const Listener& listener) {
  RunTally tally;
  std::vector<Trial> todo;
  double total = 0, done = 0;
  for (Trial trial : trials) {
    std::vector<Algorithm> missing;
    for (const Algorithm algorithm : trial.contest.algorithms) {
      if (results.has(row_to_be(trial, algorithm), trial.experiment)) ++tally.kept;
      else missing.push_back(algorithm);
    }
    if (missing.empty()) continue;
    trial.contest.algorithms = missing;
    total += expected_seconds(trial.contest, trial.schedule);
    todo.push_back(std::move(trial));
  }
  for (const Trial& trial : todo) {
    const double expected = expected_seconds(trial.contest, trial.schedule);
    auto proceed = [&](double share) {
      return !listener.proceed || listener.proceed(trial, (done + share * expected) / total);
    };
    const auto rows = proceed(0) ? run_trial(trial, proceed) : std::nullopt;
    if (!rows) {
      tally.stopped = true;
      return tally;
    }
    for (const Row& row : *rows) {
      results.write(row, trial.experiment);
      ++tally.measured;
      if (row.status != Status::failed && row.status != Status::invalid) continue;
      if (tally.failed++ == 0) tally.first_failure = row.reason;
    }
    if (listener.finished) listener.finished(trial, *rows);
    done += expected;
  }
  return tally;
}

}  // namespace tessera::lab
