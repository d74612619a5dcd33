// The powers of two by which the rows of a tile are scaled before they become halves, and how a
// product is scaled back. For host and device.
#pragma once

#include <bit>
#include <cstdint>

#include "core/base/host_device.h"

namespace tessera::cuda::fp32 {

// `scale` brings the largest number of a row into [2^14, 2^15); `factor` reverses it. Both are
// normal numbers whatever the row holds.
struct RowPower {
  float scale, factor;

  // From the largest magnitude of the row, which is finite.
  static TESSERA_HD RowPower of(float largest) {
    const std::uint32_t exponent = bits_of(largest) & 0x7F800000U, least = 15U << 23;
    const std::uint32_t own = exponent > least ? exponent : least;
    return {float_of((268U << 23) - own), float_of(own - (14U << 23))};
  }

 private:
  static TESSERA_HD std::uint32_t bits_of(float x) {
#if TESSERA_CUDA_ARCH > 0
    return __float_as_uint(x);
#else
    return std::bit_cast<std::uint32_t>(x);
#endif
  }
  static TESSERA_HD float float_of(std::uint32_t x) {
#if TESSERA_CUDA_ARCH > 0
    return __uint_as_float(x);
#else
    return std::bit_cast<float>(x);
#endif
  }
};

// A sum of products of two scaled rows, scaled back by the factors of both. The smaller factor
// comes first. In the other order a large factor would overflow where the product does not (1e36
// times 1e-36); the product of both factors would overflow even where the sum is 0. So a step
// overflows only where the product does.
TESSERA_HD inline float take_back(float sum, float a, float b) {
  return sum * (a < b ? a : b) * (a < b ? b : a);
}

}  // namespace tessera::cuda::fp32
