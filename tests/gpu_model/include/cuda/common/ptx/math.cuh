// The twin of src/cuda/common/ptx/math.cuh for the model of a GPU. Approximations are exact to the
// last bit or two; what the instructions flush to zero is flushed here.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/base/float16.h"
#include "cuda/common/ptx/opaque.cuh"
#include "cuda/common/ptx/types.h"

namespace tessera::cuda::ptx {

inline constexpr float kLeastNormal = 0x1p-126F;

TWIN float exp2(float x) {
  const float y = ::exp2f(x);
  return y < kLeastNormal ? 0.0F : y;
}
TWIN float log2(float x) { return ::log2f(x); }
TWIN float tanh(float x) { return ::tanhf(x); }
TWIN float approximate_reciprocal(float x) {
  if (std::fabs(x) < kLeastNormal) return std::copysign(INFINITY, x);
  const float y = 1 / x;
  return std::fabs(y) < kLeastNormal ? std::copysign(0.0F, x) : y;
}

template <Half16 Type>
TWIN std::uint32_t bits_of(float x) {
  if constexpr (Type == Half16::bf16) return core::to_bfloat16(x).bits;
  else return std::bit_cast<std::uint16_t>(static_cast<_Float16>(x));
}
template <Half16 Type>
TWIN float number_of(std::uint32_t bits) {
  if constexpr (Type == Half16::bf16) return std::bit_cast<float>(bits << 16);
  else return static_cast<float>(std::bit_cast<_Float16>(static_cast<std::uint16_t>(bits)));
}

template <Half16 Type>
TWIN std::uint32_t pack(float low, float high) {
  return bits_of<Type>(low) | bits_of<Type>(high) << 16;
}
template <Half16 Type>
TWIN std::uint32_t pack_finite(float low, float high) {
  constexpr float kMost = Type == Half16::fp16 ? 65504.0F : 0x1p80F;
  if constexpr (Type == Half16::fp16)
    return pack<Type>(std::fmin(std::fmax(low, -kMost), kMost), std::fmin(std::fmax(high, -kMost), kMost));
  else return pack<Type>(std::fmin(low, kMost), std::fmin(high, kMost));
}
TWIN std::uint32_t at_least_or_nan(std::uint32_t a, std::uint32_t b) {
  auto one = [](std::uint32_t x, std::uint32_t y) {
    return number_of<Half16::fp16>(x) < number_of<Half16::fp16>(y) ? 0U : 0xFFFFU;
  };
  return one(a, b) | one(a >> 16, b >> 16) << 16;
}
TWIN std::uint32_t signs_of_halves(std::uint32_t x) {
  return ((x & 0x8000U) != 0 ? 0xFFFFU : 0U) | ((x & 0x80000000U) != 0 ? 0xFFFF0000U : 0U);
}
template <Half16 Type>
TWIN float2 unpack(std::uint32_t pair) {
  return {number_of<Type>(pair), number_of<Type>(pair >> 16)};
}
template <Half16 Type>
TWIN std::uint32_t times_zero_plus(std::uint32_t x, std::uint32_t y) {
  const float2 a = unpack<Type>(x), b = unpack<Type>(y);
  return pack<Type>(a.x * 0.0F + b.x, a.y * 0.0F + b.y);
}

}  // namespace tessera::cuda::ptx
