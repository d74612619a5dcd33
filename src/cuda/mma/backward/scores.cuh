// From scores to P and dS, for one warp of a thread block that owns a tile of keys.
#pragma once

#include "cuda/common/backward_call.h"
#include "cuda/common/ptx/mma.cuh"
#include "cuda/common/tile/shared_tile.cuh"
#include "cuda/mma/backward/key_tile.cuh"

namespace tessera::cuda::mma::backward {

// 32 keys x 8 * Blocks queries, in the accumulators of a warp: keys are rows. A lane holds the keys
// `key` + 8 r, r < 4, and of every eight queries columns 2 (lane % 4) + x, x < 2.
template <KeysConfig C, int Blocks>
struct ScoreBlock {
  static constexpr bool kFeatured = C.variant != Variant::plain, kDropout = C.variant == Variant::dropout;

  float (&s)[2][Blocks][4];   // the scores; they become P
  float (&dp)[2][Blocks][4];  // dP - delta; it becomes dS
  const BackwardCall& a;
  const KeyTile& tile;
  const QueryRun& run;
  const HeadOptions& options;
  const float* statistics;  // of the step
  int begin;                // the first query of the step
  int column;               // the first of these queries, counted from there
  int first_key;            // of the warp
  std::uint32_t kept;       // what dropout keeps: bit kept_bit(x, j, r)
  std::uint32_t bias;       // where the tile of the bias is, if it is staged
  int lane = 0, key = 0;

  // Masked: some pairs are not visible. Returns whether something is not finite.
  template <bool Masked>
  __device__ __forceinline__ bool differentiate() {
    lane = ptx::opaque(static_cast<int>(threadIdx.x)) % 32, key = first_key + lane / 4;
    float check = 0;  // stays 0 while everything is finite
    if constexpr (Masked) spread_non_finite(check);
    if constexpr (kDropout) drop_gradients();
    if constexpr (kFeatured) apply_features<Masked>();
    finish<Masked>();
    return Masked && !(check == 0);
  }

 private:
  // Two neighbouring queries of block j in an array of statistics.
  __device__ __forceinline__ float2 pair_at(const float* from, int j) const {
    return *reinterpret_cast<const float2*>(from + column + j * 8 + lane % 4 * 2);
  }

  // The queries of the step that see key `key` + 8 r.
  __device__ __forceinline__ ColumnRange range_of(int r) const {
    const int below = key + 8 * r;
    const int first = max(run.first, below - tile.band.high), last = min(run.last, below - tile.band.low + 1);
    return ColumnRange::of(first - begin, (below < tile.keys.end ? last : first) - begin);
  }

