// The two products of attention in fp32, for a warp: rows times rows (scores), and probabilities times rows.
//
// Both multiplications leave their sums in the same registers, the m16n8 accumulators of ptx/mma.cuh, so that what
// stands between the products is written once.
//
// Multiply::tf32. A number is the sum of two TF32 numbers (ptx/mma_tf32.cuh); a product is high * high + high * low +
// low * high, and low * low, at most 2^-22 of it, is left out. The tensor cores cut off what does not fit when they add, an
// error that always has the same sign: so the small products have sums of their own, which join the large ones in the end,
// and no sum is longer than one step: what lasts over the steps is added by ordinary, rounded additions.
#pragma once

#include <cstdint>

#include "cuda/flash2_fp32/config.h"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/mma_tf32.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/shared_tile32.cuh"

namespace tessera::cuda::fp32 {

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / 32; }

// How many columns of a row times a row the tensor cores add up before a rounded addition takes over.
inline constexpr int kLongestSum = 128;

// Groups of 32 columns that hold `columns`.
__device__ __forceinline__ int lines_of(std::int64_t columns) {
  return (static_cast<int>(columns) + 31) / 32;
}

template <int MTiles, int NTiles>
__device__ __forceinline__ void clear(float (&x)[MTiles][NTiles][4]) {
#pragma unroll
  for (int m = 0; m < MTiles; ++m) {
#pragma unroll
    for (int n = 0; n < NTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[m][n][e] = 0;
    }
  }
}

template <int MTiles, int NTiles>
__device__ __forceinline__ void copy(float (&x)[MTiles][NTiles][4], const float (&y)[MTiles][NTiles][4]) {
#pragma unroll
  for (int m = 0; m < MTiles; ++m) {
#pragma unroll
    for (int n = 0; n < NTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[m][n][e] = y[m][n][e];
    }
  }
}

template <int MTiles, int NTiles>
__device__ __forceinline__ void add(float (&x)[MTiles][NTiles][4], const float (&y)[MTiles][NTiles][4]) {
#pragma unroll
  for (int m = 0; m < MTiles; ++m) {
#pragma unroll
    for (int n = 0; n < NTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[m][n][e] += y[m][n][e];
    }
  }
}

// s = a b^T: rows [a_row, a_row + 16 MTiles) of `a`, rows [0, 8 NTiles) of `b`, of which the first `lines` groups of 32
// columns are not zero.
template <Multiply M, int Dim, int MTiles, int NTiles>
__device__ __forceinline__ void multiply_rows(float (&s)[MTiles][NTiles][4], SharedTile32<Dim> a, int a_row,
                                              SharedTile32<Dim> b, int lines) {
  using Tile = SharedTile32<Dim>;
  const int lane = lane_index();
  if constexpr (M == Multiply::tf32) {
    static_assert(NTiles % 2 == 0);
    const MatrixAddress a_at = row_operand(lane), b_at = column_operand(lane);
    const std::uint32_t a_lane = here(a.base + Tile::offset(a_row + a_at.row, a_at.chunk));
    const std::uint32_t b_lane = here(b.base + Tile::offset(b_at.row, b_at.chunk));
    float small[MTiles][NTiles][4] = {}, large[MTiles][NTiles][4] = {};
    if constexpr (Dim > kLongestSum) clear(s);
#pragma unroll 1
    for (int line = 0; line < lines; ++line) {  // 128 bytes: four steps of eight columns
      if (Dim > kLongestSum && line == kLongestSum / 32) {
        add(s, large);
        clear(large);
      }
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const std::uint32_t at = line * 128;
        std::uint32_t a_high[MTiles][4], a_low[MTiles][4];
#pragma unroll
        for (int m = 0; m < MTiles; ++m) {
          std::uint32_t x[4];
          ptx::load_matrix(x, (a_lane ^ (step << 5)) + at + m * 16 * Tile::kRowBytes);
#pragma unroll
          for (int i = 0; i < 4; ++i) ptx::split_tf32(__uint_as_float(x[i]), a_high[m][i], a_low[m][i]);
        }
#pragma unroll
        for (int n = 0; n < NTiles; n += 2) {
          std::uint32_t x[4], high[4], low[4];
          ptx::load_matrix(x, (b_lane ^ (step << 5)) + at + n * 8 * Tile::kRowBytes);
#pragma unroll
          for (int i = 0; i < 4; ++i) ptx::split_tf32(__uint_as_float(x[i]), high[i], low[i]);
#pragma unroll
          for (int y = 0; y < 2; ++y) {
#pragma unroll
            for (int m = 0; m < MTiles; ++m) {
              ptx::mma_tf32(small[m][n + y], a_low[m], high[2 * y], high[2 * y + 1]);
            }
          }
#pragma unroll
          for (int y = 0; y < 2; ++y) {
#pragma unroll
            for (int m = 0; m < MTiles; ++m) {
              ptx::mma_tf32(large[m][n + y], a_high[m], high[2 * y], high[2 * y + 1]);
            }
          }
#pragma unroll
          for (int y = 0; y < 2; ++y) {
#pragma unroll
            for (int m = 0; m < MTiles; ++m) {
              ptx::mma_tf32(small[m][n + y], a_high[m], low[2 * y], low[2 * y + 1]);
            }
          }
        }
      }
    }
    add(large, small);
    if constexpr (Dim > kLongestSum) {
      add(s, large);
    } else {
      copy(s, large);
    }
  } else {
    clear(s);
    const std::uint32_t a_lane = a.base + Tile::offset(a_row + lane / 4, 0);
    const std::uint32_t b_lane[2] = {b.base + Tile::offset(lane % 4 * 2, 0),
                                     b.base + Tile::offset(lane % 4 * 2 + 1, 0)};
#pragma unroll 2
    for (int chunk = 0; chunk < 8 * lines; ++chunk) {
      const std::uint32_t swizzle = chunk % 8 * 16;
      const int line = chunk / 8;
      float4 x[MTiles][2];
#pragma unroll
      for (int m = 0; m < MTiles; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
          x[m][h] = load_float4(Tile::further(a_lane ^ swizzle, 16 * m + 8 * h, line));
      }
#pragma unroll
      for (int n = 0; n < NTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float4 y = load_float4(Tile::further(b_lane[c] ^ swizzle, 8 * n, line));
#pragma unroll
          for (int m = 0; m < MTiles; ++m) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              float& sum = s[m][n][2 * h + c];
              sum = fmaf(x[m][h].x, y.x, sum);
              sum = fmaf(x[m][h].y, y.y, sum);
              sum = fmaf(x[m][h].z, y.z, sum);
              sum = fmaf(x[m][h].w, y.w, sum);
            }
          }
        }
      }
    }
  }
}

