// How times are measured: warm-up, interleaved calls, the median and the spread around it.
#pragma once

#include <exception>
#include <functional>
#include <span>
#include <vector>

namespace tessera::lab {

// Order statistics of some measurements.
struct Summary {
  int count = 0;
  double median = 0;
  double lower_quartile = 0;
  double upper_quartile = 0;
  double lowest = 0;
  double highest = 0;

  // Half the distance between the quartiles, as a share of the median.
  [[nodiscard]] double spread() const {
    return median > 0 ? (upper_quartile - lower_quartile) / 2 / median : 0;
  }
};

// Quantiles are interpolated between neighbours. Without values every statistic is 0.
Summary summarise(std::vector<double> values);

// How often each call is repeated.
struct Repetitions {
  int warmup = 1;         // calls before the first measured one
  int repetitions = 0;    // measured calls; 0: by time
  double min_time = 0.3;  // else: until the measured calls took this many seconds ...
  int fewest = 5;         // ... and are at least this many,
  int most = 10'000;      // but not more than this
};

// One of several calls that do the same work, and its measured times.
struct TimedCall {
  std::function<void()> call;
  std::function<double()> timed{};  // calls and returns the seconds it took; empty: the wall clock tells
  std::vector<double> seconds{};
  double total = 0;              // of `seconds`
  std::exception_ptr failure{};  // what a call threw; it is not called again
};

// Interleaves the calls: every round has a random order of its own, and no call follows itself. So
// what the machine does meanwhile, and what one call leaves behind in caches and clocks, affects
// all of them alike. `proceed` gets the share that is done before every call; when it returns
// false, measuring stops. Returns whether it was finished.
bool interleave(std::span<TimedCall> calls, const Repetitions& repetitions,
                const std::function<bool(double share)>& proceed);

}  // namespace tessera::lab
