// Attention backward in fp32, deterministic.
//
// A thread block owns a tile of keys with their values, or of queries with their output gradients.
// It streams the rows of the other kind that meet the tile through shared memory, step by step, and
// keeps the gradients in registers until the end.
//
//   keys owned:     S^T = K Q^T, dP^T = V dO^T;  dV += P^T dO,  dK += dS^T Q
//   queries owned:  S   = Q K^T, dP   = dO V^T;  dQ += dS K
//
// An owned tile of keys streams the queries of every head of its group.
//
// Nothing is added by atomics, so gradients are bitwise reproducible. The price is that S and dP
// are computed twice: 7 products instead of the 5 of fused_backward_kernel.cuh. Both cases share
// their code: "rows" are owned, "columns" are streamed.
#pragma once

#include <cstdint>

#include "core/visibility.h"
#include "cuda/common/instances.h"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/common/step_cursor.h"
#include "cuda/fp32/config.h"
#include "cuda/fp32/products.cuh"
#include "cuda/fp32/scores.cuh"

namespace tessera::cuda::fp32 {

// The LSE as the backward pass uses it: a row that saw no key has probabilities exp(x - inf) = 0.
__device__ __forceinline__ float usable_lse(float lse) { return lse == -kInfinity ? kInfinity : lse; }

// What a thread block owns: rows of a query head, or of a key/value head.
struct OwnedTile {
  core::Sequence s;
  int head;
  int begin, end;
};

template <PassConfig C>
__device__ __forceinline__ OwnedTile owned_tile(const BackwardArguments& a) {
  const core::Problem& p = a.problem;
  const core::BasicTask<std::uint32_t> task = a.order[ptx::block_index()];
  const core::Sequence s = core::sequence(p, task.sequence);
  constexpr bool kKeys = C.owner == Owner::keys;
  const std::int64_t block = !p.blocks ? 0 : kKeys ? p.blocks.block_k : p.blocks.block_q;
  const core::Interval tile = core::Tiling{kKeys ? s.k_length : s.q_length, C.rows(), block}[task.tile];
  return {s, static_cast<int>(task.head), static_cast<int>(tile.begin), static_cast<int>(tile.end)};
}

template <PassConfig C>
struct Backward {
  static constexpr bool kKeys = C.owner == Owner::keys;
  static constexpr int kNTiles = C.block / 8, kThreads = C.threads();
  using Tile = SharedTile32<C.head_dim>;
  using Walk = StepWalk<kKeys ? WalkOrder::ascending : WalkOrder::descending>;
  using Scores = float[1][kNTiles][4];

  const BackwardArguments& arguments;
  const core::Problem& p;
  const std::uint32_t base;  // shared memory
  const int warp_row;        // this warp's first row in the tile
  int own;                   // this warp's first row in the sequence
  float score_gradient[1][C.score_gradient ? C.head_dim / 8 : 1][4] = {};
  float value_gradient[1][C.value_gradient ? C.head_dim / 8 : 1][4] = {};
  float row_lse[2], row_delta[2];  // if queries are owned

  static constexpr std::uint32_t kOwnedBytes = C.owned_tiles() * C.rows() * C.head_dim * 4;

  // Owned: K or Q, and V or dO. Streamed: Q or K, and dO or V. The factors of the owned rows follow
  // all tiles.
  __device__ __forceinline__ Tile owned(int which) const {
    return {base + which * C.rows() * C.head_dim * 4,
            base + kOwnedBytes + C.stages * C.stage_bytes() + which * C.rows() * 4};
  }
  __device__ __forceinline__ Tile passing(int stage, int which) const {
    return {base + kOwnedBytes + stage * C.stage_bytes() + which * C.block * C.head_dim * 4,
            statistics(stage) + (2 + which) * C.block * 4};
  }
  // Of the streamed rows: LSE and delta if they are queries, and two factors.
  __device__ __forceinline__ std::uint32_t statistics(int stage) const {
    constexpr int kFactors = factors_per_row(C.multiply) * C.owned_tiles() * C.rows() * 4;
    return base + kOwnedBytes + C.stages * C.stage_bytes() + kFactors + stage * C.statistics_bytes();
  }
  __device__ __forceinline__ std::uint32_t lse_of(int stage) const { return statistics(stage); }
  __device__ __forceinline__ std::uint32_t delta_of(int stage) const {
    return statistics(stage) + C.block * 4;
  }

  __device__ __forceinline__ void wait() const {
    if constexpr (C.async()) ptx::wait_copies<0>();
  }

  struct Step {
    int begin;  // of the columns
    Visible visible;

