// Measures one problem with several methods. Whatever goes wrong with a method becomes the status
// of its row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lab/measure/interleave.h"
#include "lab/measure/rows.h"
#include "lab/problem/method.h"
#include "lab/problem/problem.h"

namespace tessera::lab {

struct MeasureOptions {
  Repetitions repetitions{};
  std::size_t memory_budget = 0;  // tensors and workspace together, in bytes
  std::uint64_t seed = 0;         // of the random data
  int check_rows = 16;            // output rows compared with the oracle; 0: none
  bool count_traffic = false;     // on a GPU: count DRAM bytes, after everything else was measured
  std::optional<double>
      atol{};  // compare the results of the methods with each other; how far they may differ
};

// Asked before every call with the share that is done; false stops the measuring.
using Proceed = std::function<bool(double share)>;

// One row for each method, in their order; nothing when `proceed` stopped it. The methods are
// called interleaved on the same tensors. They may differ in their algorithm only: kernel, tile and
// baseline are those of the first, and are in force for all calls.
std::optional<std::vector<Row>> measure(const Problem& problem, const std::vector<Method>& methods,
                                        const MeasureOptions& options, const Proceed& proceed);

// A guess of the seconds that `measure` takes, for progress only.
double expected_seconds(const Problem& problem, std::size_t methods, const Repetitions& repetitions);

}  // namespace tessera::lab
