// dQ without reductions, for calls that request it alone and for deterministic mode with a block
// mask. A thread block owns a tile of queries of one head and streams the keys that they see. A
// warp owns 16 * m_tiles rows, with all columns of dQ in registers. Where dK or dV is requested
// too, S and dP are computed a second time.
//
//   S = Q K^T, dP = dO V^T   ->   dS = P o (dP - delta)   ->   dQ += dS K
//
// Traffic: Q, dO, statistics and dQ once, K and V once per tile of queries.
#pragma once

#include <cstdint>

#include "core/visibility.h"
#include "cuda/common/head_options.cuh"
#include "cuda/common/instances.h"
#include "cuda/common/non_finite.cuh"
#include "cuda/common/ptx/opaque.cuh"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/common/rows.cuh"
#include "cuda/common/visible.h"
#include "cuda/mma/backward/arguments.h"
#include "cuda/mma/backward/config.h"
#include "cuda/mma/backward/products.cuh"

namespace tessera::cuda::mma::backward {

// A step over keys, of which [first, last) count.
using KeyStep = Run;

// What a thread block knows about its tile. In shared memory, because registers are full.
struct QueryTile {
  int sequence, head, begin, end;
  int k_begin, k_length, q_begin;
  Diagonals band;
  // Steps begin where column + shift is a multiple of block_k: where a call of the generator
  // begins.
  int shift;
  Runs runs;
  Run run[2];  // the current one and the one before or after
  HeadOptions options;
};

// The statistics of a lane's rows.
template <int Tiles>
struct RowStatistics {
  float lse[Tiles][2], delta[Tiles][2];

  __device__ __forceinline__ void load(const BackwardCall& a, std::int64_t first_block, int row, int limit) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int r = 0; r < 2 * Tiles; ++r) {
      const int i = row + r * 8 + lane / 4;
      const float* from =
          a.statistics + (first_block + i / kQueryBlock) * (2 * kQueryBlock) + i % kQueryBlock;
      lse[r / 2][r % 2] = i < limit ? from[0] : INFINITY;
      delta[r / 2][r % 2] = i < limit ? from[kQueryBlock] : 0;
    }
  }
};

// Scores of 16 * Tiles queries x 8 * Blocks keys become dS. It takes the place of `dp`, which holds
// dP - delta, with dropout dP. `row` and `column` are the first query and key. Masked: some pairs
// are not visible, and the function returns whether something is not finite. BeforeCap: dS as the
// gradient of a bias, not of the product.
template <Variant V, bool Masked, bool BeforeCap, int Tiles, int Blocks>
__device__ __forceinline__ bool differentiate_rows(float (&s)[Tiles][Blocks][4],
                                                   float (&dp)[Tiles][Blocks][4], const BackwardCall& a,
                                                   const HeadOptions& options,
                                                   const RowStatistics<Tiles>& rows, Diagonals band,
                                                   const KeyStep& step, int row, int row_end, int column) {
  constexpr bool kFeatured = V != Variant::plain, kDropout = V == Variant::dropout;
  const int lane = ptx::opaque(static_cast<int>(threadIdx.x)) % 32;
  float check = 0;  // stays 0 while everything is finite
#pragma unroll
  for (int r = 0; r < 2 * Tiles; ++r) {
    const int m = r / 2, i = row + r * 8 + lane / 4;
    const int first = max(step.first, i + band.low), last = min(step.last, i + band.high + 1);
    const ColumnRange range = ColumnRange::of(first - column, (i < row_end ? last : first) - column);
    std::uint32_t kept = ~0U;
    if (kDropout && a.features.dropout_threshold != 0) {
      const int within = static_cast<int>((options.column + column) % core::kDropoutGroup);
      if (BeforeCap && within != 0) {  // a tile of the bias begins anywhere
        kept = kept_of_lane_anywhere(options, a.features.dropout_threshold, i, column, lane % 4);
      } else {
        kept = kept_of_lane(options, a.features, i, column - within, lane % 4) >> (within / 8 * 2);
      }
    }
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        float &score = s[m][j][r % 2 * 2 + x], &grad = dp[m][j][r % 2 * 2 + x];
        const int at = j * 8 + lane % 4 * 2 + x;
        bool visible = true;
        if constexpr (Masked) {
          visible = range(at);
          check = fmaf(score, 0.0F, fmaf(grad, 0.0F, check));
        }
        if constexpr (kDropout) grad = (kept >> (2 * j + x) & 1 ? grad : 0.0F) - rows.delta[m][r % 2];
        float exponent;
        if constexpr (kFeatured) {
          const float value =
              featured_score<BeforeCap>(a.problem, a.features, options, score, grad, i, column + at, visible);
          if (value == -INFINITY) visible = false;  // hidden by its bias
          exponent = value - rows.lse[m][r % 2];
        } else {
          exponent = fmaf(score, a.features.scale_log2, -rows.lse[m][r % 2]);
        }
        grad *= ptx::exp2(exponent);
        if constexpr (Masked) grad = visible ? grad : 0.0F;
      }
    }
  }
  return Masked && !(check == 0);
}

