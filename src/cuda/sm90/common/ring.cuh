// A ring of stages in shared memory, as one of its two sides walks through it.
#pragma once

#include <cstdint>

namespace tessera::cuda::sm90 {

// A position in a ring of `Slots` stages. A stage is full when the phase of its `full` barrier with
// parity phase() is complete, and free again when the phase before it is complete on the `empty`
// barrier. The slot and the parity both follow from one counter, because registers are scarce.
template <int Slots>
class Ring {
 public:
  __device__ explicit Ring(unsigned count = 0) : count_(count) {}
  __device__ __forceinline__ int slot() const { return static_cast<int>(count_ % Slots); }
  __device__ __forceinline__ int slot_before() const { return static_cast<int>((count_ - 1) % Slots); }
  __device__ __forceinline__ std::uint32_t phase() const { return count_ / Slots & 1; }
  __device__ __forceinline__ void next() { ++count_; }
  __device__ __forceinline__ unsigned count() const { return count_; }

 private:
  unsigned count_;
};

}  // namespace tessera::cuda::sm90
