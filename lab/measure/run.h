// From experiments to rows: a run measures what its results do not have yet.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/experiments/experiment.h"
#include "lab/measure/measure.h"
#include "lab/measure/results.h"

namespace tessera::lab {

// One call of `measure` that an experiment needs.
struct Measurement {
  std::string experiment;
  Problem problem;
  std::vector<Method> methods;
  Repetitions repetitions{};
  std::optional<std::size_t> memory_budget{};  // bytes; none: what the device has
  std::string level{};                         // of memory, read instead of the problem; empty: none
  bool count_traffic = false;                  // on a GPU: a figure of the experiment shows measured traffic
};

// What a run measures the experiments with.
struct RunSettings {
  Scale scale = Scale::normal;
  Device device{};
  std::optional<std::size_t> memory_budget{};  // replaces the experiments' own
  Overrides overrides{};
};

// Everything that the experiments measure with these settings.
std::vector<Measurement> measurements_of(const std::vector<const Experiment*>& chosen,
                                         const RunSettings& settings);

// The row of a method as far as it is known before it is measured: enough for its key.
Row row_before(const Measurement& measurement, const Method& method);

// Calls `measure`.
std::optional<std::vector<Row>> run(const Measurement& measurement, const Proceed& proceed);

// What became of a run.
struct RunTally {
  std::size_t measured = 0;     // rows written
  std::size_t kept = 0;         // rows that were there already
  std::size_t failed = 0;       // rows written as failed or invalid
  std::string first_failure{};  // the reason of the first of them
  bool stopped = false;         // before the end
};

// Callbacks of a run; each may be empty.
struct Listener {
  // Called before every call with the share of the whole run that is done; false stops the run.
  std::function<bool(const Measurement& measurement, double share)> proceed{};
  std::function<void(const Measurement& measurement, const std::vector<Row>& rows)> finished{};
};

// Measures what `results` does not have yet. The rows of a measurement are written when it is over.
RunTally run_all(const std::vector<Measurement>& measurements, Results& results, const Listener& listener);

}  // namespace tessera::lab
