// A problem as the library takes it.
#pragma once

#include <vector>

#include "cuda/common/host/memory.h"
#include "lab/problem/problem.h"
#include "tessera/attention.h"
#include "tessera/plan.h"

namespace tessera::lab {

// Description and shapes. Owns what the description points to, so it can be moved but not copied.
class Operation {
 public:
  // Throws UsageError for an invalid problem: key/value heads that do not divide the query heads,
  // or a block mask that the library refuses.
  explicit Operation(const Problem& problem);
  Operation(Operation&&) = default;
  Operation& operator=(Operation&&) = default;

  // The description with an algorithm. What it points to is in host memory, or where `place` put
  // it.
  [[nodiscard]] Attention attention(Algorithm algorithm) const;
  // The description for the oracle: always in host memory.
  [[nodiscard]] Attention host_attention() const { return attention_; }
  // Copies what the description points to (slopes, block mask) to the device that will run it.
  void place(Device device);
  [[nodiscard]] const Shapes& shapes() const { return shapes_; }
  [[nodiscard]] const Problem& problem() const { return problem_; }

 private:
  Problem problem_;
  Shapes shapes_;
  Attention attention_;
  std::vector<float> slopes_;
  cuda::DeviceBuffer device_slopes_;
};

}  // namespace tessera::lab
