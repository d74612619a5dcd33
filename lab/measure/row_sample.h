// How exact an output is: some of its rows against the fp64 oracle.
#pragma once

#include <cstdint>
#include <vector>

#include "lab/measure/rows.h"
#include "tessera/attention.h"

namespace tessera::lab {

// The first row of the first head, the last row of the last head, and random ones. Very long
// sequences get fewer rows, because the oracle is slow.
class RowSample {
 public:
  // Computes the exact rows. The inputs must be filled and in host memory.
  RowSample(const Attention& attention, const ForwardTensors& tensors, int rows, std::uint64_t seed);

  // The error of the current contents of `tensors.out`.
  [[nodiscard]] SampledError compare(const ForwardTensors& tensors) const;

 private:
  struct Position {
    std::int64_t batch, head, row;
  };
  std::vector<Position> positions_;
  std::vector<double> exact_;
};

}  // namespace tessera::lab
