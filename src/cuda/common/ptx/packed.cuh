// Arithmetic on pairs of 16-bit numbers.
#pragma once

#include <cstdint>

#include "cuda/common/ptx/types.h"

namespace tessera::cuda::ptx {

// 0 x + y for both numbers of a pair: stays 0 as long as every x is finite. PTX ISA: fma.rn.{f16x2, bf16x2}. sm_80 and newer.
template <Half16 Type>
__device__ __forceinline__ std::uint32_t times_zero_plus(std::uint32_t x, std::uint32_t y) {
  std::uint32_t sum;
  if constexpr (Type == Half16::bf16)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(0), "r"(y));
  else asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(0), "r"(y));
  return sum;
}

}  // namespace tessera::cuda::ptx
