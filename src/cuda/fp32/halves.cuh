// fp32 products on the tensor cores: each number is the sum of two fp16 numbers, x = 2^e (high +
// low).
//
// Why fp16
//   fp16 has the 11 significant bits of TF32 at twice the rate. A pair of fp16 numbers takes the
//   room of the fp32 number, so a tile is split in place, once, and the loops over the products
//   consist of loads and products: high * high + high * low + low * high. low * low is at most
//   2^-24 of the product and is left out.
//
// Range
//   fp16 lacks range. So every row has a power of two of its own, which brings its largest number
//   into [2^14, 2^15). The numbers of the row are then off by at most 2^-24 of themselves or 2^-39
//   of the largest. In a product of rows by rows, the power of a row is a factor of the result. In
//   a product of accumulators by rows, it belongs to the index that is summed over; it is
//   multiplied into the accumulators first, whose rows then get powers of their own. Masked
//   elements are 0 by then, so rows that no query sees cost the visible ones no bits.
//
// Rounding
//   The tensor cores truncate when they add, and that error always has the same sign. So in
//   products of rows by rows the small products have sums of their own, which are added to the
//   large ones at the end; sums of accumulators by rows end with the step, and ordinary, rounded
//   additions accumulate them over the steps.
#pragma once

#include <cstdint>

#include "cuda/common/ptx/mma.cuh"
#include "cuda/common/tile/layout.h"
#include "cuda/common/tile/shared_tile32.cuh"
#include "cuda/fp32/row_power.h"

namespace tessera::cuda::fp32 {

// Splits x and y, times `scale`, into pairs of fp16 numbers.
__device__ __forceinline__ void split_pair(float x, float y, float scale, std::uint32_t& high,
                                           std::uint32_t& low) {
  high = ptx::pack<ptx::Half16::fp16>(x * scale, y * scale);
  const float2 rounded = ptx::unpack<ptx::Half16::fp16>(high);
  low = ptx::pack<ptx::Half16::fp16>(fmaf(x, scale, -rounded.x), fmaf(y, scale, -rounded.y));
}

// The larger magnitude; ignores NaN.
__device__ __forceinline__ float larger(float x, float y) { return fmaxf(fabsf(x), fabsf(y)); }

// Splits the rows that this thread has a part in, in place: of each eight numbers, the chunk with
// the first four then holds all high halves and the other one all low halves. Stores the factors of
// the rows. Non-finite values do not count as the largest of their row and keep their value (in
// `high`; `low` is NaN).
template <int Columns, int Rows, int Threads>
__device__ __forceinline__ void split_rows(SharedTile32<Columns> tile) {
  using Own = OwnChunks<Columns, Rows, Threads>;
  constexpr int kParts = Own::kPartsOfRow, kRowPasses = Own::kPasses / kParts;
  const std::uint32_t odd = Own::chunk() % 2;  // the second four of eight
  const std::uint32_t first =
      ptx::opaque(tile.base + SharedTile32<Columns>::offset(Own::row(), Own::chunk()));
  auto largest_of_row = [](float x) {  // over the lanes that hold the row
    if constexpr (Own::kLanes == 32) {
      return __uint_as_float(__reduce_max_sync(0xFFFFFFFFU, __float_as_uint(x)));
    } else {
#pragma unroll
      for (int distance = Own::kLanes / 2; distance > 0; distance /= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, distance));
      }
      return x;
    }
  };
  // Several rows at a time, because each is a chain of a load, a maximum over lanes and stores.
  constexpr int kTogether = kRowPasses * kParts < 4 ? kRowPasses : 4 / kParts;
