// What the warps of the fused backward pass share: the plan of shared memory, and the exchange of
// scores.
//
// An exchange tile has a row for each key and a column for each query of the step, and is split
// like all tiles. Its powers of two belong to keys where it is the left operand of dV or dK, and to
// queries where it is that of dQ.
#pragma once

#include <cstdint>

#include "cuda/fp32/products.cuh"

namespace tessera::cuda::fp32 {

template <FusedConfig C>
struct FusedExchange {
  static constexpr int kBlock = FusedConfig::kBlock, kThreads = C.threads(), kRows = C.rows();
  static constexpr int kQueries = kBlock / C.parts;             // whose scores a warp computes
  static constexpr int kNTiles = kQueries / 8;                  // the same in n8 tiles
  static constexpr int kColumns = C.head_dim / C.parts;         // of dK and dV
  static constexpr int kQueryTiles = C.head_dim == 64 ? 1 : 2;  // of dQ: m16 tiles of a warp
  static constexpr int kSlices = C.warps() * kQueryTiles / 2;   // of dQ: slices of columns
  static constexpr int kSliceTiles = C.head_dim / kSlices / 8;  // n8 tiles of a slice
  using Tile = SharedTile32<C.head_dim>;
  using Exchange = SharedTile32<kBlock>;  // rows are keys, columns queries
  using Scores = float[1][kNTiles][4];
  using Split = SplitAccumulators<1, kNTiles>;
  using Totals = float[1][kColumns / 8][4];
  static_assert(C.warps() == 8 && kNTiles % 2 == 0 && (kSliceTiles == 2 || kSliceTiles == 4));
  using QuerySums = float[kQueryTiles][kSliceTiles][4];

  const std::uint32_t base;  // shared memory
  const int group, part;     // of this warp

  // K, V, Q and dO, then the exchange tiles; then the factors of all of them in the same order, LSE
  // and delta.
  static constexpr int kExchange = 2 * (kRows + kBlock) * Tile::kRowBytes;
  __device__ __forceinline__ Tile tile(int row) const {
    return {base + row * Tile::kRowBytes, base + C.tile_bytes() + row * 4};
  }
  __device__ __forceinline__ Tile k() const { return tile(0); }
  __device__ __forceinline__ Tile v() const { return tile(kRows); }
  __device__ __forceinline__ Tile q() const { return tile(2 * kRows); }
  __device__ __forceinline__ Tile grad_out() const { return tile(2 * kRows + kBlock); }
  static constexpr int kScoresForQueries = 0, kProbabilities = 1, kScoresForKeys = 2;
  __device__ __forceinline__ Exchange exchange(int which) const {
    constexpr int kFactors = C.tile_bytes() + 2 * (kRows + kBlock) * 4;
    return {base + kExchange + which * kRows * Exchange::kRowBytes,
            base + kFactors + (which == 0 ? 0 : C.groups * kBlock + (which - 1) * C.parts * kRows) * 4};
  }
  __device__ __forceinline__ std::uint32_t lse() const {
    return base + C.tile_bytes() + C.small_bytes() - 2 * kBlock * 4;
  }
  __device__ __forceinline__ std::uint32_t delta() const { return lse() + kBlock * 4; }

  // The factor of key `row` of the group and part `of_queries` of the queries.
  __device__ __forceinline__ std::uint32_t key_factor(int which, int of_queries, int row) const {
    return exchange(which).factors + (of_queries * kRows + 16 * group + row) * 4;
  }

  // Stores a pair of columns in an exchange tile: n8 tile n of this warp, rows lane / 4 + 8 h.
  __device__ __forceinline__ void store_split(Exchange to, int n, int h, std::uint32_t high,
                                              std::uint32_t low) const {
    const int lane = lane_index();
    const std::uint32_t first = to.base + Exchange::offset(16 * group + lane / 4, 0) + lane % 4 * 4;
    const std::uint32_t at = (first ^ ((part * kNTiles + n) << 5)) + h * 8 * Exchange::kRowBytes;
    ptx::store_shared(at, high);
    ptx::store_shared(at ^ 16, low);
  }

