// Single-instruction approximations, and arithmetic on packed pairs of 16-bit numbers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/common/ptx/opaque.cuh"
#include "cuda/common/ptx/types.h"

namespace tessera::cuda::ptx {

// 2^x, at most 2 ULP off; results below 2^-126 are 0. PTX ISA: ex2.
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(x) of a normal number, at most 2^-22 off where x is between 1/2 and 2, else 2^-22 of the
// result. PTX ISA: lg2.
__device__ __forceinline__ float log2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// tanh(x), relative error at most 2^-11. PTX ISA: tanh.
__device__ __forceinline__ float tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two numbers rounded to nearest, `low` in the lower half. PTX ISA: cvt.rn.{f16x2, bf16x2}.f32.
template <Half16 Type>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  std::uint32_t packed;
  if constexpr (Type == Half16::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
#if TESSERA_CUDA_ARCH > 0 && TESSERA_CUDA_ARCH < 800  // Turing has no conversion of pairs
    const __half2 pair = __floats2half2_rn(low, high);
    packed = *reinterpret_cast<const std::uint32_t*>(&pair);
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#endif
  }
  return packed;
}

// As above, but what is too large becomes fp16's largest number, or 2^80 in bf16, so that sums of a
// few stay finite. Not for NaN. PTX ISA: cvt.rn.satfinite.f16x2.f32, min.bf16x2. sm_80 and newer.
template <Half16 Type>
__device__ __forceinline__ std::uint32_t pack_finite(float low, float high) {
  std::uint32_t packed;
  if constexpr (Type == Half16::fp16) {
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("min.bf16x2 %0, %1, %2;" : "=r"(packed) : "r"(pack<Type>(low, high)), "r"(0x67806780U));
  }
  return packed;
}

// For each of two fp16 numbers 0xFFFF where a >= b or one of them is a NaN, else 0. PTX ISA:
// set.geu.u32.f16x2.
__device__ __forceinline__ std::uint32_t at_least_or_nan(std::uint32_t a, std::uint32_t b) {
  std::uint32_t mask;
  asm("set.geu.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
  return mask;
}

// 0xFFFF for each half whose highest bit is set, else 0. PTX ISA: prmt.
__device__ __forceinline__ std::uint32_t signs_of_halves(std::uint32_t x) {
  std::uint32_t mask;  // 8 + n: the sign of byte n, eight times
  asm("prmt.b32 %0, %1, 0, 0xBB99;" : "=r"(mask) : "r"(x));
  return mask;
}

// The two numbers of a pair.
template <Half16 Type>
__device__ __forceinline__ float2 unpack(std::uint32_t pair) {
  if constexpr (Type == Half16::bf16)
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000U)};
  else return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// 0 x + y for both numbers of a pair: stays 0 as long as every x is finite. PTX ISA: fma.rn.{f16x2,
// bf16x2}. sm_80 and newer.
template <Half16 Type>
__device__ __forceinline__ std::uint32_t times_zero_plus(std::uint32_t x, std::uint32_t y) {
  std::uint32_t sum;
  if constexpr (Type == Half16::bf16)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(0), "r"(y));
  else asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(0), "r"(y));
  return sum;
}

// 1 / x, at most 1 ULP off; 0 where x is above 2^126, infinity where it is subnormal. PTX ISA:
// rcp.approx.ftz.
__device__ __forceinline__ float approximate_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace tessera::cuda::ptx
