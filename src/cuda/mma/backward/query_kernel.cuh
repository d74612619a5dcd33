// dQ without reductions, for calls that ask for it alone and for deterministic mode with a block mask: a thread block owns a
// tile of queries of one head and streams the keys they see. A warp owns 16 * m_tiles rows with all columns of dQ in
// registers; S and dP are computed a second time where dK or dV is asked for, too.
//
//   S = Q K^T, dP = dO V^T   ->   dS = P o (dP - delta)   ->   dQ += dS K
//
// Traffic: Q, dO, statistics and dQ once, K and V once per tile of queries.
#pragma once

#include "cuda/common/backward_steps.cuh"

namespace tessera::cuda::flash2 {

struct QueriesConfig {
  Engine engine = Engine::sm80_bf16;
  Variant variant = Variant::plain;
  int head_dim = 64;
  int m_tiles = 2;
  int warps = 4;
  int block_k = 64;
  int chunk = 32;  // keys whose scores a warp holds at a time
  int stages = 2;
  int thread_blocks = 2;

  constexpr int block_q() const { return 16 * m_tiles * warps; }
  constexpr int threads() const { return 32 * warps; }
  constexpr int query_tile_bytes() const { return block_q() * head_dim * 2; }
  constexpr int key_tile_bytes() const { return block_k * head_dim * 2; }
  constexpr int tile_bytes() const { return 2 * query_tile_bytes() + 2 * stages * key_tile_bytes(); }
};

// A step over keys, of which [first, last) count.
using KeyStep = Run;

// What a thread block knows about its tile. In shared memory: registers are full.
struct QueryTile {
  int sequence, head, begin, end;
  int k_begin, k_length, q_begin;
  core::Diagonals band;
  int shift;  // of the steps: they begin where a call of the random generator does
  Runs runs;
  Run run[2];  // the one at hand and the one before or after
  HeadOptions options;
};

// The statistics of a lane's rows.
template <int Tiles>
struct RowStatistics {
  float lse[Tiles][2], delta[Tiles][2];