  // Stores the left operand of dV or dK, with powers by key.
  __device__ __forceinline__ void store_for_keys(const Scores& x, int which,
                                                 std::uint32_t query_factors) const {
    const int lane = lane_index();
    const Split split(x, 0, query_factors + part * kQueries * 4, lane);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
        store_split(exchange(which), n, h, split.high[0][n][h], split.low[0][n][h]);
      }
      if (lane % 4 == 0) {
        ptx::store_shared(key_factor(which, part, lane / 4 + 8 * h), __float_as_uint(split.factor[0][h]));
      }
    }
  }

  // Stores the left operand of dQ, with powers by query.
  __device__ __forceinline__ void store_for_queries(const Scores& y) const {
    const int lane = lane_index();
    float of_key[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) of_key[h] = load_float(k().factors + (16 * group + lane / 4 + 8 * h) * 4);
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
      float scale[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float largest = larger(y[0][n][c] * of_key[0], y[0][n][2 + c] * of_key[1]);
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
          largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, distance));
        }
        const RowPower power = RowPower::of(largest);
        scale[c] = power.scale;
        if (lane < 4) {
          const int query = part * kQueries + 8 * n + lane * 2 + c;
          ptx::store_shared(exchange(kScoresForQueries).factors + (group * kBlock + query) * 4,
                            __float_as_uint(power.factor));
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        std::uint32_t high, low;
        split_pair(y[0][n][2 * h] * of_key[h] * scale[0], y[0][n][2 * h + 1] * of_key[h] * scale[1], 1.0F,
                   high, low);
        store_split(exchange(kScoresForQueries), n, h, high, low);
      }
    }
  }

  // gradient += exchange tile * rows: dV from dO, or dK from Q. For this warp's columns.
  __device__ __forceinline__ void add_exchanged(Totals& gradient, int which, Tile rows, int lines) const {
    const int lane = lane_index();
    const MatrixAddress at = row_operand(lane);
    const Exchange from = exchange(which);
    const std::uint32_t first = ptx::opaque(from.base + Exchange::offset(16 * group + at.row, 2 * at.chunk));
#pragma unroll
    for (int of_queries = 0; of_queries < C.parts; ++of_queries) {
      Split split;
#pragma unroll
      for (int n = 0; n < kNTiles; n += 2) {
        std::uint32_t high[4], low[4];
        const std::uint32_t address = first ^ ((of_queries * kNTiles + n) << 5);
        ptx::load_matrix(high, address);
        ptx::load_matrix(low, address ^ 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          split.high[0][n + i / 2][i % 2] = high[i];
          split.low[0][n + i / 2][i % 2] = low[i];
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h)
        split.factor[0][h] = load_float(key_factor(which, of_queries, lane / 4 + 8 * h));
      const Tile b{rows.base + of_queries * kQueries * Tile::kRowBytes + part * kColumns * 4};
      accumulate_split(gradient, split, b, lines - part * kColumns / 32);
    }
  }

  // This warp's queries and columns of dQ.
  static __device__ __forceinline__ int slice() { return warp_index() % kSlices; }
  static __device__ __forceinline__ int first_query() {
    return kQueryTiles == 2 ? 0 : warp_index() / kSlices * 16;
  }

  // sum = dS K over all groups of keys but those to skip.
  template <typename Skip>
  __device__ __forceinline__ void multiply_keys(QuerySums& sum, Skip&& skip) const {
    const int lane = lane_index();
    const MatrixAddress at = column_operand(lane);
    const Exchange from = exchange(kScoresForQueries);
    std::uint32_t a_lane =
        ptx::opaque(from.base + (Exchange::offset(at.row, 2 * at.chunk) ^ (first_query() << 2)));
    std::uint32_t b_lane =
        ptx::opaque(k().base + (Tile::offset(lane & 15, lane >> 4) ^ ((slice() * kSliceTiles & 3) << 5)) +
                    slice() * kSliceTiles / 4 * 128);
    std::uint32_t factors = from.factors + (first_query() + lane / 4) * 4;
#pragma unroll
    for (int i = 0; i < kQueryTiles * kSliceTiles * 4; ++i)
      sum[i / 4 / kSliceTiles][i / 4 % kSliceTiles][i % 4] = 0;
#pragma unroll 1
    for (int keys = 0; keys < C.groups; ++keys) {
      if (!skip(keys)) {
        std::uint32_t high[kQueryTiles][4], low[kQueryTiles][4];
        float factor[kQueryTiles][2];
#pragma unroll
        for (int m = 0; m < kQueryTiles; ++m) {
          ptx::load_matrix_transposed(high[m], a_lane ^ (m << 6));
          ptx::load_matrix_transposed(low[m], a_lane ^ (m << 6) ^ 16);
#pragma unroll
          for (int h = 0; h < 2; ++h) factor[m][h] = load_float(factors + (16 * m + 8 * h) * 4);
        }
#pragma unroll
        for (int n = 0; n < kSliceTiles; n += 2) {
          std::uint32_t x[2][4];
          float product[kQueryTiles][2][4];
#pragma unroll
          for (int i = 0; i < 2; ++i) ptx::load_matrix_transposed(x[i], b_lane ^ ((n + i) << 5));
#pragma unroll
          for (int i = 0; i < 2 * kQueryTiles; ++i) {
            mma_halves_first(product[i / 2][i % 2], low[i / 2], x[i % 2][0], x[i % 2][1]);
          }
#pragma unroll
          for (int i = 0; i < 2 * kQueryTiles; ++i) {
            mma_halves(product[i / 2][i % 2], high[i / 2], x[i % 2][2], x[i % 2][3]);
          }
#pragma unroll
          for (int i = 0; i < 2 * kQueryTiles; ++i) {
            mma_halves(product[i / 2][i % 2], high[i / 2], x[i % 2][0], x[i % 2][1]);
          }
#pragma unroll
          for (int i = 0; i < 2 * kQueryTiles; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              float& y = sum[i / 2][n + i % 2][e];
              y = fmaf(product[i / 2][i % 2][e], factor[i / 2][e / 2], y);
            }
          }
        }
      }
      a_lane += 16 * Exchange::kRowBytes;
      b_lane += 16 * Tile::kRowBytes;
      factors += kBlock * 4;
    }
  }
};

}  // namespace tessera::cuda::fp32
