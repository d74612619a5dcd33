// The exponential of a softmax.
#pragma once

#include "cuda/common/features.h"
#include "cuda/common/ptx/math.cuh"

namespace tessera::cuda {

// exp(x - reference), by the hardware's 2^x. The difference comes before the factor: its error is
// then relative to the difference, not to x, and at the maximum it is exactly 0, so that a row that
// sees one key returns its value bit for bit.
__device__ __forceinline__ float exp_difference(float x, float reference) {
  return ptx::exp2((x - reference) * kLog2E);
}

}  // namespace tessera::cuda