  // change(score, gradient, r, j, x) for all elements: key `key` + 8 r, and query x of the lane's
  // in block j.
  template <typename Change>
  __device__ __forceinline__ void each(Change&& change) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int j = 0; j < Blocks; ++j) {
#pragma unroll
        for (int x = 0; x < 2; ++x) change(s[r / 2][j][r % 2 * 2 + x], dp[r / 2][j][r % 2 * 2 + x], r, j, x);
      }
    }
  }

  // P becomes NaN where dO or V is not finite: dV must show it.
  __device__ __forceinline__ void spread_non_finite(float& check) {
    each([&](float& score, float grad, int, int, int) {
      const float poison = grad * 0.0F;
      check = fmaf(score, 0.0F, check + poison);
      score += poison;
    });
  }

  // dP of what dropout removes is 0, and dP - delta with it.
  __device__ __forceinline__ void drop_gradients() {
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
      const float2 delta = pair_at(statistics + C.block_q, j);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          float& grad = dp[r / 2][j][r % 2 * 2 + x];
          grad = kept >> kept_bit(x, j, r) & 1 ? grad : -(x == 0 ? delta.x : delta.y);
        }
      }
    }
  }

  // Scale, softcap, ALiBi and bias. Scores are in base-2 logarithms afterwards.
  template <bool Masked>
  __device__ __forceinline__ void apply_features() {
    scale_scores(a.features, s, dp);
    if (a.features.has_alibi) {
      const float distance = static_cast<float>(begin + column + lane % 4 * 2 + options.diagonal - key);
      each([&](float& score, float, int r, int j, int x) {
        score = fmaf(-options.slope, fabsf(distance + static_cast<float>(8 * j + x - 8 * r)), score);
      });
    }
    if (C.stages_bias() && a.bias_staged) {
      add_staged_bias<Masked>();
    } else if (a.features.has_bias) {
      if (a.problem.bias_dtype == DType::fp32) add_bias<Masked, float>();
      else add_bias<Masked, ptx::HalfBits>();
    }
  }

  // From shared memory. Rows of the bias are queries, so they are transposed, like the scores.
  template <bool Masked>
  __device__ __forceinline__ void add_staged_bias() {
    using Bias = SharedTile<C.block_k()>;
    const int chunk = (first_key - tile.keys.begin) / 8 + lane / 8;
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
      std::uint32_t pairs[4];
      ptx::load_matrix_transposed(pairs, bias + Bias::offset(column + j * 8 + lane % 8, chunk));
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float* score = &s[r / 2][j][r % 2 * 2];
        const float2 pair = ptx::unpack<type_of(C.engine)>(pairs[r]);
        score[0] = biased_score<Masked>(score[0], pair.x);
        score[1] = biased_score<Masked>(score[1], pair.y);
      }
    }
  }

  // From global memory, four keys of one query after the other: one address serves the four.
  template <bool Masked, typename Number>
  __device__ __forceinline__ void add_bias() {
#pragma unroll
    for (int jx = 0; jx < 2 * Blocks; ++jx) {
      ptx::keep_apart();
      const int at = ptx::opaque(column + lane % 4 * 2) + jx / 2 * 8 + jx % 2;
      const auto* row = static_cast<const Number*>(a.problem.bias.data) + options.bias +
                        (begin + at) * a.problem.bias.row_stride + key;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float& score = s[r / 2][jx / 2][r % 2 * 2 + jx % 2];
        if (!Masked || range_of(r)(at))
          score = biased_score<Masked>(score, bias_number<type_of(C.engine)>(__ldg(row + 8 * r)));
      }
    }
  }

  // P = 2^(S - LSE), and dS = P o (dP - delta).
  template <bool Masked>
  __device__ __forceinline__ void finish() {
    if constexpr (Masked) {  // key by key: the queries that see a key are two numbers
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const ColumnRange range = range_of(r);
#pragma unroll
        for (int j = 0; j < Blocks; ++j) finish_pair<true>(r, j, pair_at(statistics, j), range);
      }
    } else {
#pragma unroll
      for (int j = 0; j < Blocks; ++j) {
        const float2 lse = pair_at(statistics, j);
#pragma unroll
        for (int r = 0; r < 4; ++r) finish_pair<false>(r, j, lse, {});
      }
    }
  }

  template <bool Masked>
  __device__ __forceinline__ void finish_pair(int r, int j, float2 lse, const ColumnRange& range) {
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      float &score = s[r / 2][j][r % 2 * 2 + x], &grad = dp[r / 2][j][r % 2 * 2 + x];
      const float reference = x == 0 ? lse.x : lse.y;
      const bool hidden = kFeatured && Masked && score == -INFINITY;  // by its bias
      score = ptx::exp2(kFeatured ? score - reference : fmaf(score, a.features.scale_log2, -reference));
      grad *= score;
      if constexpr (kDropout) score = kept >> kept_bit(x, j, r) & 1 ? score : 0.0F;
      if constexpr (Masked) {
        const bool visible = range(column + j * 8 + lane % 4 * 2 + x) && !hidden;
        score = visible ? score : 0.0F;
        grad = visible ? grad : 0.0F;
      }
    }
  }
};

}  // namespace tessera::cuda::mma::backward