// sum = a * rows [0, 8 NTiles) of `b`, for the 32 columns of one line of `b`: tiles 4 line .. 4 line + 3 of a WideFragment.
// The accumulators `a` are the left operand as they stand: the order of a contraction is free, so column 2t of eight takes
// slot t of the tensor cores and column 2t + 1 slot t + 4, and no number has to change its lane.
template <Multiply M, int Dim, int MTiles, int NTiles>
__device__ __forceinline__ void multiply_line(float (&sum)[MTiles][4][4], const float (&a)[MTiles][NTiles][4],
                                              SharedTile32<Dim> b, int line) {
  using Tile = SharedTile32<Dim>;
  const int lane = lane_index();
  clear(sum);
  if constexpr (M == Multiply::tf32) {
    // The small products share the sums of the large ones: twelve steps are short enough.
    static_assert(NTiles <= 4);
    const std::uint32_t b_lane[2] = {here(b.base + Tile::offset(lane % 4 * 2, lane / 4)),
                                     here(b.base + Tile::offset(lane % 4 * 2 + 1, lane / 4))};
#pragma unroll
    for (int n = 0; n < NTiles; ++n) {
      std::uint32_t a_high[MTiles][4], a_low[MTiles][4];
#pragma unroll
      for (int m = 0; m < MTiles; ++m) {
        constexpr int kSlot[4] = {0, 2, 1, 3};
#pragma unroll
        for (int e = 0; e < 4; ++e) ptx::split_tf32(a[m][n][kSlot[e]], a_high[m][e], a_low[m][e]);
      }
      std::uint32_t high[2][4], low[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float x[4];
        load_floats(x, Tile::further(b_lane[i], 8 * n, line));
#pragma unroll
        for (int tile = 0; tile < 4; ++tile) ptx::split_tf32(x[tile], high[i][tile], low[i][tile]);
      }
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
        for (int m = 0; m < MTiles; ++m) ptx::mma_tf32(sum[m][tile], a_low[m], high[0][tile], high[1][tile]);
      }
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
        for (int m = 0; m < MTiles; ++m) ptx::mma_tf32(sum[m][tile], a_high[m], low[0][tile], low[1][tile]);
      }
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
        for (int m = 0; m < MTiles; ++m) ptx::mma_tf32(sum[m][tile], a_high[m], high[0][tile], high[1][tile]);
      }
    }
  } else {
#pragma unroll
    for (int n = 0; n < NTiles; ++n) {
#pragma unroll 1
      for (int pair = 0; pair < 4; ++pair) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::uint32_t at = b.base + Tile::offset(2 * pair + i, lane % 4 * 2);
          float x[2][4];
          load_floats(x[0], Tile::further(at, 8 * n, line));
          load_floats(x[1], Tile::further(at ^ 16, 8 * n, line));
#pragma unroll
          for (int m = 0; m < MTiles; ++m) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const float factor = __shfl_sync(0xFFFFFFFFU, a[m][n][2 * h + i], (lane & 28) | pair);
#pragma unroll
              for (int tile = 0; tile < 4; ++tile) {
                sum[m][tile][2 * h] = fmaf(factor, x[0][tile], sum[m][tile][2 * h]);
                sum[m][tile][2 * h + 1] = fmaf(factor, x[1][tile], sum[m][tile][2 * h + 1]);
              }
            }
          }
        }
      }
    }
  }
}

