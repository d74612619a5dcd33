// From experiments to measurements: the contests of a run, one after the other, each of which becomes rows.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/experiments/experiments.h"
#include "lab/measure/results.h"
#include "lab/measure/runner.h"

namespace tessera::lab {

// A contest of an experiment, and how it departs from a plain call.
struct Trial {
  std::string experiment;
  Contest contest;
  Schedule schedule{};
  std::string label{};                         // what the rows call the algorithm; empty: its own name
  std::string kernel{};                        // forced; empty: the registry's choice
  std::int64_t block_k = 0;                    // keys per step, forced; 0: the kernel's choice
  std::optional<std::size_t> memory_budget{};  // none: what the device has
  bool count_traffic = false;                  // on a GPU: its figures show measured traffic
};

// Every contest of the experiments at a scale. A budget that was asked for takes the place of the experiments' own.
std::vector<Trial> trials_of(const std::vector<const Experiment*>& chosen, Scale scale, Device device,
                             std::optional<std::size_t> memory_budget);

// The row of one of its algorithms as far as it is known before it is measured: enough for its key.
Row row_to_be(const Trial& trial, Algorithm algorithm);

// Measures a trial: run_contest, with the trial's settings in force. A kernel whose tiles cannot be forced makes an
// `unsupported` row that says so.
std::optional<std::vector<Row>> run_trial(const Trial& trial,
                                          const std::function<bool(double share)>& proceed);

// What became of a run.
struct RunTally {
  std::size_t measured = 0;     // rows written
  std::size_t kept = 0;         // rows that were there already
  std::size_t failed = 0;       // of those written: neither measured, nor too large, nor unsupported
  std::string first_failure{};  // its reason
  bool stopped = false;         // before the end
};

// Who hears of a run while it lasts; either may be empty.
struct Listener {
  std::function<bool(const Trial& trial, double share)>
      proceed{};  // asked before every call; share of the whole run
  std::function<void(const Trial& trial, const std::vector<Row>& rows)> finished{};
};

// Measures what `results` does not have yet, and writes each row when its contest is over.
RunTally run_trials(const std::vector<Trial>& trials, Results& results, const Listener& listener);

}  // namespace tessera::lab