#pragma unroll 1
  for (int pass = 0; pass < kRowPasses; pass += kTogether) {
    auto address = [&](int i) {
      const int below = (pass + i) * Own::kRowsPerPass;
      return (first ^ static_cast<std::uint32_t>((below & 7) << 4)) +
             static_cast<std::uint32_t>(below * SharedTile32<Columns>::kRowBytes);
    };
    float x[kTogether][4 * kParts], largest[kTogether];
    bool non_finite = false;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      largest[i] = 0;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const float4 y = load_float4(address(i) + part * Own::kLanes * 16);
        largest[i] = fmaxf(largest[i], fmaxf(larger(y.x, y.y), larger(y.z, y.w)));
        x[i][4 * part] = y.x, x[i][4 * part + 1] = y.y, x[i][4 * part + 2] = y.z, x[i][4 * part + 3] = y.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      largest[i] = largest_of_row(largest[i]);
      non_finite = non_finite || is_non_finite(__float_as_uint(largest[i]));
    }
    if (__any_sync(0xFFFFFFFFU, non_finite)) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        largest[i] = 0;
#pragma unroll
        for (const float y : x[i]) {
          if (!is_non_finite(__float_as_uint(y))) largest[i] = larger(largest[i], y);
        }
        largest[i] = largest_of_row(largest[i]);
      }
    }
    // All lanes have read their chunks. From here on each stores into the chunks of two.
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const RowPower power = RowPower::of(largest[i]);
      if (Own::chunk() == 0) {
        ptx::store_shared(tile.factors + (Own::row() + (pass + i) * Own::kRowsPerPass) * 4,
                          __float_as_uint(power.factor));
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        uint2 high, low;
        split_pair(x[i][4 * part], x[i][4 * part + 1], power.scale, high.x, low.x);
        split_pair(x[i][4 * part + 2], x[i][4 * part + 3], power.scale, high.y, low.y);
        const std::uint32_t to = (address(i) ^ (odd << 4)) + (odd << 3) + part * Own::kLanes * 16;
        store_pair(to, high);
        store_pair(to ^ 16, low);
      }
    }
  }
}

__device__ __forceinline__ bool is_non_finite_half(std::uint32_t x) { return (x & 0x7C00U) == 0x7C00U; }

// Whether this thread's part of the split rows holds a non-finite value.
template <int Columns, int Rows, int Threads>
__device__ __forceinline__ bool has_non_finite_halves(SharedTile32<Columns> tile) {
  __syncwarp();  // other lanes have stored into the chunks of this one
  bool found = false;
  for_own_chunks<Columns, Rows, Threads>(tile, [&](std::uint32_t at) {
    const uint4 x = ptx::load_shared(at);
    for (const std::uint32_t pair : {x.x, x.y, x.z, x.w}) {
      found = found || is_non_finite_half(pair) || is_non_finite_half(pair >> 16);
    }
  });
  return found;
}

// Replaces the non-finite values in the split rows of this thread by 0.
template <int Columns, int Rows, int Threads>
__device__ __forceinline__ void clear_non_finite_halves(SharedTile32<Columns> tile) {
  for_own_chunks<Columns, Rows, Threads>(tile, [&](std::uint32_t at) {
    auto finite = [](std::uint32_t pair) {
      return (is_non_finite_half(pair) ? 0U : pair & 0xFFFFU) |
             (is_non_finite_half(pair >> 16) ? 0U : pair & 0xFFFF0000U);
    };
    const uint4 x = ptx::load_shared(at);
    ptx::store_shared(at, uint4{finite(x.x), finite(x.y), finite(x.z), finite(x.w)});
  });
}

// d += a b and d = a b.
__device__ __forceinline__ void mma_halves(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                           std::uint32_t b1) {
  ptx::mma<ptx::Mma::k16, ptx::Half16::fp16>(d, a, b0, b1);
}
__device__ __forceinline__ void mma_halves_first(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                                 std::uint32_t b1) {
  ptx::mma_first<ptx::Mma::k16, ptx::Half16::fp16>(d, a, b0, b1);
}

