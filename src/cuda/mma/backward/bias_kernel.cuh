// The gradient of a bias. A thread block owns a tile of the bias, 64 rows x 64 keys. It sums dS
// over the sequences and heads that share the tile and, where one row of the bias is broadcast to
// all queries, over blocks of queries. Every sum has one owner and a fixed order, and no temporary
// memory is needed.
//
// Only S and dP are computed. Q, K, dO and V pass through shared memory 64 columns of head_dim at a
// time, so one instance supports every head_dim. Traffic: Q, K, dO and V of the tile once per
// sequence and head.
#pragma once

#include "cuda/common/instances.h"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/mma/backward/query_kernel.cuh"

namespace tessera::cuda::mma::backward {

inline constexpr int kBiasTile = 64, kBiasWarps = 4, kBiasThreads = kBiasWarps * 32;

// Adds the product of 16 queries per warp and 64 keys over all of head_dim to `out`.
template <Engine E>
__device__ __forceinline__ void issue_scores_in_parts(float (&out)[1][8][4], std::uint32_t shared,
                                                      const RowSource& own, int row, int row_end,
                                                      const RowSource& streamed, int key, int key_end) {
  using Tile = SharedTile<64>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kBytes = kBiasTile * Tile::kRowBytes;
  auto part = [](const RowSource& from, int column) {
    return RowSource{from.data + column, from.stride, from.columns - column, from.aligned};
  };
  for (int column = 0; column < own.columns; column += 64) {
    __syncthreads();  // all warps are done with the part before
    load_rows<64, kBiasTile, kBiasThreads, copies_async(E), true>(Tile{shared}, part(own, column), row,
                                                                  row_end);
    load_rows<64, kBiasTile, kBiasThreads, copies_async(E), true>(Tile{shared + kBytes},
                                                                  part(streamed, column), key, key_end);
    commit_copies<E>();
    wait_copies<E>();
    __syncthreads();
    const MatrixAddress by_row = row_operand(lane), by_column = column_operand(lane);
    issue_scores<E, 64, false>(out, shared + Tile::offset(warp * 16 + by_row.row, by_row.chunk),
                               shared + kBytes + Tile::offset(by_column.row, by_column.chunk));
  }
}

// What a thread block knows about its tile of the bias and the current head. In shared memory,
// because registers are full.
struct BiasTile {
  int batch, head;         // of the bias
  int row_begin, row_end;  // of the bias
  int key_begin, key_end;
  core::Sequence sequence;
  Diagonals band;
  std::int64_t first_block;
  HeadOptions options;
};

template <typename Config>
__global__ void __launch_bounds__(kBiasThreads, 1) backward_bias(const __grid_constant__ BackwardCall a) {
  constexpr Engine E = Config::value.engine;
  constexpr Variant V = Config::value.variant;
  using Tiles = unsigned char[2 * kBiasTile * SharedTile<64>::kRowBytes];
  Tiles& shared = ptx::static_shared<Tiles, Config, 1024>();
  BiasTile& tile = ptx::static_shared<BiasTile, Config, 16>();
  const core::Problem& p = a.problem;
  const std::uint32_t base = ptx::shared_address(shared);
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16, lane = static_cast<int>(threadIdx.x) % 32;
  const bool all_rows = p.bias_rows == 1;
  if (threadIdx.x == 0) {  // no tile crosses a block of the mask
    const core::Tiling rows{all_rows ? 1 : p.bias_rows, kBiasTile,
                            p.blocks && !all_rows ? p.blocks.block_q : 0};
    const core::Tiling keys{p.k_length, kBiasTile, p.blocks ? p.blocks.block_k : 0};
    std::int64_t index = blockIdx.x;
    const core::Interval own_keys = keys[index % keys.count()];
    index /= keys.count();
    const core::Interval own_rows = rows[index % rows.count()];
    index /= rows.count();
    tile.key_begin = static_cast<int>(own_keys.begin), tile.key_end = static_cast<int>(own_keys.end);
    tile.row_begin = static_cast<int>(own_rows.begin), tile.row_end = static_cast<int>(own_rows.end);
    tile.head = static_cast<int>(index % p.bias_heads), tile.batch = static_cast<int>(index / p.bias_heads);
  }
  __syncthreads();

  float sums[1][8][4] = {};
  // dS of one block of queries of one head.
  auto add_block = [&](int head, int row, int row_end) {
    const core::Sequence& s = tile.sequence;
    const int key = tile.key_begin, key_end = min(tile.key_end, static_cast<int>(s.k_length));
    if (key >= key_end || row >= row_end || key > row_end - 1 + tile.band.high ||
        key_end - 1 < row + tile.band.low)
      return;
    if (!core::keeps_block(p.blocks, head, row, key)) return;
    auto query_rows = [&](const core::View& view, std::int64_t dim) {
      return rows_of<Variant::featured>(view, s.tensor_batch, head, s.q_begin, dim);
    };
    auto key_rows = [&](const core::View& view, std::int64_t dim) {
      return rows_of<Variant::featured>(view, s.tensor_batch, static_cast<int>(p.kv_head(head)), s.k_begin,
                                        dim);
    };
    RowStatistics<1> rows;
    rows.load(a, head * a.blocks.per_head + tile.first_block, row + warp_row, row_end);
    float score[1][8][4] = {}, ds[1][8][4];
    begin_grad<V>(ds, rows);
    issue_scores_in_parts<E>(score, base, query_rows(p.q, p.qk_dim), row, row_end, key_rows(p.k, p.qk_dim),
                             key, key_end);
    issue_scores_in_parts<E>(ds, base, query_rows(p.grad_out, p.v_dim), row, row_end, key_rows(p.v, p.v_dim),
                             key, key_end);
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // 32 columns at a time, as the random generator counts
      float s_half[1][4][4], ds_half[1][4][4];
#pragma unroll
      for (int x = 0; x < 16; ++x) {
        s_half[0][x / 4][x % 4] = score[0][half * 4 + x / 4][x % 4];
        ds_half[0][x / 4][x % 4] = ds[0][half * 4 + x / 4][x % 4];
      }
      differentiate_rows<V, true, true>(s_half, ds_half, a, tile.options, rows, tile.band,
                                        KeyStep{key, key, key_end}, row + warp_row, row_end, key + half * 32);
#pragma unroll
      for (int x = 0; x < 16; ++x) sums[0][half * 4 + x / 4][x % 4] += ds_half[0][x / 4][x % 4];
    }
  };
  for (int b = tile.batch; b < p.batch; b += static_cast<int>(p.bias_batch)) {
    for (int head = tile.head; head < p.q_heads; head += static_cast<int>(p.bias_heads)) {
      __syncthreads();
      if (threadIdx.x == 0) {
        tile.sequence = core::sequence(p, b);
        tile.band = diagonals(tile.sequence.band);
        tile.first_block = QueryBlocks::first(p, tile.sequence);
        tile.options = head_options(p, tile.sequence, head);
      }
      __syncthreads();
      if (!all_rows) {
        add_block(head, tile.row_begin, min(tile.row_end, static_cast<int>(tile.sequence.q_length)));
        continue;
      }
      for (int t = 0;; ++t) {
        const core::Tiling tiling{tile.sequence.q_length, kBiasTile, p.blocks ? p.blocks.block_q : 0};
        if (t >= tiling.count()) break;
        const core::Interval rows = tiling[t];
        add_block(head, static_cast<int>(rows.begin), static_cast<int>(rows.end));
      }
    }
  }

