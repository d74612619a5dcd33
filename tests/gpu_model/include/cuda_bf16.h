// CUDA's __nv_bfloat16 and its pair, as far as the baselines use them.
#pragma once

#include <vector_types.h>

#include <cstdint>

#include "core/base/float16.h"

struct __nv_bfloat16 {
  std::uint16_t bits;
  operator float() const { return tessera::core::to_float(tessera::core::BFloat16{bits}); }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {tessera::core::to_bfloat16(x).bits}; }
inline float2 __bfloat1622float2(__nv_bfloat162 x) { return {__bfloat162float(x.x), __bfloat162float(x.y)}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 x) {
  return {__float2bfloat16_rn(x.x), __float2bfloat16_rn(x.y)};
}
