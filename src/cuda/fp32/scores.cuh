// What happens to a score between the products: masks, bias, ALiBi, softcap, dropout.
#pragma once

#include <cstdint>

#include "core/philox.h"
#include "core/problem.h"
#include "cuda/common/exp.cuh"
#include "cuda/common/ptx/math.cuh"
#include "cuda/common/ptx/opaque.cuh"
#include "cuda/common/step_cursor.h"
#include "cuda/common/tile/shared_tile32.cuh"
#include "cuda/fp32/config.h"

namespace tessera::cuda::fp32 {

inline constexpr float kInfinity = __builtin_inff();

// The columns that a row sees within a step: those of its band that lie in [first, last).
struct Visible {
  Diagonals band;
  int first, last;  // of the streamed rows: keys, or queries if keys are owned

  __device__ __forceinline__ bool in_band(int query, int key) const {
    const int distance = key - query;
    return distance >= band.low && distance <= band.high;
  }
  // Queries are owned, keys are streamed.
  __device__ __forceinline__ bool key(int query, int key) const {
    return key >= first && key < last && in_band(query, key);
  }
  // Keys are owned, queries are streamed.
  __device__ __forceinline__ bool query(int query, int key) const {
    return query >= first && query < last && in_band(query, key);
  }
};

// Whether all pairs of queries [q_begin, q_end) and keys [k_begin, k_end) lie inside the band, or
// none.
__device__ __forceinline__ bool all_in_band(const Diagonals& band, int q_begin, int q_end, int k_begin,
                                            int k_end) {
  return k_begin - (q_end - 1) >= band.low && k_end - 1 - q_begin <= band.high;
}
__device__ __forceinline__ bool none_in_band(const Diagonals& band, int q_begin, int q_end, int k_begin,
                                             int k_end) {
  return k_end - 1 - q_begin < band.low || k_begin - (q_end - 1) > band.high;
}

// Turns a product of rows into a score. Without features that is the scale alone.
template <bool Featured>
struct ScoreTerms {
  const Constants& constants;

  __device__ __forceinline__ ScoreTerms(const core::Problem&, const Constants& c, const core::Sequence&,
                                        std::int64_t)
      : constants(c) {}

  __device__ __forceinline__ float score(float product, int, int, float& derivative) const {
    derivative = 1;
    return product * constants.scale;
  }

  __device__ __forceinline__ bool hides(int, int) const { return false; }
};

template <>
struct ScoreTerms<true> {
  const core::Problem& p;
  const Constants& constants;
  float slope;  // 0: off
  int diagonal;
  const float* bias;  // of this head; null: none
  int q_length, k_length;

  __device__ __forceinline__ ScoreTerms(const core::Problem& problem, const Constants& c,
                                        const core::Sequence& s, std::int64_t head)
      : p(problem),
        constants(c),
        slope(p.alibi_slopes == nullptr ? 0.0F : p.alibi_slopes[s.index * p.alibi_batch_stride + head]),
        diagonal(static_cast<int>(s.band.diagonal)),
        bias(p.bias ? p.bias.row<const float>(s.index, head, 0) : nullptr),
        q_length(static_cast<int>(s.q_length)),
        k_length(static_cast<int>(s.k_length)) {}

  // The score, and the derivative of its softcap, by which a gradient of it is multiplied.
  __device__ __forceinline__ float score(float product, int query, int key, float& derivative) const {
    float x = product * constants.scale;
    derivative = 1;
    if (constants.softcap != 0) {
      // tanh.approx would leave an error of 2^-11.
      const float bent = tanhf(x * constants.inverse_softcap);
      x = constants.softcap * bent;
      derivative = fmaf(-bent, bent, 1.0F);
    }
    if (slope != 0) x = fmaf(-slope, fabsf(static_cast<float>(diagonal + query - key)), x);
    if (bias != nullptr && static_cast<unsigned>(query) < static_cast<unsigned>(q_length) &&
        static_cast<unsigned>(key) < static_cast<unsigned>(k_length)) {
      const float b = __ldg(bias + query * p.bias.row_stride + key);
      x = b == -kInfinity ? b : x + b;  // -inf hides the key, whatever the score is
    }
    return x;
  }