    __device__ __forceinline__ bool sees(int row, int column) const {
      return kKeys ? visible.query(column, row) : visible.key(row, column);
    }
  };

  static __device__ __forceinline__ bool all_visible(const Step& step, int row, int rows) {
    const int end = step.begin + C.block;
    return step.visible.first == step.begin && step.visible.last == end &&
           (kKeys ? all_in_band(step.visible.band, step.begin, end, row, row + rows)
                  : all_in_band(step.visible.band, row, row + rows, step.begin, end));
  }
  static __device__ __forceinline__ bool none_visible(const Step& step, int row, int rows) {
    const int end = step.begin + C.block;
    return kKeys ? none_in_band(step.visible.band, step.begin, end, row, row + rows)
                 : none_in_band(step.visible.band, row, row + rows, step.begin, end);
  }

  // Copies the columns of a step: two tiles and, if they are queries, LSE and delta.
  __device__ __forceinline__ void load_step(int stage, int column, const RowSource32& first,
                                            const RowSource32& second, int limit, const float* lse,
                                            std::int64_t lse_stride, const float* delta) const {
    load_rows<C.head_dim, C.block, kThreads, C.async(), C.featured()>(passing(stage, 0), first, column,
                                                                      limit);
    load_rows<C.head_dim, C.block, kThreads, C.async(), C.featured()>(passing(stage, 1), second, column,
                                                                      limit);
    if constexpr (C.async()) ptx::commit_copies();
    if (kKeys && threadIdx.x < C.block) {
      const int row = column + static_cast<int>(threadIdx.x);
      const bool inside = static_cast<unsigned>(row) < static_cast<unsigned>(limit);
      ptx::store_shared(lse_of(stage) + threadIdx.x * 4,
                        __float_as_uint(inside ? usable_lse(__ldg(lse + row * lse_stride)) : kInfinity));
      ptx::store_shared(delta_of(stage) + threadIdx.x * 4,
                        __float_as_uint(inside ? __ldg(delta + row) : 0.0F));
    }
  }