// s = a b^T for split rows [a_row, a_row + 16 MTiles) of `a` and [0, 8 NTiles) of `b`.
template <int Dim, int MTiles, int NTiles>
__device__ __forceinline__ void multiply_split_rows(float (&s)[MTiles][NTiles][4], SharedTile32<Dim> a,
                                                    int a_row, SharedTile32<Dim> b, int lines, int lane) {
  using Tile = SharedTile32<Dim>;
  static_assert(NTiles % 2 == 0);
  // A: the high chunks of 16 rows by 16 columns, with the low ones beside them. B: a load gives
  // high and low of 8 rows by 16 columns.
  const MatrixAddress a_at = row_operand(lane);
  const std::uint32_t a_lane = ptx::opaque(a.base + Tile::offset(a_row + a_at.row, 2 * a_at.chunk));
  const std::uint32_t b_lane =
      ptx::opaque(b.base + Tile::offset(lane & 7, 2 * ((lane >> 3) & 1) + (lane >> 4)));
  // With two tiles of rows, registers do not suffice for the small sums of all columns at once.
  constexpr int kTogether = MTiles == 1 ? NTiles : Dim == 64 && NTiles >= 4 ? 4 : 2;
#pragma unroll
  for (int group = 0; group < NTiles; group += kTogether) {
    float small[MTiles][kTogether][4];
#pragma unroll
    for (int m = 0; m < MTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][group + n][e] = small[m][n][e] = 0;
      }
    }
#pragma unroll 1
    for (int line = 0; line < lines; ++line) {  // 32 columns: two steps of 16
      const std::uint32_t at = line * 128;
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        std::uint32_t a_high[MTiles][4], a_low[MTiles][4];
#pragma unroll
        for (int m = 0; m < MTiles; ++m) {
          const std::uint32_t from = (a_lane ^ (step << 6)) + at + m * 16 * Tile::kRowBytes;
          ptx::load_matrix(a_high[m], from);
          ptx::load_matrix(a_low[m], from ^ 16);
        }
#pragma unroll
        for (int n = 0; n < kTogether; n += 2) {
          std::uint32_t x[2][4];
#pragma unroll
          for (int y = 0; y < 2; ++y) {
            ptx::load_matrix(x[y], (b_lane ^ (step << 6)) + at + (group + n + y) * 8 * Tile::kRowBytes);
          }
#pragma unroll
          for (int i = 0; i < 2 * MTiles; ++i) {
            mma_halves(small[i % MTiles][n + i / MTiles], a_low[i % MTiles], x[i / MTiles][0],
                       x[i / MTiles][1]);
          }
#pragma unroll
          for (int i = 0; i < 2 * MTiles; ++i) {
            mma_halves(s[i % MTiles][group + n + i / MTiles], a_high[i % MTiles], x[i / MTiles][0],
                       x[i / MTiles][1]);
          }
#pragma unroll
          for (int i = 0; i < 2 * MTiles; ++i) {
            mma_halves(small[i % MTiles][n + i / MTiles], a_high[i % MTiles], x[i / MTiles][2],
                       x[i / MTiles][3]);
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < MTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][group + n][e] += small[m][n][e];
      }
    }
  }
  float a_factor[MTiles][2];
#pragma unroll
  for (int m = 0; m < MTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      a_factor[m][h] = load_float(a.factors + (a_row + 16 * m + lane / 4 + 8 * h) * 4);
  }
#pragma unroll
  for (int n = 0; n < NTiles; ++n) {
    const float2 b_factor = load_float2(b.factors + (8 * n + lane % 4 * 2) * 4);
#pragma unroll
    for (int m = 0; m < MTiles; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[m][n][e] = take_back(s[m][n][e], a_factor[m][e / 2], e % 2 == 0 ? b_factor.x : b_factor.y);
      }
    }
  }
}