// Begins the sums of dP with -delta, so that the product yields dP - delta. With dropout, which
// needs the registers, with 0.
template <Variant V, int Tiles, int Blocks>
__device__ __forceinline__ void begin_grad(float (&dp)[Tiles][Blocks][4], const RowStatistics<Tiles>& rows) {
#pragma unroll
  for (int m = 0; m < Tiles; ++m) {
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) dp[m][j][e] = V == Variant::dropout ? 0.0F : -rows.delta[m][e / 2];
    }
  }
}

// Finds the task of this thread block and writes down what it is to know of its tile. False: there
// is no such tile.
template <QueriesConfig C>
__device__ __forceinline__ bool begin_query_tile(const BackwardCall& a, QueryTile& tile) {
  const core::Problem& p = a.problem;
  const auto task = a.order[blockIdx.x];
  const core::Sequence s = core::sequence(p, task.sequence);
  const core::Tiling tiling{s.q_length, C.block_q(), p.blocks ? p.blocks.block_q : 0};
  if (task.tile >= tiling.count()) return false;
  if (threadIdx.x == 0) {
    const core::Interval rows = tiling[task.tile];
    tile.sequence = static_cast<int>(task.sequence), tile.head = static_cast<int>(task.head);
    tile.begin = static_cast<int>(rows.begin), tile.end = static_cast<int>(rows.end);
    tile.k_begin = static_cast<int>(s.k_begin), tile.k_length = static_cast<int>(s.k_length);
    tile.q_begin = static_cast<int>(s.q_begin);
    tile.band = diagonals(s.band);
    tile.shift = 0;
    if constexpr (C.variant == Variant::dropout)
      tile.shift = static_cast<int>((p.origin.column % core::kDropoutGroup + core::kDropoutGroup) %
                                    core::kDropoutGroup);
    Runs runs(visible_keys(p, s, task.head, tile.begin, tile.end));
    tile.run[0] = runs.next(C.block_k, tile.shift);
    tile.runs = runs;
    if constexpr (C.variant != Variant::plain) tile.options = head_options(p, s, tile.head);
  }
  return true;
}

// What a thread block does for its tile of queries. The sums and the statistics are in registers
// and belong to the kernel, so that the compiler keeps them apart from everything else.
template <QueriesConfig C>
struct QueryTileWork {
  static constexpr Engine E = C.engine;
  static constexpr ptx::Half16 kType = type_of(E);
  static constexpr int D = C.head_dim, kTiles = C.m_tiles, kChunk = C.chunk;
  static constexpr bool kUnaligned = C.variant != Variant::plain;
  static constexpr bool kEarly = C.variant == Variant::dropout;  // steps may begin before key 0
  using Tile = SharedTile<D>;
  using Scores = float[kTiles][kChunk / 8][4];