  // Turns `x` into P (with dropout) and `y` into dS.
  __device__ __forceinline__ void scores(Scores& x, Scores& y, const ScoreTerms<C.featured()>& terms,
                                         const Step& step, int stage, int head, bool masked,
                                         bool wants_scores) const {
    const int lane = lane_index();
    multiply_rows<C.multiply>(x, owned(0), warp_row, passing(stage, 0), lines_of(p.qk_dim));
    if constexpr (C.score_gradient) {
      if (wants_scores) {
        multiply_rows<C.multiply>(y, owned(1), warp_row, passing(stage, 1), lines_of(p.v_dim));
      } else {
        clear(y);
      }
    }
    const bool drops = C.featured() && p.dropout;
    std::uint32_t kept = 0xFFFFFFFFU;  // bit 4 n + e
    if (drops) kept = kept_bits(head, step.begin);
    const float keep_scale = arguments.constants.keep_scale;
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
      float2 column_lse{}, column_delta{};  // if keys are owned
      if constexpr (kKeys) {
        column_lse = load_float2(lse_of(stage) + (8 * n + lane % 4 * 2) * 4);
        column_delta = load_float2(delta_of(stage) + (8 * n + lane % 4 * 2) * 4);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = own + lane / 4 + e / 2 * 8, column = step.begin + 8 * n + lane % 4 * 2 + e % 2;
        const float lse = !kKeys ? row_lse[e / 2] : e % 2 == 0 ? column_lse.x : column_lse.y;
        const float delta = !kKeys ? row_delta[e / 2] : e % 2 == 0 ? column_delta.x : column_delta.y;
        float derivative;
        const float score = terms.score(x[0][n][e], kKeys ? column : row, kKeys ? row : column, derivative);
        const bool hidden = C.featured() && score == -kInfinity;  // by its bias
        const float probability = hidden ? 0.0F : exp_difference(score, lse);
        const bool keep = (kept >> (4 * n + e) & 1) != 0;
        float gradient = C.score_gradient ? y[0][n][e] : 0.0F;
        x[0][n][e] = probability;
        if (drops) {
          x[0][n][e] = keep ? probability * keep_scale : 0.0F;
          gradient = keep ? gradient * keep_scale : 0.0F;
        }
        if constexpr (C.score_gradient) {
          y[0][n][e] = hidden ? 0.0F : probability * (gradient - delta) * derivative;
        }
      }
    }
    if (!masked) return;  // a second loop: in one loop the compiler compares in every step
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = own + lane / 4 + e / 2 * 8, column = step.begin + 8 * n + lane % 4 * 2 + e % 2;
        if (step.sees(row, column)) continue;
        x[0][n][e] = 0;
        if constexpr (C.score_gradient) y[0][n][e] = 0;
      }
    }
  }

  // The random stream is derived in every step: seven rounds of a generator save ten registers.
  __device__ __forceinline__ std::uint32_t kept_bits(int head, int column) const {
    const Dropout dropout(p, owned_tile<C>(arguments).s, head);
    const int lane = lane_index();
    std::uint32_t bits = 0;
    if constexpr (kKeys) {
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          bool keep[2];
          dropout.down_column(column + 8 * n + lane % 4 * 2 + c, own + lane / 4, keep);
          bits |= (keep[0] ? 1U : 0U) << (4 * n + c) | (keep[1] ? 4U : 0U) << (4 * n + c);
        }
      }
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        dropout.along_row<kNTiles>(own + lane / 4 + 8 * h, column, lane, [&](int n, int c, bool keep) {
          bits |= (keep ? 1U : 0U) << (4 * n + 2 * h + c);
        });
      }
    }
    return bits;
  }

  // Walks over the columns of a query head; if keys are owned, of member `member` of their group.
  __device__ __forceinline__ void run_head(int member, int group) {
    const auto [s, own_head, begin, end] = owned_tile<C>(arguments);
    const int head = kKeys ? own_head * group + member : own_head,
              kv_head = kKeys ? own_head : own_head / group;
    const bool wants_scores = C.score_gradient && (kKeys ? p.grad_k : p.grad_q);
    const bool wants_values = C.value_gradient && p.grad_v;
    const RowSource32 first =
        kKeys ? rows_of(p.q, s.tensor_batch, head, s.q_begin, p.qk_dim, arguments.constants.aligned)
              : rows_of(p.k, s.tensor_batch, kv_head, s.k_begin, p.qk_dim, arguments.constants.aligned);
    const RowSource32 second =
        kKeys ? rows_of(p.grad_out, s.tensor_batch, head, s.q_begin, p.v_dim, arguments.constants.aligned)
              : rows_of(p.v, s.tensor_batch, kv_head, s.k_begin, p.v_dim, arguments.constants.aligned);
    const int limit = static_cast<int>(kKeys ? s.q_length : s.k_length);
    const float* lse = p.lse.row<const float>(s.tensor_batch, head, s.q_begin);
    const float* delta = arguments.delta + delta_offset(p, s, head);
    const std::int64_t lse_stride = p.lse.row_stride;
    if constexpr (!kKeys) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = own + lane_index() / 4 + 8 * h;
        row_lse[h] = row < end ? usable_lse(lse[row * lse_stride]) : kInfinity;
        row_delta[h] = row < end ? delta[row] : 0.0F;
      }
    }
    const Diagonals band = diagonals(s.band);
    const ScoreTerms<C.featured()> terms(p, arguments.constants, s, head);
    Walk walk = walk_of(s, head, begin, end);
    int stage = 0;
    if (!walk.done()) load_step(0, walk.begin(), first, second, limit, lse, lse_stride, delta);
    while (!walk.done()) {
      const Step step{walk.begin(), {band, walk.first(), walk.last()}};
      const bool masked = !all_visible(step, own, 16);
      const bool any_masked = (C.featured() && p.has_bias) || !all_visible(step, begin, C.rows());
      const bool works = !none_visible(step, own, 16);
      walk.next();

      wait();
      bool found = prepare_rows<C.multiply, C.block, kThreads>(passing(stage, 0), any_masked);
      if (prepare_rows<C.multiply, C.block, kThreads>(passing(stage, 1), C.value_gradient && any_masked)) {
        found = found || C.value_gradient;
      }
      bool non_finite = false;  // the step holds a non-finite value that some row may not see
      if (any_masked) {
        non_finite = __syncthreads_or(found);
      } else {
        __syncthreads();  // the step is complete, and no thread reads the step before any more
      }
      if (C.stages > 1 && !walk.done()) {
        load_step(stage ^ 1, walk.begin(), first, second, limit, lse, lse_stride, delta);
      }
      Scores x, y;
      if (works) scores(x, y, terms, step, stage, head, masked, wants_scores);
      if (non_finite) clean(step, stage, terms, end);
      if (works) {
        if constexpr (C.value_gradient) {
          if (wants_values) {
            accumulate<C.multiply>(value_gradient, x, passing(stage, 1), lines_of(p.v_dim));
          }
        }
        if constexpr (C.score_gradient) {
          if (wants_scores) {
            accumulate<C.multiply>(score_gradient, y, passing(stage, 0), lines_of(p.qk_dim));
          }
        }
      }
      if constexpr (C.stages > 1) {
        stage ^= 1;
      } else {
        __syncthreads();
        if (!walk.done()) load_step(0, walk.begin(), first, second, limit, lse, lse_stride, delta);
      }
    }
  }

  __device__ __forceinline__ Walk walk_of(const core::Sequence& s, int head, int begin, int end) const {
    if constexpr (kKeys) {
      return query_walk(p, s, head, begin, end, C.block);
    } else {
      return key_walk(p, s, head, begin, end, C.block, C.featured() ? dropout_shift(p) : 0);
    }
  }

  // Removes the non-finite values of a step. Its scores have been computed with them, so dS carries
  // them to the rows that see them; the gradient of values gets them here.
  __device__ __forceinline__ void clean(const Step& step, int stage, const ScoreTerms<C.featured()>& terms,
                                        int end) {
    __syncthreads();
    if constexpr (C.value_gradient) {
      add_non_finite<C.multiply, C.block>(value_gradient, passing(stage, 1), [&](int row, int column) {
        const int key = own + row, query = step.begin + column;
        return step.sees(key, query) && (!C.featured() || (key < end && !terms.hides(query, key)));
      });
      __syncthreads();
      clean_rows<C.multiply, C.block, kThreads>(passing(stage, 1));
    }
    clean_rows<C.multiply, C.block, kThreads>(passing(stage, 0));
    __syncthreads();
  }

  __device__ __forceinline__ void run() {
    const auto [s, head, begin, end] = owned_tile<C>(arguments);
    if (begin >= end) return;
    own = begin + warp_row;
    const int group = static_cast<int>(static_cast<unsigned>(p.q_heads) / static_cast<unsigned>(p.kv_heads));
    const RowSource32 first =
        kKeys ? rows_of(p.k, s.tensor_batch, head, s.k_begin, p.qk_dim, arguments.constants.aligned)
              : rows_of(p.q, s.tensor_batch, head, s.q_begin, p.qk_dim, arguments.constants.aligned);
    load_rows<C.head_dim, C.rows(), kThreads, C.async(), C.featured()>(owned(0), first, begin, end);
    if constexpr (C.score_gradient) {
      const RowSource32 second =
          kKeys ? rows_of(p.v, s.tensor_batch, head, s.k_begin, p.v_dim, arguments.constants.aligned)
                : rows_of(p.grad_out, s.tensor_batch, head, s.q_begin, p.v_dim, arguments.constants.aligned);
      load_rows<C.head_dim, C.rows(), kThreads, C.async(), C.featured()>(owned(1), second, begin, end);
    }
    if constexpr (C.async()) ptx::commit_copies();
    wait();
    prepare_rows<C.multiply, C.rows(), kThreads>(owned(0), false);
    if constexpr (C.score_gradient) prepare_rows<C.multiply, C.rows(), kThreads>(owned(1), false);
    if constexpr (kKeys) {
#pragma unroll 1
      for (int member = 0; member < group; ++member) {
        if (member > 0) __syncthreads();  // no thread reads the last head's steps any more
        run_head(member, group);
      }
    } else {
      run_head(0, group);
    }
    finalize();
  }

  __device__ __forceinline__ void finalize() const {
    const OwnedTile tile = owned_tile<C>(arguments);
    const std::int64_t first = kKeys ? tile.s.k_begin : tile.s.q_begin;
    auto store = [&](const auto& gradient, const core::View& to, float scale, std::int64_t columns) {
      if (!to) return;
      const float factor[2] = {scale, scale};
      store_rows<C.multiply>(
          gradient, 0, factor, static_cast<int>(columns), !C.featured() || arguments.constants.aligned,
          [&](int h) -> float* {
            const int row = own + lane_index() / 4 + 8 * h;
            return row < tile.end ? to.row<float>(tile.s.tensor_batch, tile.head, first + row) : nullptr;
          });
    };
    if constexpr (C.value_gradient) store(value_gradient, p.grad_v, 1.0F, p.v_dim);
    if constexpr (C.score_gradient) {
      store(score_gradient, kKeys ? p.grad_k : p.grad_q, arguments.constants.scale, p.qk_dim);
    }
  }
};

template <typename Config>
__global__ void __launch_bounds__(Config::value.threads(), Config::value.thread_blocks)
    backward_kernel(const __grid_constant__ BackwardArguments a) {
  constexpr PassConfig C = Config::value;
  Backward<C> backward{a, a.problem, ptx::dynamic_shared_address<128>(), warp_index() * 16};
  backward.run();
}

}  // namespace tessera::cuda::fp32