// Accumulators as a left operand: 8 NTiles columns that meet as many rows of a split tile. A pair
// of fp16 numbers takes the room of an fp32 number, so this replaces the accumulators.
template <int MTiles, int NTiles>
struct SplitAccumulators {
  std::uint32_t high[MTiles][NTiles][2], low[MTiles][NTiles][2];
  float factor[MTiles][2];

  SplitAccumulators() = default;

  // From n8 tile `first` of x on. `factors` are those of the rows that these columns will meet.
  template <int All>
  __device__ __forceinline__ SplitAccumulators(const float (&x)[MTiles][All][4], int first,
                                               std::uint32_t factors, int lane) {
    static_assert(NTiles % 2 == 0);
    float2 b_factor[NTiles];
#pragma unroll
    for (int n = 0; n < NTiles; ++n) b_factor[n] = load_float2(factors + (8 * n + lane % 4 * 2) * 4);
#pragma unroll
    for (int m = 0; m < MTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float y[2 * NTiles];
        float largest = 0;
#pragma unroll
        for (int n = 0; n < NTiles; ++n) {
          y[2 * n] = x[m][first + n][2 * h] * b_factor[n].x;
          y[2 * n + 1] = x[m][first + n][2 * h + 1] * b_factor[n].y;
          largest = fmaxf(largest, larger(y[2 * n], y[2 * n + 1]));
        }
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 2));
        const RowPower power = RowPower::of(largest);
        factor[m][h] = power.factor;
#pragma unroll
        for (int n = 0; n < NTiles; ++n) {
          split_pair(y[2 * n], y[2 * n + 1], power.scale, high[m][n][h], low[m][n][h]);
        }
      }
    }
  }
};

// sum = a * rows [0, 8 NTiles) of `b`, for `Tiles` n8 tiles of columns from `tile` on. Four of them
// are a line of `b`.
template <int Tiles, int Dim, int MTiles, int NTiles>
__device__ __forceinline__ void multiply_split_tiles(float (&sum)[MTiles][Tiles][4],
                                                     const SplitAccumulators<MTiles, NTiles>& a,
                                                     SharedTile32<Dim> b, int tile, int lane) {
  using Tile = SharedTile32<Dim>;
  // A load gives high and low of 16 rows by 8 columns.
  const std::uint32_t b_lane = ptx::opaque(b.base + Tile::offset(lane & 15, lane >> 4));
#pragma unroll
  for (int n = 0; n < NTiles; n += 2) {  // 16 rows
    std::uint32_t x[Tiles][4];
#pragma unroll
    for (int i = 0; i < Tiles; ++i) {
      ptx::load_matrix_transposed(x[i], Tile::further(b_lane ^ ((tile + i) % 4 << 5), 8 * n, (tile + i) / 4));
    }
    std::uint32_t high[MTiles][4], low[MTiles][4];
#pragma unroll
    for (int m = 0; m < MTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        high[m][i] = a.high[m][n + i / 2][i % 2];
        low[m][i] = a.low[m][n + i / 2][i % 2];
      }
    }
#pragma unroll
    for (int i = 0; i < Tiles * MTiles; ++i) {
      float(&to)[4] = sum[i % MTiles][i / MTiles];
      if (n == 0) {
        mma_halves_first(to, low[i % MTiles], x[i / MTiles][0], x[i / MTiles][1]);
      } else {
        mma_halves(to, low[i % MTiles], x[i / MTiles][0], x[i / MTiles][1]);
      }
    }
#pragma unroll
    for (int i = 0; i < Tiles * MTiles; ++i) {
      mma_halves(sum[i % MTiles][i / MTiles], high[i % MTiles], x[i / MTiles][2], x[i / MTiles][3]);
    }
#pragma unroll
    for (int i = 0; i < Tiles * MTiles; ++i) {
      mma_halves(sum[i % MTiles][i / MTiles], high[i % MTiles], x[i / MTiles][0], x[i / MTiles][1]);
    }
  }
}

}  // namespace tessera::cuda::fp32
