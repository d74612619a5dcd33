// The twin of src/cuda/common/ptx/memory.cuh for the model of a GPU. Threads change over only
// where the machine does it, so that a plain access is an atomic one.
#pragma once

#include <cstdint>

#include "gpu_model/machine/machine.h"

namespace tessera::cuda::ptx {

TWIN std::uint32_t load_relaxed(const std::uint32_t* from) {
  const std::uint32_t x = *from;
  gpu_model::poll(gpu_model::here());
  return x;
}
TWIN void fence() { gpu_model::yield(); }
TWIN void increment(std::uint32_t* to) { ++*to; }
TWIN void add_four(float* to, const float (&x)[4]) {
  gpu_model::check_aligned(to, 16, gpu_model::here());
  for (int i = 0; i < 4; ++i) to[i] += x[i];
}
TWIN void add_two(float* to, float x, float y) {
  gpu_model::check_aligned(to, 8, gpu_model::here());
  to[0] += x, to[1] += y;
}

}  // namespace tessera::cuda::ptx
