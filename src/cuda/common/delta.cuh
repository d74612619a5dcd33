// delta = <dO, O> - dLSE of a query row: what the gradient of the softmax subtracts from dP.
#pragma once

#include <cstdint>

namespace tessera::cuda {

// The scalar product of two rows of floating-point numbers, in fp32, by a warp; every lane gets it.
template <typename T>
__device__ __forceinline__ float dot_of_warp(const T* a, const T* b, std::int64_t columns) {
  float sum = 0;
  for (int column = static_cast<int>(threadIdx.x % 32); column < columns; column += 32)
    sum = fmaf(static_cast<float>(a[column]), static_cast<float>(b[column]), sum);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
  return sum;
}

}  // namespace tessera::cuda
