// CUDA's __half and __half2, as far as the baselines use them.
#pragma once

#include <vector_types.h>

#include <bit>
#include <cstdint>

#include "core/base/float16.h"

struct __half {
  std::uint16_t bits;
  operator float() const { return tessera::core::to_float(tessera::core::Half{bits}); }
};
struct alignas(4) __half2 {
  __half x, y;
};

inline float __half2float(__half x) { return x; }
inline __half __float2half_rn(float x) { return {tessera::core::to_half(x).bits}; }
inline float2 __half22float2(__half2 x) { return {__half2float(x.x), __half2float(x.y)}; }
inline __half2 __float22half2_rn(float2 x) { return {__float2half_rn(x.x), __float2half_rn(x.y)}; }
