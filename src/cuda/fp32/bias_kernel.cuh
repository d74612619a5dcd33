// The gradient of a bias in fp32. A thread block owns a tile of the gradient and sums dS of
// everything that was broadcast from it: batch entries, heads, and all queries if the bias has one
// row. There are no atomics, so the order of the sum is fixed.
#pragma once

#include <cstdint>

#include "core/visibility.h"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/fp32/backward_kernel.cuh"

namespace tessera::cuda::fp32 {

template <BiasGradientConfig C>
struct BiasGradient {
  static constexpr int kNTiles = C.block_k / 8, kThreads = C.threads();
  using Tile = SharedTile32<C.head_dim>;
  using Scores = float[1][kNTiles][4];

  const core::Problem& p;
  const Constants& constants;
  const float* const all_delta;
  const Tile q, grad_out, k, v;
  const std::uint32_t column_sums;  // [warp][block_k]
  Scores sums = {};

  template <int Rows>
  __device__ __forceinline__ void load(Tile to, const RowSource32& from, int row, int limit) const {
    load_rows<C.head_dim, Rows, kThreads, C.async(), true>(to, from, row, limit);
    if constexpr (C.async()) ptx::commit_copies();
  }

  // Adds dS of queries [begin, begin + block_q) of one head and of the keys in shared memory.
  __device__ __forceinline__ void add(const core::Sequence& s, int head, int begin, int key) {
    const int lane = lane_index(), own = begin + warp_index() * 16;
    const int queries = static_cast<int>(s.q_length), keys = static_cast<int>(s.k_length);
    const Diagonals band = diagonals(s.band);
    if (none_in_band(band, own, own + 16, key, key + C.block_k)) return;
    const Dropout dropout(p, s, head);
    // Bit 4 n + e of each. A loop that is not unrolled, because divisions and random bits are long.
    std::uint32_t seen = 0, kept = 0xFFFFFFFFU;
#pragma unroll 1
    for (int i = 0; i < 4 * kNTiles; ++i) {
      const int row = own + AccumulatorFragment::row(lane, i % 4);
      const int column = key + i / 4 * 8 + AccumulatorFragment::column(lane, i % 4);
      if (row >= queries || !Visible{band, 0, keys}.key(row, column)) continue;
      if (!core::keeps_block(p.blocks, head, row, column)) continue;
      seen |= 1U << i;
      if (p.dropout && !dropout.kept_at(row, column)) kept &= ~(1U << i);
    }
    Scores x, y;
    multiply_rows<C.multiply>(x, q, own - begin, k, lines_of(p.qk_dim));
    multiply_rows<C.multiply>(y, grad_out, own - begin, v, lines_of(p.v_dim));
    const ScoreTerms<true> terms(p, constants, s, head);
    const float* delta = all_delta + delta_offset(p, s, head);
    const float keep_scale = p.dropout ? constants.keep_scale : 1.0F;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = own + lane / 4 + 8 * h;
      if (row >= queries) continue;
      const float row_lse = usable_lse(*p.lse.row<const float>(s.tensor_batch, head, s.q_begin + row));
      const float row_delta = delta[row];
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = key + 8 * n + lane % 4 * 2 + c;
          const int bit = 4 * n + 2 * h + c;
          if ((seen >> bit & 1) == 0) continue;
          float derivative;
          const float score = terms.score(x[0][n][2 * h + c], row, column, derivative);
          if (score == -kInfinity) continue;  // hidden by its bias
          const float gradient = (kept >> bit & 1) != 0 ? y[0][n][2 * h + c] * keep_scale : 0.0F;
          sums[0][n][2 * h + c] += exp_difference(score, row_lse) * (gradient - row_delta);
        }
      }
    }
  }

  __device__ __forceinline__ void run() {
    const unsigned k_tiles = static_cast<unsigned>((p.k_length + C.block_k - 1) / C.block_k);
    const bool one_row = p.bias_rows == 1;
    const unsigned q_tiles =
        one_row ? 1 : static_cast<unsigned>((p.q_length + C.block_q() - 1) / C.block_q());
    unsigned index = blockIdx.x;
    const int key = static_cast<int>(index % k_tiles) * C.block_k;
    index /= k_tiles;
    const int tile_begin = static_cast<int>(index % q_tiles) * C.block_q();
    index /= q_tiles;
    const unsigned bias_heads = static_cast<unsigned>(p.bias_heads);
    const int bias_head = static_cast<int>(index % bias_heads),
              bias_batch = static_cast<int>(index / bias_heads);

    const int first_batch = p.bias_batch == 1 ? 0 : bias_batch,
              first_head = p.bias_heads == 1 ? 0 : bias_head;
    const int last_batch = p.bias_batch == 1 ? static_cast<int>(p.batch) : bias_batch + 1;
    const int last_head = p.bias_heads == 1 ? static_cast<int>(p.q_heads) : bias_head + 1;
#pragma unroll 1
    for (int batch = first_batch; batch < last_batch; ++batch) {
      const core::Sequence s = core::sequence(p, batch);
      if (key >= s.k_length || tile_begin >= s.q_length) continue;  // else K and V would arrive for nobody
      const int queries = static_cast<int>(s.q_length), keys = static_cast<int>(s.k_length);
      const int q_end = one_row || tile_begin + C.block_q() > queries ? queries : tile_begin + C.block_q();
#pragma unroll 1
      for (int head = first_head; head < last_head; ++head) {
        const int kv_head = kv_head_of(p, head);
        __syncthreads();
        load<C.block_k>(k, rows_of(p.k, s.tensor_batch, kv_head, s.k_begin, p.qk_dim, constants.aligned), key,
                        keys);
        load<C.block_k>(v, rows_of(p.v, s.tensor_batch, kv_head, s.k_begin, p.v_dim, constants.aligned), key,
                        keys);
#pragma unroll 1
        for (int begin = tile_begin; begin < q_end; begin += C.block_q()) {
          __syncthreads();
          load<C.block_q()>(q, rows_of(p.q, s.tensor_batch, head, s.q_begin, p.qk_dim, constants.aligned),
                            begin, queries);
          load<C.block_q()>(grad_out,
                            rows_of(p.grad_out, s.tensor_batch, head, s.q_begin, p.v_dim, constants.aligned),
                            begin, queries);
          if constexpr (C.async()) ptx::wait_copies<0>();
          if (begin == tile_begin) {
            prepare_rows<C.multiply, C.block_k, kThreads>(k, false);
            prepare_rows<C.multiply, C.block_k, kThreads>(v, false);
          }
          prepare_rows<C.multiply, C.block_q(), kThreads>(q, false);
          prepare_rows<C.multiply, C.block_q(), kThreads>(grad_out, false);
          __syncthreads();
          add(s, head, begin, key);
        }
      }
    }
    if constexpr (C.async()) ptx::wait_copies<0>();
    if (one_row) {
      store_row(bias_batch, bias_head, key);
    } else {
      store_tile(bias_batch, bias_head, tile_begin, key);
    }
  }

  __device__ __forceinline__ void store_tile(int batch, int head, int begin, int key) const {
    const int lane = lane_index();
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = begin + warp_index() * 16 + AccumulatorFragment::row(lane, e);
        const int column = key + 8 * n + AccumulatorFragment::column(lane, e);
        if (row < p.q_length && column < p.k_length)
          p.grad_bias.row<float>(batch, head, row)[column] = sums[0][n][e];
      }
    }
  }

  // One row for all queries: sums the rows of the tile, over lanes first, then over warps.
  __device__ __forceinline__ void store_row(int batch, int head, int key) const {
    const int lane = lane_index();
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float x = sums[0][n][c] + sums[0][n][2 + c];
        x += __shfl_xor_sync(0xFFFFFFFFU, x, 4);
        x += __shfl_xor_sync(0xFFFFFFFFU, x, 8);
        x += __shfl_xor_sync(0xFFFFFFFFU, x, 16);
        if (lane < 4) {
          ptx::store_shared(column_sums + (warp_index() * C.block_k + 8 * n + lane * 2 + c) * 4,
                            __float_as_uint(x));
        }
      }
    }
    __syncthreads();
    const int column = static_cast<int>(threadIdx.x);
    if (column >= C.block_k || key + column >= p.k_length) return;
    float x = 0;
    for (int warp = 0; warp < C.warps; ++warp) x += load_float(column_sums + (warp * C.block_k + column) * 4);
    p.grad_bias.row<float>(batch, head, 0)[key + column] = x;
  }
};

template <typename Config>
__global__ void __launch_bounds__(Config::value.threads(), 1)
    bias_gradient_kernel(const __grid_constant__ BiasGradientArguments a) {
  constexpr BiasGradientConfig C = Config::value;
  const std::uint32_t base = ptx::dynamic_shared_address<128>();
  using Tile = SharedTile32<C.head_dim>;
  constexpr std::uint32_t kFactors = 2 * (C.block_q() + C.block_k) * Tile::kRowBytes;
  constexpr std::uint32_t kSums = kFactors + factors_per_row(C.multiply) * 2 * (C.block_q() + C.block_k) * 4;
  auto tile = [base](int row) {  // from a row of Q, dO, K and V
    return Tile{base + row * Tile::kRowBytes, base + kFactors + row * 4};
  };
  BiasGradient<C> gradient{a.problem,
                           a.constants,
                           a.delta,
                           tile(0),
                           tile(C.block_q()),
                           tile(2 * C.block_q()),
                           tile(2 * C.block_q() + C.block_k),
                           base + kSums};
  gradient.run();
}

}  // namespace tessera::cuda::fp32