// total = total * factor + a * rows [0, 8 NTiles) of `b`, whose first `lines` groups of 32 columns are not zero; factor[m][h]
// belongs to rows lane / 4 + 8 h of tile m.
template <Multiply M, int Dim, int MTiles, int NTiles>
__device__ __forceinline__ void accumulate(float (&total)[MTiles][Dim / 8][4],
                                           const float (&a)[MTiles][NTiles][4], SharedTile32<Dim> b,
                                           const float (&factor)[MTiles][2], int lines) {
#pragma unroll
  for (int line = 0; line < Dim / 32; ++line) {
    // The branch saves what is missing to the tile's width, and keeps ptxas from putting off the additions of all lines to
    // the end, where they take 16 registers per line.
    if (line >= lines) break;
    float sum[MTiles][4][4];
    multiply_line<M, Dim>(sum, a, b, line);
#pragma unroll
    for (int m = 0; m < MTiles; ++m) {
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& y = total[m][4 * line + tile][e];
          y = fmaf(y, factor[m][e / 2], sum[m][tile][e]);
        }
      }
    }
  }
}

// Adds what is not finite in rows [0, Rows) of `b` to the totals of those rows that see it; sees(row, b_row).
template <int Rows, int Dim, int MTiles, typename Sees>
__device__ __forceinline__ void add_non_finite(float (&total)[MTiles][Dim / 8][4], SharedTile32<Dim> b,
                                               Sees&& sees) {
  const int lane = lane_index();
#pragma unroll 1
  for (int b_row = 0; b_row < Rows; ++b_row) {
#pragma unroll
    for (int line = 0; line < Dim / 32; ++line) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const std::uint32_t at = b.base + SharedTile32<Dim>::offset(b_row, lane % 4 * 2 + c);
        const uint4 x = ptx::load_shared(SharedTile32<Dim>::further(at, 0, line));
        if (!is_non_finite(x)) continue;
        auto only_non_finite = [](std::uint32_t y) { return is_non_finite(y) ? __uint_as_float(y) : 0.0F; };
#pragma unroll
        for (int m = 0; m < MTiles; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            if (!sees(16 * m + lane / 4 + 8 * h, b_row)) continue;
            total[m][4 * line][2 * h + c] += only_non_finite(x.x);
            total[m][4 * line + 1][2 * h + c] += only_non_finite(x.y);
            total[m][4 * line + 2][2 * h + c] += only_non_finite(x.z);
            total[m][4 * line + 3][2 * h + c] += only_non_finite(x.w);
          }
        }
      }
    }
  }
}

// Stores the 16 rows of tile m of a total, times a factor per row (h): row(h) gives where a row begins, null for none.
template <int Dim, int MTiles, typename Row>
__device__ __forceinline__ void store_rows(const float (&total)[MTiles][Dim / 8][4], int m,
                                           const float (&factor)[2], int columns, bool aligned, Row&& row) {
  const int lane = lane_index();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float* to = row(h);
    if (to == nullptr) continue;
#pragma unroll
    for (int line = 0; line < Dim / 32; ++line) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = WideFragment::column(lane, 4 * line, c);
        float x[4];
#pragma unroll
        for (int tile = 0; tile < 4; ++tile) x[tile] = total[m][4 * line + tile][2 * h + c] * factor[h];
        if (aligned && column + 4 <= columns) {
          *reinterpret_cast<float4*>(to + column) = {x[0], x[1], x[2], x[3]};
        } else {
#pragma unroll
          for (int tile = 0; tile < 4; ++tile) {
            if (column + tile < columns) to[column + tile] = x[tile];
          }
        }
      }
    }
  }
}

}  // namespace tessera::cuda::fp32
