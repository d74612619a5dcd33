#include "lab/measure/contests.h"

#include <algorithm>

namespace tessera::lab {

std::vector<Algorithm> algorithms_here(const Sweep& sweep) {
  std::vector<Algorithm> all;
  for (const KernelInfo& kernel : kernels()) {
    const bool wanted = std::find(sweep.directions.begin(), sweep.directions.end(), kernel.direction) !=
                        sweep.directions.end();
    if (wanted && kernel.device == sweep.device.type) all.push_back(kernel.algorithm);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  if (all.empty()) all.push_back(Algorithm::automatic);
  return all;
}

std::vector<Contest> contests(const Sweep& sweep, const std::vector<Algorithm>& algorithms) {
  std::vector<Contest> all;
  for (const Point& point : sweep.points) {
    for (const Direction direction : sweep.directions) {
      all.push_back({point, direction, sweep.device, algorithms});
    }
  }
  return all;
}

double expected_seconds(const Contest& contest, const Schedule& schedule) {
  constexpr double kFlopsPerSecond = 5e9;
  const Point& p = contest.point;
  const auto columns = static_cast<double>(keys(p));
  const double flops = 4.0 * static_cast<double>(p.batch) * static_cast<double>(p.heads) *
                       static_cast<double>(p.seq) * columns * static_cast<double>(p.dim) *
                       (contest.direction == Direction::forward ? 1 : 2.5);
  const double call = flops / kFlopsPerSecond;
  const int warmup = std::max(1, schedule.warmup);
  const double measured = schedule.repetitions > 0 ? call * schedule.repetitions
                                                   : std::max(call * schedule.fewest, schedule.min_time);
  return (call * warmup + measured) * static_cast<double>(contest.algorithms.size());
}

}  // namespace tessera::lab
