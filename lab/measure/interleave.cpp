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

// The share of its measured calls that is done, from 0 to 1.
double share_done(const TimedCall& one, const Repetitions& repetitions) {
  if (one.failure) return 1;
  const auto count = static_cast<double>(one.seconds.size());
  if (repetitions.repetitions > 0) return std::min(1.0, count / repetitions.repetitions);
  if (count >= repetitions.most) return 1;
  const double by_time = repetitions.min_time > 0 ? one.total / repetitions.min_time : 1;
  return std::min({1.0, by_time, count / repetitions.fewest});
}

void call_once(TimedCall& one, bool measured) {
  using Clock = std::chrono::steady_clock;
  try {
    double seconds = 0;
    if (one.timed) {
      seconds = one.timed();
    } else {
      const Clock::time_point begin = Clock::now();
      one.call();
      seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    }
    if (measured) {
      one.seconds.push_back(seconds);
      one.total += seconds;
    }
  } catch (...) {
    one.failure = std::current_exception();
  }
}

}  // namespace

Summary summarise(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {static_cast<int>(values.size()), quantile(values, 0.5), quantile(values, 0.25),
          quantile(values, 0.75),          values.front(),        values.back()};
}

bool interleave(std::span<TimedCall> calls, const Repetitions& repetitions,
                const std::function<bool(double share)>& proceed) {
  auto overall = [&] {
    double total = 0;
    for (const TimedCall& one : calls) total += share_done(one, repetitions);
    return calls.empty() ? 1 : total / static_cast<double>(calls.size());
  };
  for (int round = 0; round < repetitions.warmup; ++round) {
    for (TimedCall& one : calls) {
      if (!proceed(0)) return false;
      if (!one.failure) call_once(one, false);
    }
  }
  std::vector<TimedCall*> order;
  for (TimedCall& one : calls) order.push_back(&one);
  std::mt19937 random;  // the same orders in every run
  while (overall() < 1) {
    const TimedCall* last = order.back();
    do std::shuffle(order.begin(), order.end(), random);
    while (order.size() > 1 && order.front() == last);
    for (TimedCall* call : order) {
      if (share_done(*call, repetitions) >= 1) continue;
      if (!proceed(overall())) return false;
      call_once(*call, true);
    }
  }
  return true;
}

}  // namespace tessera::lab