  auto store = [&](std::int64_t row, std::int64_t key, float x) {
    x *= a.features.keep_scale;
    if (p.bias_dtype == DType::fp32) p.grad_bias.row<float>(tile.batch, tile.head, row)[key] = x;
    else
      p.grad_bias.row<ptx::HalfBits>(tile.batch, tile.head, row)[key] =
          static_cast<ptx::HalfBits>(ptx::pack<type_of(E)>(x, 0));
  };
  if (all_rows) {  // the sum over the rows, in a fixed order: within a warp, then over the warps
    __syncthreads();
    auto* parts = reinterpret_cast<float*>(shared);
#pragma unroll
    for (int x = 0; x < 16; ++x) {
      const int j = x / 2, e = x % 2;
      float sum = sums[0][j][e] + sums[0][j][e + 2];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0U, sum, step);
      if (lane < 4) parts[warp_row / 16 * kBiasTile + j * 8 + lane * 2 + e] = sum;
    }
    __syncthreads();
    const int column = static_cast<int>(threadIdx.x);
    if (column >= tile.key_end - tile.key_begin) return;
    float sum = 0;
    for (int warp = 0; warp < kBiasWarps; ++warp) sum += parts[warp * kBiasTile + column];
    store(0, tile.key_begin + column, sum);
    return;
  }
#pragma unroll
  for (int x = 0; x < 32; ++x) {
    const int row = tile.row_begin + warp_row + AccumulatorFragment::row(lane, x % 4);
    const int key = tile.key_begin + x / 4 * 8 + AccumulatorFragment::column(lane, x % 4);
    if (row < tile.row_end && key < tile.key_end) store(row, key, sums[0][x / 4][x % 4]);
  }
}

// The instance of a config, for instances().
inline constexpr auto kBiasInstance = []<typename Config>(Config) {
  return Instance{.kernel = &backward_bias<Config>,
                  .head_dim = 256,
                  .variant = Config::value.variant,
                  .block_q = kBiasTile,
                  .block_k = kBiasTile,
                  .threads = kBiasThreads};
};

}  // namespace tessera::cuda::mma::backward
