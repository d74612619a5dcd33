// The options of a query head as the backward kernels read them: where its bias, its ALiBi slope
// and its random numbers are; and which elements dropout keeps, in the layouts of their fragments.
#pragma once

#include <cstdint>

#include "core/philox.h"
#include "core/problem.h"
#include "cuda/common/dropout_columns.h"
#include "cuda/common/features.cuh"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda {

// What differs from one head of a call to the next.
struct HeadOptions {
  std::int64_t bias;           // offset of row 0
  float slope;                 // of ALiBi, for scores in base-2 logarithms
  int diagonal;                // ALiBi counts the distance of j from i + diagonal
  core::DropoutStream stream;  // of the random numbers
  std::int64_t row, column;    // global coordinates of row 0 and column 0
};

__device__ inline HeadOptions head_options(const core::Problem& p, const core::Sequence& s, int q_head) {
  HeadOptions o{};
  o.bias = s.index * p.bias.batch_stride + q_head * p.bias.head_stride;
  o.slope = p.alibi_slopes != nullptr ? alibi_slope(p, s.index, q_head) : 0;
  o.diagonal = static_cast<int>(min(max(s.band.diagonal, -kLongestWalk), kLongestWalk));
  if (p.dropout) o.stream = core::dropout_stream(p, s.index, q_head);
  o.row = p.origin.row, o.column = p.origin.column;
  return o;
}

// A score plus its bias, in base-2 logarithms. A bias of -inf hides the key whatever the score is.
// Steps that no mask cuts have no bias.
template <bool Masked>
__device__ __forceinline__ float biased_score(float score, float bias) {
  const float sum = fmaf(bias, kLog2E, score);
  return Masked && bias == -INFINITY ? -INFINITY : sum;
}

// Turns the product of row i and column j into a score in base-2 logarithms. `grad` is the gradient
// of the result and becomes that of the scaled product; BeforeCap leaves it as it is. The bias is
// read only where `visible`.
template <bool BeforeCap = false>
__device__ __forceinline__ float featured_score(const core::Problem& p, const ScoreFeatures& f,
                                                const HeadOptions& o, float score, float& grad, int i, int j,
                                                bool visible) {
  float value;
  if (f.softcap_in != 0) {
    const float bent = ptx::tanh(score * f.softcap_in);
    value = bent * f.softcap_out;
    if constexpr (!BeforeCap) grad *= 1.0F - bent * bent;
  } else {
    value = score * f.scale_log2;
  }
  if (f.has_alibi) value -= o.slope * static_cast<float>(abs(i + o.diagonal - j));
  if (f.has_bias && visible)
    value = biased_score<true>(value, load_bias(p, o.bias + i * p.bias.row_stride + j));
  return value;
}

// Which of columns j, j + 8, j + 16 and j + 24 of row i dropout keeps, as bits 0 to 3. That takes
// one call of the generator when column j is among the first eight of an aligned group of 32, else
// two.
__device__ __forceinline__ std::uint32_t kept_by_eights(const HeadOptions& o, std::uint32_t threshold, int i,
                                                        int j) {
  const std::int64_t column = o.column + j;
  const int word = static_cast<int>(column >> 3) & 3, pair = static_cast<int>(column & 7) / 2;
  const int odd = static_cast<int>(column & 1);
  std::uint32_t bits = 0;
#pragma unroll 1
  for (int half = 0; half < (word == 0 ? 1 : 2); ++half) {
    const core::PhiloxBlock block =
        core::dropout_call(o.stream, o.row + i, column / core::kDropoutGroup + half, pair);
#pragma unroll
    for (int m = 0; m < 4; ++m)
      bits |= (core::dropout_half(block.word[m], odd) >= threshold ? 1U : 0U) << (4 * half + m);
  }
  return bits >> word & 15;
}

// Which elements of the 32 keys from `key` on and the 8 * Blocks queries from i on dropout keeps,
// as bits kept_bit(x, j, r) (features.h). By a warp. One call of the generator serves eight
// elements of a lane where the keys begin an aligned group of 32.
template <int Blocks>
__device__ __forceinline__ std::uint32_t kept_of_keys(const HeadOptions& o, const ScoreFeatures& f, int i,
                                                      int key) {
  static_assert(Blocks <= 4);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::uint32_t bits = 0;
  if ((o.column + key) % core::kDropoutGroup == 0) {
    const core::DropoutStream stream = o.stream;
    const DropoutColumns columns =
        dropout_columns(stream, (o.column + key) / core::kDropoutGroup, drawn_pair(lane));
    const auto row = static_cast<std::uint32_t>(o.row) + static_cast<std::uint32_t>(i + drawn_query(lane));
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
      bits |= drawn_bits(dropout_call(stream, columns, row + 8 * j), j,
                         [&](std::uint32_t word) { return kept_halves(f, word); });
    }
    return exchanged_bits(lane, bits, __shfl_xor_sync(~0U, bits, 4));
  }
#pragma unroll 1
  for (int jx = 0; jx < 2 * Blocks; ++jx) {
    bits |= kept_by_eights(o, f.dropout_threshold, i + jx / 2 * 8 + lane % 4 * 2 + jx % 2, key + lane / 4)
            << kept_bit(jx % 2, jx / 2, 0);
  }
  return bits;
}

// Which of the columns {8 m + 2 t, 8 m + 2 t + 1 : m = 0..3} after column j of row i dropout keeps,
// as bits 2 m and 2 m + 1: what one lane holds of 32 columns when rows are queries. Column j must
// begin an aligned group of 32.
__device__ __forceinline__ std::uint32_t kept_of_lane(const HeadOptions& o, const ScoreFeatures& f, int i,
                                                      int j, int t) {
  const core::PhiloxBlock block =
      core::dropout_call(o.stream, o.row + i, (o.column + j) / core::kDropoutGroup, t);
  std::uint32_t bits = 0;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const std::uint32_t halves = kept_halves(f, block.word[m]);
    bits |= halves & 1U << (2 * m) | halves >> 16 & 2U << (2 * m);
  }
  return bits;
}

// The same for any column j: element by element.
__device__ __forceinline__ std::uint32_t kept_of_lane_anywhere(const HeadOptions& o, std::uint32_t threshold,
                                                               int i, int j, int t) {
  std::uint32_t bits = 0;
#pragma unroll 1
  for (int at = 0; at < 8; ++at) {
    const std::int64_t column = o.column + j + at / 2 * 8 + t * 2 + at % 2;
    const int within = static_cast<int>(column % core::kDropoutGroup);
    const core::PhiloxBlock block =
        core::dropout_call(o.stream, o.row + i, column / core::kDropoutGroup, within % 8 / 2);
    const std::uint32_t word = within < 8    ? block.word[0]
                               : within < 16 ? block.word[1]
                               : within < 24 ? block.word[2]
                                             : block.word[3];
    bits |= (core::dropout_half(word, within % 2) >= threshold ? 1U : 0U) << at;
  }
  return bits;
}

}  // namespace tessera::cuda
