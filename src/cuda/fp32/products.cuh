// The two products of attention in fp32, for a warp: rows times rows (scores), and probabilities
// times rows.
//
// Both ways to multiply leave their sums in the m16n8 accumulators of ptx/mma.cuh, so that
// everything between the products is written once. Multiply::halves is in halves.cuh, Multiply::fma
// here.
#pragma once

#include <cstdint>

#include "cuda/common/tile/layout.h"
#include "cuda/common/tile/shared_tile32.cuh"
#include "cuda/fp32/config.h"
#include "cuda/fp32/halves.cuh"

namespace tessera::cuda::fp32 {

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / 32; }

// The groups of 32 columns that hold `columns` columns.
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

// Makes a tile an operand, by the threads that copied it: after their copies have arrived and
// before the barrier that publishes them. With `look`, returns whether this thread's part holds a
// non-finite value.
template <Multiply M, int Rows, int Threads, int Dim>
__device__ __forceinline__ bool prepare_rows(SharedTile32<Dim> tile, bool look) {
  if constexpr (M == Multiply::halves) {
    split_rows<Dim, Rows, Threads>(tile);
    return look && has_non_finite_halves<Dim, Rows, Threads>(tile);
  } else {
    return look && has_non_finite<Dim, Rows, Threads>(tile);
  }
}

// Replaces non-finite values by 0 in the rows that this thread has copied.
template <Multiply M, int Rows, int Threads, int Dim>
__device__ __forceinline__ void clean_rows(SharedTile32<Dim> tile) {
  if constexpr (M == Multiply::halves) {
    clear_non_finite_halves<Dim, Rows, Threads>(tile);
  } else {
    clear_non_finite<Dim, Rows, Threads>(tile);
  }
}

// s = a b^T for rows [a_row, a_row + 16 MTiles) of `a` and rows [0, 8 NTiles) of `b`. Only the
// first `lines` groups of 32 columns are non-zero.
template <Multiply M, int Dim, int MTiles, int NTiles>
__device__ __forceinline__ void multiply_rows(float (&s)[MTiles][NTiles][4], SharedTile32<Dim> a, int a_row,
                                              SharedTile32<Dim> b, int lines) {
  using Tile = SharedTile32<Dim>;
  const int lane = lane_index();
  if constexpr (M == Multiply::halves) {
    multiply_split_rows(s, a, a_row, b, lines, lane);
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

// sum = a * rows [0, 8 NTiles) of `b`, for the 32 columns of one line of `b`: tiles 4 line .. 4
// line + 3 of a WideFragment.
template <int Dim, int MTiles, int NTiles>
__device__ __forceinline__ void multiply_line(float (&sum)[MTiles][4][4], const float (&a)[MTiles][NTiles][4],
                                              SharedTile32<Dim> b, int line) {
  using Tile = SharedTile32<Dim>;
  const int lane = lane_index();
  clear(sum);
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

// total *= factor; factor[m][h] is for rows lane / 4 + 8 h of tile m. Mostly all factors of a warp
// are 1.
template <int MTiles, int Tiles>
__device__ __forceinline__ void rescale(float (&total)[MTiles][Tiles][4], const float (&factor)[MTiles][2]) {
  bool all_one = true;
#pragma unroll
  for (int m = 0; m < MTiles; ++m) all_one = all_one && factor[m][0] == 1 && factor[m][1] == 1;
  if (__all_sync(0xFFFFFFFFU, all_one)) return;
#pragma unroll
  for (int m = 0; m < MTiles; ++m) {
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 4; ++e) total[m][tile][e] *= factor[m][e / 2];
    }
  }
}

// total += a * rows [0, 8 NTiles) of `b`. Only the first `lines` groups of 32 columns are non-zero.
template <int Dim, int MTiles, int NTiles, int Tiles>
__device__ __forceinline__ void accumulate_split(float (&total)[MTiles][Tiles][4],
                                                 const SplitAccumulators<MTiles, NTiles>& a,
                                                 SharedTile32<Dim> b, int lines) {
  constexpr int kTogether = MTiles == 1 ? 4 : 2;
#pragma unroll
  for (int tile = 0; tile < Tiles; tile += kTogether) {
    // The branch skips columns beyond head_dim. It also keeps ptxas from postponing the additions
    // of all lines to the end, where they would take 16 registers a line.
    if (tile >= 4 * lines) break;
    float sum[MTiles][kTogether][4];
    multiply_split_tiles(sum, a, b, tile, lane_index());
#pragma unroll
    for (int m = 0; m < MTiles; ++m) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& y = total[m][tile + i][e];
          y = fmaf(sum[m][i][e], a.factor[m][e / 2], y);
        }
      }
    }
  }
}

