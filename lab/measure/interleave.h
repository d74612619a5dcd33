// How times are taken: warm-up, contenders in turn, the median and the spread around it.
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

// Quantiles are interpolated between neighbours. Of nothing everything is 0.
Summary summarise(std::vector<double> values);

// How often a contender is called.
struct Schedule {
  int warmup = 1;         // calls before the first measured one
  int repetitions = 0;    // measured calls; 0: by time
  double min_time = 0.3;  // else: until the measured calls took so many seconds ...
  int fewest = 5;         // ... and are at least so many,
  int most = 10'000;      // but not more than this
};

// One of several ways to do the same work.
struct Contender {
  std::function<void()> call;
  std::function<double()> timed{};  // calls, and says how many seconds it took; empty: the wall clock says it
  std::vector<double> seconds{};
  double total = 0;              // of `seconds`
  std::exception_ptr failure{};  // what a call threw; the contender is then left out
};

// Calls the contenders in turn, every round in another order and none after itself, so that whatever the machine does in the
// meantime, and whatever one leaves behind, hits all of them alike. `proceed` is asked before every call with the share that is done;
// when it says no, measuring stops. Returns whether it was finished.
bool measure(std::span<Contender> contenders, const Schedule& schedule,
             const std::function<bool(double share)>& proceed);

}  // namespace tessera::lab
