#include "lab/measure/interleave.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>

namespace tessera::lab {
namespace {

double quantile(const std::vector<double>& sorted, double share) {
  const double position = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(position));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = position - static_cast<double>(below);
  return sorted[below] + weight * (sorted[above] - sorted[below]);
}

// How much of its measuring a contender has behind it, from 0 to 1.
double share_done(const Contender& contender, const Schedule& schedule) {
  if (contender.failure) return 1;
  const auto count = static_cast<double>(contender.seconds.size());
  if (schedule.repetitions > 0) return std::min(1.0, count / schedule.repetitions);
  if (count >= schedule.most) return 1;
  const double by_time = schedule.min_time > 0 ? contender.total / schedule.min_time : 1;
  return std::min({1.0, by_time, count / schedule.fewest});
}

void call_once(Contender& contender, bool measured) {
  using Clock = std::chrono::steady_clock;
  try {
    double seconds = 0;
    if (contender.timed) {
      seconds = contender.timed();
    } else {
      const Clock::time_point begin = Clock::now();
      contender.call();
      seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    }
    if (measured) {
      contender.seconds.push_back(seconds);
      contender.total += seconds;
    }
  } catch (...) {
    contender.failure = std::current_exception();
  }
}

}  // namespace

Summary summarise(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {static_cast<int>(values.size()), quantile(values, 0.5), quantile(values, 0.25),
          quantile(values, 0.75),          values.front(),        values.back()};
}

bool measure(std::span<Contender> contenders, const Schedule& schedule,
             const std::function<bool(double share)>& proceed) {
  auto overall = [&] {
    double total = 0;
    for (const Contender& contender : contenders) total += share_done(contender, schedule);
    return contenders.empty() ? 1 : total / static_cast<double>(contenders.size());
  };
  for (int round = 0; round < schedule.warmup; ++round) {
    for (Contender& contender : contenders) {
      if (!proceed(0)) return false;
      if (!contender.failure) call_once(contender, false);
    }
  }
  std::vector<Contender*> order;
  for (Contender& contender : contenders) order.push_back(&contender);
  std::mt19937 random;  // the same orders in every run
  while (overall() < 1) {
    const Contender* last = order.back();
    do std::shuffle(order.begin(), order.end(), random);
    while (order.size() > 1 && order.front() == last);
    for (Contender* contender : order) {
      if (share_done(*contender, schedule) >= 1) continue;
      if (!proceed(overall())) return false;
      call_once(*contender, true);
    }
  }
  return true;
}

}  // namespace tessera::lab
