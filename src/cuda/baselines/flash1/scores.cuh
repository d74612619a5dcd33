// What happens to a score between Q K^T and the softmax, on the fragments of cuda.flash1: softcap,
// ALiBi, bias, mask and dropout.
#pragma once

#include <cstdint>

#include "core/philox.h"
#include "core/problem.h"
#include "cuda/baselines/flash1/products.cuh"
#include "cuda/common/exp.cuh"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda::flash1 {

// The options of a query head of a sequence.
struct Options {
  float scale = 1;
  const void* bias = nullptr;  // row 0, column 0; null: none
  std::int64_t bias_stride = 0;
  bool bias_is_fp32 = false;
  float cap = 0;    // 0: off
  float slope = 0;  // of ALiBi; 0: off
  int diagonal = 0;
  bool dropout = false;
  core::DropoutStream stream{};
  std::int64_t row = 0, column = 0;  // global coordinates of row 0 and column 0
  std::uint32_t threshold = 0;
  float keep_scale = 1;
};

template <Engine E, Variant V>
__device__ inline Options options_of(const core::Problem& p, const core::Sequence& s, int head) {
  Options o;
  o.scale = static_cast<float>(p.scale);
  if constexpr (V == Variant::plain) return o;
  if (p.has_bias) {
    o.bias_is_fp32 = p.bias_dtype == DType::fp32;
    o.bias_stride = p.bias.row_stride;
    o.bias = o.bias_is_fp32 ? static_cast<const void*>(p.bias.row<const float>(s.index, head, 0))
                            : p.bias.row<const std::uint16_t>(s.index, head, 0);
  }
  o.cap = static_cast<float>(p.softcap);
  if (p.alibi_slopes != nullptr) {
    o.slope = p.alibi_slopes[s.index * p.alibi_batch_stride + head];
    o.diagonal = static_cast<int>(s.band.diagonal);
  }
  o.dropout = p.dropout;
  if (p.dropout) {
    o.stream = core::dropout_stream(p, s.index, head);
    o.row = p.origin.row, o.column = p.origin.column;
    o.threshold = p.dropout_threshold;
    o.keep_scale = static_cast<float>(p.keep_scale);
  }
  return o;
}

// Turns the product of row i and column j into the score that the softmax takes. `derivative` is
// that of the softcap. The bias is only read for visible elements: for others there may be none.
template <Engine E, Variant V>
__device__ __forceinline__ float finish_score(const Options& o, float product, int i, int j, bool visible,
                                              float& derivative) {
  float score = product * o.scale;
  derivative = 1;
  if constexpr (V == Variant::featured) {
    if (o.cap != 0) {
      const float bent = tanhf(score / o.cap);
      score = o.cap * bent;
      derivative = 1 - bent * bent;
    }
    if (o.slope != 0) score -= o.slope * fabsf(static_cast<float>(i + o.diagonal - j));
    if (o.bias != nullptr && visible) {
      const std::int64_t at = i * o.bias_stride + j;
      float bias;
      if (is_fp32(E) || o.bias_is_fp32) bias = static_cast<const float*>(o.bias)[at];
      else bias = ptx::unpack<type_of(E)>(static_cast<const std::uint16_t*>(o.bias)[at]).x;
      // A bias of -inf hides the key whatever its score is.
      score = bias == core::kMinusInfinity<float> ? bias : score + bias;
    }
  }
  return score;
}

// The stream with keys that the compiler derives the rounds from in every call; kept through a
// loop, these would take fourteen registers.
__device__ __forceinline__ core::DropoutStream opaque_stream(const Options& o) {
  core::DropoutStream stream = o.stream;
  stream.key0 = ptx::opaque(stream.key0), stream.key1 = ptx::opaque(stream.key1);
  return stream;
}

// Which of the columns {j + 8 n + 2 t, j + 8 n + 2 t + 1 : n < N} of row i dropout keeps, as bits 2
// n and 2 n + 1: those of lane t of a quad. If j begins an aligned group of 32 columns, a random
// call serves four n; otherwise each element takes a call.
template <int N>
__device__ __forceinline__ std::uint32_t kept_bits(const Options& o, int i, int j, int t) {
  std::uint32_t bits = 0;
  const std::int64_t row = o.row + i, column = o.column + j;
  if (column % core::kDropoutGroup == 0) {
#pragma unroll
    for (int n = 0; n < N; n += 4) {
      const core::PhiloxBlock block =
          core::dropout_call(opaque_stream(o), row, column / core::kDropoutGroup + n / 4, t);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        bits |= (core::dropout_half(block.word[m], 0) >= o.threshold ? 1U : 0U) << (2 * (n + m));
        bits |= (core::dropout_half(block.word[m], 1) >= o.threshold ? 2U : 0U) << (2 * (n + m));
      }
    }
    return bits;
  }
#pragma unroll 1
  for (int e = 0; e < 2 * N; ++e) {
    const std::int64_t at = column + e / 2 * 8 + 2 * t + e % 2;
    const int within = static_cast<int>(at % core::kDropoutGroup);
    const core::PhiloxBlock block =
        core::dropout_call(opaque_stream(o), row, at / core::kDropoutGroup, within % 8 / 2);
    const std::uint32_t word = within < 8    ? block.word[0]
                               : within < 16 ? block.word[1]
                               : within < 24 ? block.word[2]
                                             : block.word[3];
    bits |= (core::dropout_half(word, within % 2) >= o.threshold ? 1U : 0U) << e;
  }
  return bits;
}

// The keys [begin, end) that a row sees.
struct Seen {
  int begin, end;
  __device__ __forceinline__ bool operator()(int j) const { return j >= begin && j < end; }
};

// A step of the algorithm: a tile of queries and a block of keys.
struct Step {
  int begin;        // the first query of the tile
  int first, last;  // the queries [first, last) of the tile take part
  int key_begin, key_end;
  Diagonals band;

  __device__ __forceinline__ Seen seen(int i) const {
    if (i < first || i >= last) return {0, 0};
    return {max(key_begin, i + band.low), min(key_end, i + band.high + 1)};
  }

  // Whether rows [row, row + rows) see any, or all, of keys [key, key + count).
  __device__ __forceinline__ bool any(int row, int rows, int key, int count) const {
    const int from = max(row, first), to = min(row + rows, last);
    return from < to && key < key_end && from + band.low < key + count && to - 1 + band.high >= key;
  }
  __device__ __forceinline__ bool all(int row, int rows, int key, int count) const {
    return row >= first && row + rows <= last && key + count <= key_end && row + rows - 1 + band.low <= key &&
           row + band.high >= key + count - 1;
  }
};

}  // namespace tessera::cuda::flash1
