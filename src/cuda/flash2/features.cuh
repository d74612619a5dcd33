// What may happen to one score between the product and the exponential: softcap, bias, ALiBi; and dropout after it.
//
// Scores enter as Q K^T and leave in base-2 logarithms, so that the exponential is 2^(score - reference).
#pragma once

#include <cstdint>

#include "core/float16.h"
#include "core/philox.h"
#include "core/problem.h"
#include "cuda/flash2/score_features.h"
#include "cuda/ptx/math.cuh"

namespace tessera::cuda {

inline constexpr float kLog2E = 1.4426950408889634F;
inline constexpr float kLn2 = 0.6931471805599453F;

// scale * s, capped: softcap * tanh(scale * s / softcap).
__device__ __forceinline__ float scaled_score(const ScoreFeatures& f, float s) {
  return f.softcap_in == 0 ? s * f.scale_log2 : f.softcap_out * ptx::tanh(s * f.softcap_in);
}

// The slope of a head, for scores in base-2 logarithms.
__device__ __forceinline__ float alibi_slope(const core::Problem& p, std::int64_t sequence,
                                             std::int64_t head) {
  return p.alibi_slopes[sequence * p.alibi_batch_stride + head] * kLog2E;
}

// 0xFFFF where an element is kept, for the two columns of a word of random bits.
__device__ __forceinline__ std::uint32_t kept_halves(const ScoreFeatures& f, std::uint32_t word) {
  return ptx::at_least_or_nan(f.dropout.operand(word), f.dropout.limit) ^ f.dropout.invert;
}

// One element of the bias, as it is stored.
__device__ __forceinline__ float load_bias(const core::Problem& p, std::int64_t offset) {
  if (p.bias_dtype == DType::fp32) return __ldg(static_cast<const float*>(p.bias.data) + offset);
  const std::uint32_t bits = __ldg(static_cast<const unsigned short*>(p.bias.data) + offset);
  return p.bias_dtype == DType::bf16 ? ptx::unpack<ptx::Half16::bf16>(bits).x
                                     : ptx::unpack<ptx::Half16::fp16>(bits).x;
}

}  // namespace tessera::cuda
