// Measures one problem with several algorithms and describes each result as a row. Nothing that goes wrong
// with one of them ends the sweep: it becomes that row's status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/commands/options.h"
#include "lab/measure/interleave.h"
#include "lab/measure/rows.h"
#include "lab/problem/workload.h"

namespace tessera::lab {

struct RunnerOptions {
  Schedule schedule{};
  std::size_t memory_budget = 0;  // tensors and workspace together
  std::uint64_t seed = 0;         // of the random data
  int check_rows = 16;            // rows compared with the oracle; 0: none
  bool count_traffic = false;     // on a GPU: count DRAM bytes, after everything else was measured
};

// One problem, one direction, the algorithms to compare.
struct Contest {
  Point point;
  Direction direction = Direction::forward;
  Device device{};
  std::vector<Algorithm> algorithms;
  std::string baseline{};  // of lab/baselines, which then takes the place of every algorithm; empty: none
};

// One row for each algorithm, in their order, or nothing when `proceed` said no: it is asked before every
// call with the share that is done.
std::optional<std::vector<Row>> run_contest(const Contest& contest, const RunnerOptions& options,
                                            const std::function<bool(double share)>& proceed);

// Output rows against the oracle: the first and last row of the first and last head, and others drawn at
// random. The sample shrinks for very long sequences, because the oracle is slow.
class RowSample {
 public:
  // Computes the exact rows. The inputs must be there, in host memory.
  RowSample(const Attention& attention, const ForwardTensors& tensors, int rows, std::uint64_t seed);

  // The error of what `tensors.out` holds now.
  [[nodiscard]] SampledError compare(const ForwardTensors& tensors) const;

 private:
  struct Position {
    std::int64_t batch, head, row;
  };
  std::vector<Position> positions_;
  std::vector<double> exact_;
};

}  // namespace tessera::lab
