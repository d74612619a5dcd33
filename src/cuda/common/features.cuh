// What may happen to a score between the product and the exponential (softcap, bias, ALiBi) and
// after it (dropout).
//
// Scores enter as Q K^T and leave in base-2 logarithms, so that the exponential is 2^(score -
// reference).
#pragma once

#include <cstdint>

#include "core/base/float16.h"
#include "core/philox.h"
#include "core/problem.h"
#include "cuda/common/features.h"
#include "cuda/common/ptx/math.cuh"

namespace tessera::cuda {

inline constexpr float kLn2 = 0.6931471805599453F;

// s becomes scale * s or, with a softcap, softcap * tanh(scale * s / softcap). One branch covers
// all elements. If every element had its own, the compiler would turn them into predicates, and
// every call would pay for both sides.
template <int Tiles, int Blocks>
__device__ __forceinline__ void scale_scores(const ScoreFeatures& f, float (&s)[Tiles][Blocks][4]) {
  auto each = [&](auto&& change) {
#pragma unroll
    for (int x = 0; x < Tiles * Blocks * 4; ++x) change(s[x / (Blocks * 4)][x / 4 % Blocks][x % 4]);
  };
  if (f.softcap_in != 0) {
    const float in = f.softcap_in, out = f.softcap_out;
    each([&](float& score) { score = out * ptx::tanh(score * in); });
  } else {
    const float scale = f.scale_log2;
    each([&](float& score) { score *= scale; });
  }
}

// The same for s. `grad` is the gradient of the result and becomes that of the scaled product.
template <int Tiles, int Blocks>
__device__ __forceinline__ void scale_scores(const ScoreFeatures& f, float (&s)[Tiles][Blocks][4],
                                             float (&grad)[Tiles][Blocks][4]) {
  if (f.softcap_in != 0) {
    const float in = f.softcap_in, out = f.softcap_out;
#pragma unroll
    for (int x = 0; x < Tiles * Blocks * 4; ++x) {
      float &score = s[x / (Blocks * 4)][x / 4 % Blocks][x % 4],
            &g = grad[x / (Blocks * 4)][x / 4 % Blocks][x % 4];
      const float bent = ptx::tanh(score * in);
      score = out * bent;
      g *= fmaf(-bent, bent, 1.0F);
    }
  } else {
    scale_scores(f, s);
  }
}

// The ALiBi slope of a head, for scores in base-2 logarithms.
__device__ __forceinline__ float alibi_slope(const core::Problem& p, std::int64_t sequence,
                                             std::int64_t head) {
  return p.alibi_slopes[sequence * p.alibi_batch_stride + head] * kLog2E;
}

// 0xFFFF in each half of a word of random bits whose element dropout keeps. The halves are two
// columns.
__device__ __forceinline__ std::uint32_t kept_halves(const ScoreFeatures& f, std::uint32_t word) {
  return ptx::at_least_or_nan(f.dropout.operand(word), f.dropout.limit) ^ f.dropout.invert;
}

// A number of the bias, which has the type of Q or fp32.
template <ptx::Half16 Type>
__device__ __forceinline__ float bias_number(std::uint16_t x) {
  return ptx::unpack<Type>(x).x;
}
template <ptx::Half16>
__device__ __forceinline__ float bias_number(float x) {
  return x;
}

// One element of the bias.
__device__ __forceinline__ float load_bias(const core::Problem& p, std::int64_t offset) {
  if (p.bias_dtype == DType::fp32) return __ldg(static_cast<const float*>(p.bias.data) + offset);
  const std::uint32_t bits = __ldg(static_cast<const unsigned short*>(p.bias.data) + offset);
  return p.bias_dtype == DType::bf16 ? ptx::unpack<ptx::Half16::bf16>(bits).x
                                     : ptx::unpack<ptx::Half16::fp16>(bits).x;
}

}  // namespace tessera::cuda