  const BackwardCall& a;
  const core::Problem& p;
  QueryTile& tile;
  std::uint32_t base, stages;  // of shared memory: Q and dO, then K and V of each stage
  const RowStatistics<kTiles>& rows;
  float (&grad_q)[kTiles][D / 8][4];
  const bool& full;                     // every query of the tile sees every key of the step
  int begin = 0, which = 0, stage = 0;  // the step: its first key, its run, the stage that holds its rows
  int next_begin = 0, next_which = 0;

  __device__ __forceinline__ int batch() const { return p.packed ? 0 : tile.sequence; }
  __device__ __forceinline__ std::uint32_t keys_at(int stage) const {
    return stages + stage * 2 * C.key_tile_bytes();
  }

  // The tile's rows of Q or dO.
  __device__ __forceinline__ void load_queries(std::uint32_t to, const core::View& view,
                                               std::int64_t columns) const {
    load_rows<D, C.block_q(), C.threads(), copies_async(E), kUnaligned>(
        Tile{to}, rows_of<C.variant>(view, batch(), tile.head, tile.q_begin, columns), tile.begin, tile.end);
  }

  // The rows of K and V of a step.
  __device__ __forceinline__ void load_keys(int begin, int stage) const {
    const int kv_head = static_cast<int>(p.kv_head(tile.head));
    const std::uint32_t to = keys_at(stage);
    load_rows<D, C.block_k, C.threads(), copies_async(E), kUnaligned, kEarly>(
        Tile{to}, rows_of<C.variant>(p.k, batch(), kv_head, tile.k_begin, p.qk_dim), begin, tile.k_length);
    load_rows<D, C.block_k, C.threads(), copies_async(E), kUnaligned, kEarly>(
        Tile{to + C.key_tile_bytes()}, rows_of<C.variant>(p.v, batch(), kv_head, tile.k_begin, p.v_dim),
        begin, tile.k_length);
  }

  // Finds the next step and begins to copy its rows.
  __device__ __forceinline__ void prefetch() {
    next_begin = begin - C.block_k, next_which = which;
    if (begin <= tile.run[which].first) {
      next_which = which ^ 1;
      if (threadIdx.x == 0) {
        Runs runs = tile.runs;
        tile.run[next_which] = runs.next(C.block_k, tile.shift);
        tile.runs = runs;
      }
      __syncthreads();
      next_begin = tile.run[next_which].begin;
    }
    if (tile.run[next_which].first < tile.run[next_which].last)
      load_keys(next_begin, C.stages > 1 ? stage ^ 1 : 0);
    commit_copies<E>();
  }

  // The keys of the step that count.
  __device__ __forceinline__ KeyStep step() const {
    return {begin, max(begin, tile.run[which].first), min(begin + C.block_k, tile.run[which].last)};
  }

  // One step: all warps, block_k keys.
  __device__ __forceinline__ void compute(const KeyStep& step) {
    const std::uint32_t k_tile = keys_at(stage);
#pragma unroll
    for (int column = 0; column < C.block_k; column += kChunk) {
      const int thread = ptx::opaque(static_cast<int>(threadIdx.x)), warp_row = thread / 32 * 16 * kTiles;
      const MatrixAddress by_row = row_operand(thread % 32), by_column = column_operand(thread % 32);
      const std::uint32_t own = base + Tile::offset(warp_row + by_row.row, by_row.chunk);
      const std::uint32_t streamed = k_tile + Tile::offset(column + by_column.row, by_column.chunk);
      Scores s, ds;
      issue_scores<E, D, true>(s, own, streamed);
      ptx::keep_apart();
      begin_grad<C.variant>(ds, rows);
      issue_scores<E, D, false>(ds, own + C.query_tile_bytes(), streamed + C.key_tile_bytes());
      const int row = tile.begin + warp_row, key = step.begin + column;
      bool bad = false;
      if (full) {
        differentiate_rows<C.variant, false, false>(s, ds, a, tile.options, rows, tile.band, step, row,
                                                    tile.end, key);
      } else {
        bad = differentiate_rows<C.variant, true, false>(s, ds, a, tile.options, rows, tile.band, step, row,
                                                         tile.end, key);
      }
      std::uint32_t packed[kTiles][kChunk / 16][4];
      pack_operands<kType>(packed, ds);
      if (C.stages > 1 && column == 0) prefetch();
      if (!full && __syncthreads_or(bad)) {
        clear_non_finite<kType, D, C.threads()>(k_tile, column, column + kChunk);
        __syncthreads();
      }
      if constexpr (C.variant != Variant::plain) ptx::keep_apart();
      issue_sums<E, D>(grad_q, packed, k_tile + Tile::offset(by_row.row, by_row.chunk), column);
    }
  }