  // Whether a bias of -inf hides a key of the sequence.
  __device__ __forceinline__ bool hides(int query, int key) const {
    return bias != nullptr && __ldg(bias + query * p.bias.row_stride + key) == -kInfinity;
  }
};

// The dropout bits of a head, for elements in the order of an accumulator.
struct Dropout {
  core::DropoutStream stream;
  std::int64_t row, column;  // of the first query and key, in global coordinates
  std::uint32_t threshold;

  __device__ __forceinline__ Dropout(const core::Problem& p, const core::Sequence& s, std::int64_t head)
      : stream(core::dropout_stream(p, s.index, head)),
        row(p.origin.row),
        column(p.origin.column),
        threshold(p.dropout_threshold) {}

  __device__ __forceinline__ bool kept(std::uint32_t word, int half) const {
    return core::dropout_half(word, half) >= threshold;
  }

  // The definition, for one element.
  __device__ __forceinline__ bool kept_at(int query, int key) const {
    const std::int64_t at = column + key;
    const int within = static_cast<int>(at % core::kDropoutGroup), w = within / 8;
    const core::PhiloxBlock block =
        core::dropout_call(stream, row + query, at / core::kDropoutGroup, within % 8 / 2);
    return kept(word_of(block, w), within % 2);
  }

  // block.word[w]; an index would put the array into local memory.
  static __device__ __forceinline__ std::uint32_t word_of(const core::PhiloxBlock& block, int w) {
    return w < 2 ? (w == 0 ? block.word[0] : block.word[1]) : (w == 2 ? block.word[2] : block.word[3]);
  }

  // Queries are owned. Calls keep(n, c, kept) for columns first_key + 8 n + 2 (lane % 4) + c of a
  // row, n < NTiles. Keys [first_key, first_key + 8 NTiles) lie in one group of 32 in global
  // coordinates, so that one call gives all bits.
  template <int NTiles, typename Keep>
  __device__ __forceinline__ void along_row(int query, int first_key, int lane, Keep&& keep) const {
    const std::int64_t at = column + first_key;
    const core::PhiloxBlock block =
        core::dropout_call(stream, row + query, at / core::kDropoutGroup, lane % 4);
    const int first_word = static_cast<int>(at % core::kDropoutGroup) / 8;
#pragma unroll
    for (int n = 0; n < NTiles; ++n) {
      const int w = NTiles == 4 ? n : first_word + n;
      const std::uint32_t word = word_of(block, w);
      keep(n, 0, kept(word, 0));
      keep(n, 1, kept(word, 1));
    }
  }

  // Keys are owned: the bits of keys `key` and `key` + 8 for one query. Mostly one call gives both.
  __device__ __forceinline__ void down_column(int query, int key, bool (&keep)[2]) const {
    core::PhiloxBlock block;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::int64_t at = column + key + 8 * h;
      const int within = static_cast<int>(at % core::kDropoutGroup);
      if (h == 0 || within < 8) {
        block = core::dropout_call(stream, row + query, at / core::kDropoutGroup, within % 8 / 2);
      }
      keep[h] = kept(word_of(block, within / 8), within % 2);
    }
  }
};

// The shift of the steps over the keys, so that each step lies in one group of dropout's columns.
__device__ __forceinline__ int dropout_shift(const core::Problem& p) {
  constexpr std::int64_t kGroup = core::kDropoutGroup;
  return p.dropout ? static_cast<int>((p.origin.column % kGroup + kGroup) % kGroup) : 0;
}

// p.kv_head in 32 bits: a division of 64 bits would be a call.
__device__ __forceinline__ int kv_head_of(const core::Problem& p, int head) {
  return head / static_cast<int>(static_cast<unsigned>(p.q_heads) / static_cast<unsigned>(p.kv_heads));
}

// 1 / x with an error of one rounding. A division would call a function for subnormal numbers.
__device__ __forceinline__ float reciprocal(float x) {
  const float y = ptx::approximate_reciprocal(x);
  return fmaf(y, fmaf(-x, y, 1.0F), y);
}

// The rows of one head of one sequence.
__device__ __forceinline__ RowSource32 rows_of(const core::View& view, std::int64_t batch, std::int64_t head,
                                               std::int64_t begin, std::int64_t columns, bool aligned) {
  return {view.row<const float>(batch, head, begin), view.row_stride, static_cast<int>(columns), aligned};
}

}  // namespace tessera::cuda::fp32