// The same; `a` is given as accumulators of 8 NTiles columns.
template <Multiply M, int Dim, int MTiles, int NTiles>
__device__ __forceinline__ void accumulate(float (&total)[MTiles][Dim / 8][4],
                                           const float (&a)[MTiles][NTiles][4], SharedTile32<Dim> b,
                                           int lines) {
  if constexpr (M == Multiply::halves) {
    // A sum on the tensor cores covers at most 32 rows, or 16 where registers are scarce.
    constexpr int kTogether = NTiles < 4 || MTiles == 2 ? 2 : 4;
#pragma unroll
    for (int n = 0; n < NTiles; n += kTogether) {
      const SharedTile32<Dim> rows{b.base + n * 8 * SharedTile32<Dim>::kRowBytes, b.factors + n * 8 * 4};
      const SplitAccumulators<MTiles, kTogether> split(a, n, rows.factors, lane_index());
      accumulate_split(total, split, rows, lines);
    }
  } else {
#pragma unroll
    for (int line = 0; line < Dim / 32; ++line) {
      if (line >= lines) break;
      float sum[MTiles][4][4];
      multiply_line(sum, a, b, line);
#pragma unroll
      for (int m = 0; m < MTiles; ++m) {
#pragma unroll
        for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
          for (int e = 0; e < 4; ++e) total[m][4 * line + tile][e] += sum[m][tile][e];
        }
      }
    }
  }
}

// A lane's totals of a row form runs of neighbouring columns: two of every n8 tile (halves), or
// four, one of each of four tiles (fma, WideFragment).
template <Multiply M>
inline constexpr int kRun = M == Multiply::halves ? 2 : 4;

template <Multiply M>
constexpr int runs(int tiles) {
  return 2 * tiles / kRun<M>;
}

template <Multiply M>
__device__ __forceinline__ int run_column(int lane, int run) {
  return M == Multiply::halves ? 8 * run + lane % 4 * 2 : WideFragment::column(lane, run / 2 * 4, run % 2);
}

// Element i of a run, in row lane / 4 + 8 h of tile m.
template <Multiply M, int Tiles>
__device__ __forceinline__ float& number_of_run(float (&total)[Tiles][4], int h, int run, int i) {
  if constexpr (M == Multiply::halves) return total[run][2 * h + i];
  else return total[run / 2 * 4 + i][2 * h + run % 2];
}
template <Multiply M, int Tiles>
__device__ __forceinline__ float number_of_run(const float (&total)[Tiles][4], int h, int run, int i) {
  if constexpr (M == Multiply::halves) return total[run][2 * h + i];
  else return total[run / 2 * 4 + i][2 * h + run % 2];
}

// Adds the non-finite values in rows [0, Rows) of `b` to the totals of those rows that see them:
// sees(row, b_row).
template <Multiply M, int Rows, int Dim, int MTiles, int Tiles, typename Sees>
__device__ __forceinline__ void add_non_finite(float (&total)[MTiles][Tiles][4], SharedTile32<Dim> b,
                                               Sees&& sees) {
  using Tile = SharedTile32<Dim>;
  const int lane = lane_index();
#pragma unroll 1
  for (int b_row = 0; b_row < Rows; ++b_row) {
#pragma unroll
    for (int run = 0; run < runs<M>(Tiles); ++run) {
      float x[kRun<M>];
      bool any = false;
      if constexpr (M == Multiply::halves) {
        const std::uint32_t at = b.base + Tile::offset(b_row, run % 4 * 2) + lane % 4 * 4;
        const float2 pair =
            ptx::unpack<ptx::Half16::fp16>(ptx::load_shared_word(Tile::further(at, 0, run / 4)));
        x[0] = pair.x, x[1] = pair.y;
      } else {
        load_floats(x, Tile::further(b.base + Tile::offset(b_row, lane % 4 * 2 + run % 2), 0, run / 2));
      }
#pragma unroll
      for (int i = 0; i < kRun<M>; ++i) {
        const bool non_finite = is_non_finite(__float_as_uint(x[i]));
        any = any || non_finite;
        if (!non_finite) x[i] = 0;
      }
      if (!any) continue;
#pragma unroll
      for (int m = 0; m < MTiles; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if (!sees(16 * m + lane / 4 + 8 * h, b_row)) continue;
#pragma unroll
          for (int i = 0; i < kRun<M>; ++i) number_of_run<M>(total[m], h, run, i) += x[i];
        }
      }
    }
  }
}

// Stores the 16 rows of tile m of a total, times the factor of each row. row(h) returns where a row
// begins, or null if it does not exist.
template <Multiply M, int MTiles, int Tiles, typename Row>
__device__ __forceinline__ void store_rows(const float (&total)[MTiles][Tiles][4], int m,
                                           const float (&factor)[2], int columns, bool aligned, Row&& row) {
  const int lane = lane_index();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float* to = row(h);
    if (to == nullptr) continue;
#pragma unroll
    for (int run = 0; run < runs<M>(Tiles); ++run) {
      const int column = run_column<M>(lane, run);
      float x[kRun<M>];
#pragma unroll
      for (int i = 0; i < kRun<M>; ++i) x[i] = number_of_run<M>(total[m], h, run, i) * factor[h];
      if (aligned && column + kRun<M> <= columns) {
        if constexpr (kRun<M> == 2) *reinterpret_cast<float2*>(to + column) = {x[0], x[1]};
        else *reinterpret_cast<float4*>(to + column) = {x[0], x[1], x[2], x[3]};
      } else {
#pragma unroll
        for (int i = 0; i < kRun<M>; ++i) {
          if (column + i < columns) to[column + i] = x[i];
        }
      }
    }
  }
}

}  // namespace tessera::cuda::fp32