  // dQ leaves through the room of Q.
  __device__ __forceinline__ void store(int warp_row) const {
    stage_rows<kType, D>(base, warp_row, 0, grad_q, a.gradient_scale());
    __syncthreads();
    const RowSource to =
        rows_of<C.variant>(p.grad_q, batch(), tile.head, tile.q_begin + tile.begin, p.qk_dim);
    store_rows<D>(base, const_cast<ptx::HalfBits*>(to.data), to.stride, 0, tile.end - tile.begin, to.columns,
                  to.aligned, static_cast<int>(threadIdx.x), C.threads());
  }
};

template <typename Config>
__global__ void __launch_bounds__(Config::value.threads(), Config::value.thread_blocks)
    backward_queries(const __grid_constant__ BackwardCall a) {
  constexpr QueriesConfig C = Config::value;
  using Work = QueryTileWork<C>;
  TESSERA_DYNAMIC_SHARED(unsigned char, 1024, shared);
  const core::Problem& p = a.problem;
  QueryTile& tile = *reinterpret_cast<QueryTile*>(shared + C.tile_bytes());
  if (!begin_query_tile<C>(a, tile)) return;
  __syncthreads();
  const std::uint32_t base = ptx::shared_address(shared);
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16 * C.m_tiles;
  RowStatistics<C.m_tiles> rows;
  float grad_q[C.m_tiles][C.head_dim / 8][4] = {};
  bool full = false;
  Work work{.a = a,
            .p = p,
            .tile = tile,
            .base = base,
            .stages = base + 2 * C.query_tile_bytes(),
            .rows = rows,
            .grad_q = grad_q,
            .full = full};
  work.load_queries(base, p.q, p.qk_dim);
  work.load_queries(base + C.query_tile_bytes(), p.grad_out, p.v_dim);
  if (tile.run[0].first < tile.run[0].last) work.load_keys(tile.run[0].begin, 0);
  commit_copies<C.engine>();
  rows.load(a, tile.head * a.blocks.per_head + QueryBlocks::first(p, core::sequence(p, tile.sequence)),
            tile.begin + warp_row, tile.end);
  work.begin = tile.run[0].begin;
  while (tile.run[work.which].first < tile.run[work.which].last) {
    wait_copies<C.engine>();
    __syncthreads();
    const KeyStep step = work.step();
    // A bias may hide keys (-inf), so a step with a bias counts as masked.
    full = (C.variant == Variant::plain || !a.features.has_bias) && step.last - step.first == C.block_k &&
           step.first >= tile.end - 1 + tile.band.low && step.last - 1 <= tile.begin + tile.band.high;
    work.compute(step);
    if constexpr (C.stages == 1) {
      __syncthreads();
      work.prefetch();
    }
    work.begin = work.next_begin, work.which = work.next_which;
    if constexpr (C.stages > 1) work.stage ^= 1;
  }
  wait_copies<C.engine>();
  __syncthreads();
  work.store(warp_row);
}

// The instance of a config, for instances().
inline constexpr auto kQueriesInstance = []<typename Config>(Config) {
  constexpr QueriesConfig C = Config::value;
  return Instance{.kernel = &backward_queries<Config>,
                  .head_dim = C.head_dim,
                  .variant = C.variant,
                  .block_q = C.block_q(),
                  .block_k = C.block_k,
                  .threads = C.threads(),
                  .shared_memory = C.tile_bytes() + static_cast<int>(sizeof(QueryTile))};
};

}  // namespace tessera::cuda::mma::backward