  __device__ __forceinline__ void load(const BackwardArguments& a, std::int64_t first_block, int row,
                                       int limit) {
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

// Scores of 16 * Tiles queries x 8 * Blocks keys become dS, in `dp`, which holds dP - delta, with dropout dP.
// `row` and `column` are the first query and key. Masked: keys outside the range of a row are not seen; returns then
// whether anything was not finite. BeforeCap: dS as a bias gets it.
template <Variant V, bool Masked, bool BeforeCap, int Tiles, int Blocks>
__device__ __forceinline__ bool differentiate_rows(float (&s)[Tiles][Blocks][4],
                                                   float (&dp)[Tiles][Blocks][4], const BackwardArguments& a,
                                                   const HeadOptions& options,
                                                   const RowStatistics<Tiles>& rows, core::Diagonals band,
                                                   const KeyStep& step, int row, int row_end, int column) {
  constexpr bool kFeatured = V != Variant::plain, kDropout = V == Variant::dropout;
  const int lane = opaque(static_cast<int>(threadIdx.x)) % 32;
  float check = 0;  // stays 0 while everything is finite
#pragma unroll
  for (int r = 0; r < 2 * Tiles; ++r) {
    const int m = r / 2, i = row + r * 8 + lane / 4;
    const int first = max(step.first, i + band.low), last = min(step.last, i + band.high + 1);
    const SeenRange range = seen_range(first - column, (i < row_end ? last : first) - column);
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
        bool seen = true;
        if constexpr (Masked) {
          seen = range(at);
          check = fmaf(score, 0.0F, fmaf(grad, 0.0F, check));
        }
        if constexpr (kDropout) grad = (kept >> (2 * j + x) & 1 ? grad : 0.0F) - rows.delta[m][r % 2];
        float exponent;
        if constexpr (kFeatured) {
          const float value =
              featured_score<BeforeCap>(a.problem, a.features, options, score, grad, i, column + at, seen);
          if (value == -INFINITY) seen = false;  // hidden by its bias
          exponent = value - rows.lse[m][r % 2];
        } else {
          exponent = fmaf(score, a.features.scale_log2, -rows.lse[m][r % 2]);
        }
        grad *= ptx::exp2(exponent);
        if constexpr (Masked) grad = seen ? grad : 0.0F;
      }
    }
  }
  return Masked && !(check == 0);
}

// Sums that begin with -delta, so that dP - delta comes out of the product; with dropout, for registers, with 0.
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

template <typename Config>
__global__ void __launch_bounds__(Config::value.threads(), Config::value.thread_blocks)
    backward_queries(const __grid_constant__ BackwardArguments a) {
  constexpr QueriesConfig C = Config::value;
  constexpr int D = C.head_dim, kTiles = C.m_tiles, kChunk = C.chunk;
  constexpr bool kUnaligned = C.variant != Variant::plain;
  constexpr bool kEarly = C.variant == Variant::dropout;  // steps may begin before key 0
  constexpr Engine E = C.engine;
  constexpr Half16 kType = type_of(E);
  using Tile = SharedTile<D>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const core::Problem& p = a.problem;
  QueryTile& tile = *reinterpret_cast<QueryTile*>(shared + C.tile_bytes());
  {
    const auto task = a.order[blockIdx.x];
    const core::Sequence s = core::sequence(p, task.sequence);
    const core::Tiling tiling{s.q_length, C.block_q(), p.blocks ? p.blocks.block_q : 0};
    if (task.tile >= tiling.count()) return;
    if (threadIdx.x == 0) {
      const core::Tile rows = tiling[task.tile];
      tile.sequence = static_cast<int>(task.sequence), tile.head = static_cast<int>(task.head);
      tile.begin = static_cast<int>(rows.begin), tile.end = static_cast<int>(rows.end);
      tile.k_begin = static_cast<int>(s.k_begin), tile.k_length = static_cast<int>(s.k_length);
      tile.q_begin = static_cast<int>(s.q_begin);
      tile.band = core::diagonals(s.band);
      tile.shift = 0;
      if constexpr (C.variant == Variant::dropout)
        tile.shift = static_cast<int>((p.origin.column % core::kDropoutGroup + core::kDropoutGroup) %
                                      core::kDropoutGroup);
      Runs runs(core::visible_keys(p, s, task.head, tile.begin, tile.end));
      tile.run[0] = runs.next(C.block_k, tile.shift);
      tile.runs = runs;
      if constexpr (kUnaligned) tile.options = head_options(p, s, tile.head);
    }
    __syncthreads();
  }
  const std::uint32_t base = ptx::shared_address(shared), stages = base + 2 * C.query_tile_bytes();
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16 * kTiles;
  auto batch = [&] { return p.packed ? 0 : tile.sequence; };
  auto load_queries = [&](std::uint32_t to, const core::View& view, std::int64_t columns) {
    load_rows<D, C.block_q(), C.threads(), copies_async(E), kUnaligned>(
        SharedTile<D>{to}, rows_of<C.variant>(view, batch(), tile.head, tile.q_begin, columns), tile.begin,
        tile.end);
  };
  auto load_keys = [&](int begin, int stage) {
    const int kv_head = static_cast<int>(p.kv_head(tile.head));
    const std::uint32_t to = stages + stage * 2 * C.key_tile_bytes();
    load_rows<D, C.block_k, C.threads(), copies_async(E), kUnaligned, kEarly>(
        SharedTile<D>{to}, rows_of<C.variant>(p.k, batch(), kv_head, tile.k_begin, p.qk_dim), begin,
        tile.k_length);
    load_rows<D, C.block_k, C.threads(), copies_async(E), kUnaligned, kEarly>(
        SharedTile<D>{to + C.key_tile_bytes()},
        rows_of<C.variant>(p.v, batch(), kv_head, tile.k_begin, p.v_dim), begin, tile.k_length);
  };
  load_queries(base, p.q, p.qk_dim);
  load_queries(base + C.query_tile_bytes(), p.grad_out, p.v_dim);
  if (tile.run[0].first < tile.run[0].last) load_keys(tile.run[0].begin, 0);
  commit_copies<E>();

  RowStatistics<kTiles> rows;
  rows.load(a, tile.head * a.blocks.per_head + QueryBlocks::first(p, core::sequence(p, tile.sequence)),
            tile.begin + warp_row, tile.end);
  float grad_q[kTiles][D / 8][4] = {};
  int begin = tile.run[0].begin, which = 0,
      stage = 0;  // the step: its first key, which of the runs, its copy
  int next_begin = 0, next_which = 0;
  // Finds the next step and begins to copy it.
  auto prefetch = [&] {
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
  };
  while (tile.run[which].first < tile.run[which].last) {
    wait_copies<E>();
    __syncthreads();
    const KeyStep step{begin, max(begin, tile.run[which].first),
                       min(begin + C.block_k, tile.run[which].last)};
    const std::uint32_t k_tile = stages + stage * 2 * C.key_tile_bytes();
    // A bias may hide keys (-inf): its steps are taken like those that a mask cuts.
    const bool full = (C.variant == Variant::plain || !a.features.has_bias) &&
                      step.last - step.first == C.block_k && step.first >= tile.end - 1 + tile.band.low &&
                      step.last - 1 <= tile.begin + tile.band.high;
#pragma unroll
    for (int column = 0; column < C.block_k; column += kChunk) {
      const int thread = opaque(static_cast<int>(threadIdx.x)), warp_row = thread / 32 * 16 * kTiles;
      const MatrixAddress by_row = row_operand(thread % 32), by_column = column_operand(thread % 32);
      const std::uint32_t own = base + Tile::offset(warp_row + by_row.row, by_row.chunk);
      const std::uint32_t streamed = k_tile + Tile::offset(column + by_column.row, by_column.chunk);
      float s[kTiles][kChunk / 8][4], ds[kTiles][kChunk / 8][4];
      issue_scores<E, D, true>(s, own, streamed);
      keep_apart();
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
      // Zeros of a masked step must not meet what is not finite.
      if (!full && __syncthreads_or(bad)) {
        clear_not_finite<kType, D, C.threads()>(k_tile, column, column + kChunk);
        __syncthreads();
      }
      if constexpr (C.variant != Variant::plain) keep_apart();
      issue_sums<E, D>(grad_q, packed, k_tile + Tile::offset(by_row.row, by_row.chunk), column);
    }
    if constexpr (C.stages == 1) {
      __syncthreads();
      prefetch();
    }
    begin = next_begin, which = next_which;
    if constexpr (C.stages > 1) stage ^= 1;
  }

  wait_copies<E>();
  __syncthreads();
  stage_rows<kType, D>(base, warp_row, 0, grad_q, a.gradient_scale());
  __syncthreads();
  const RowSource to = rows_of<C.variant>(p.grad_q, batch(), tile.head, tile.q_begin + tile.begin, p.qk_dim);
  store_rows<D>(base, const_cast<std::uint16_t*>(to.data), to.stride, 0, tile.end - tile.begin, to.columns,
                to.aligned, static_cast<int>(threadIdx.x), C.threads());
}

template <QueriesConfig C>
constexpr BackwardKernel queries_kernel() {
  return {&backward_queries<Use<C>>,
          C.head_dim,
          C.variant,
          C.block_q(),
          C.block_k,
          C.threads(),
          C.tile_bytes() + static_cast<int>(sizeof(QueryTile))};
}

}  // namespace tessera::cuda::flash2
