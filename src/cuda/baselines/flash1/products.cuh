// The products of cuda.flash1 on tiles in shared memory, by tensor cores for 16-bit types and by
// FFMA for fp32. Both leave m16n8 accumulators, so that everything between the products is written
// once.
#pragma once

#include <cstdint>

#include "cuda/baselines/flash1/config.h"
#include "cuda/common/ptx/copy.cuh"
#include "cuda/common/ptx/mma.cuh"
#include "cuda/common/ptx/opaque.cuh"
#include "cuda/common/tile/layout.h"
#include "cuda/common/tile/shared_tile.cuh"

namespace tessera::cuda::flash1 {

using ptx::Half16;
using ptx::Mma;

constexpr Half16 type_of(Engine e) { return e == Engine::sm80_bf16 ? Half16::bf16 : Half16::fp16; }
constexpr Mma mma_of(Engine e) { return e == Engine::sm75_fp16 ? Mma::k8 : Mma::k16; }
constexpr bool copies_async(Engine e) { return e == Engine::sm80_fp16 || e == Engine::sm80_bf16; }
constexpr bool is_fp32(Engine e) { return e == Engine::fp32; }
constexpr int element_bytes(Engine e) {
  return is_fp32(e) ? static_cast<int>(sizeof(float)) : ptx::element_bytes(type_of(e));
}

template <Engine E>
struct ElementOf {
  using Type = ptx::HalfBits;
};
template <>
struct ElementOf<Engine::fp32> {
  using Type = float;
};
template <Engine E>
using Element = typename ElementOf<E>::Type;

template <Engine E>
__device__ __forceinline__ float to_float(Element<E> x) {
  if constexpr (is_fp32(E)) return x;
  else return ptx::unpack<type_of(E)>(x).x;
}
template <Engine E>
__device__ __forceinline__ Element<E> to_element(float x) {
  if constexpr (is_fp32(E)) return x;
  else return static_cast<ptx::HalfBits>(ptx::pack<type_of(E)>(x, 0));
}

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / 32; }

// ---- tiles ----

// A tile of rows of D elements in shared memory. 16-bit tiles are swizzled for ldmatrix; rows of
// fp32 tiles are four elements longer, so that they begin in different banks.
template <Engine E, int D>
struct EngineTile {
  static constexpr int kRowBytes = (is_fp32(E) ? D + 4 : D) * element_bytes(E);
  static constexpr int bytes(int rows) { return rows * kRowBytes; }

  // The offset of an element, in bytes.
  static __device__ __forceinline__ int at(int row, int column) {
    if constexpr (is_fp32(E)) return row * kRowBytes + column * element_bytes(E);
    else return static_cast<int>(SharedTile<D>::offset(row, column / 8)) + column % 8 * element_bytes(E);
  }
};

template <Engine E>
__device__ __forceinline__ float load_number(const unsigned char* from) {
  return to_float<E>(*reinterpret_cast<const Element<E>*>(from));
}
template <Engine E>
__device__ __forceinline__ float2 load_pair(const unsigned char* from) {
  if constexpr (is_fp32(E)) return *reinterpret_cast<const float2*>(from);
  else return ptx::unpack<type_of(E)>(*reinterpret_cast<const std::uint32_t*>(from));
}
template <Engine E>
__device__ __forceinline__ void store_pair(unsigned char* to, float x, float y) {
  if constexpr (is_fp32(E)) *reinterpret_cast<float2*>(to) = {x, y};
  else *reinterpret_cast<std::uint32_t*>(to) = ptx::pack<type_of(E)>(x, y);
}

// The rows of one head of a sequence.
template <Engine E>
struct Source {
  const Element<E>* data;
  std::int64_t stride;
  int columns;
  bool aligned;
};

template <Engine E>
__device__ __forceinline__ Source<E> rows_of(const core::View& view, std::int64_t batch, int head,
                                             std::int64_t first_row, std::int64_t columns) {
  const auto* data = view.row<const Element<E>>(batch, head, first_row);
  constexpr int kPerChunk = 16 / element_bytes(E);
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && view.row_stride % kPerChunk == 0 &&
                       columns % kPerChunk == 0;
  return {data, view.row_stride, static_cast<int>(columns), aligned};
}

// Copies rows [row, row + Rows) into a tile, with zeros beyond `limit` and beyond the columns of
// the tensor. The caller calls finish_copies and passes a barrier.
template <Engine E, Variant V, int D, int Rows, int Threads>
__device__ __forceinline__ void load_tile(unsigned char* tile, const Source<E>& from, int row, int limit) {
  if constexpr (!is_fp32(E)) {
    load_rows<D, Rows, Threads, copies_async(E), V == Variant::featured>(
        SharedTile<D>{ptx::shared_address(tile)}, {from.data, from.stride, from.columns, from.aligned}, row,
        limit);
  } else {
    for (int at = static_cast<int>(threadIdx.x); at < Rows * (D / 4); at += Threads) {
      const int r = at / (D / 4), c = at % (D / 4) * 4;
      float4 x{};
      if (row + r < limit && c < from.columns) {
        const float* source = from.data + (row + r) * from.stride + c;
        if (V == Variant::plain || from.aligned) {
          x = *reinterpret_cast<const float4*>(source);
        } else {
          x.x = source[0];
          if (c + 1 < from.columns) x.y = source[1];
          if (c + 2 < from.columns) x.z = source[2];
          if (c + 3 < from.columns) x.w = source[3];
        }
      }
      *reinterpret_cast<float4*>(tile + EngineTile<E, D>::at(r, c)) = x;
    }
  }
}

template <Engine E>
__device__ __forceinline__ void finish_copies() {
  if constexpr (copies_async(E)) ptx::commit_copies(), ptx::wait_copies<0>();
}

// Whether 16 bytes hold a non-finite value.
template <Engine E>
__device__ __forceinline__ bool has_non_finite(uint4 x) {
  constexpr std::uint32_t kExponent = is_fp32(E) ? 0x7F800000 : type_of(E) == Half16::bf16 ? 0x7F80 : 0x7C00;
  bool found = false;
  for (const std::uint32_t word : {x.x, x.y, x.z, x.w}) {
    found =
        found || (word & kExponent) == kExponent || (!is_fp32(E) && (word >> 16 & kExponent) == kExponent);
  }
  return found;
}

// Whether this thread's share of `rows` rows of a tile holds a non-finite value.
template <Engine E, int D, int Threads>
__device__ __forceinline__ bool finds_non_finite(const unsigned char* tile, int rows) {
  constexpr int kPerChunk = 16 / element_bytes(E), kChunks = D / kPerChunk;
  bool found = false;
  for (int at = static_cast<int>(threadIdx.x); at < rows * kChunks; at += Threads) {
    const int offset = EngineTile<E, D>::at(at / kChunks, at % kChunks * kPerChunk);
    found = found || has_non_finite<E>(*reinterpret_cast<const uint4*>(tile + offset));
  }
  return found;
}

// ---- products ----

// The products read their lane by ptx::lane_index(). With lane_index(), a dozen addresses per
// operand occupied registers through the whole kernel, and spilled.

// acc (16 x 8 N) += rows [0, 16) of `a` times rows [0, 8 N) of `b`, both of length D: Q K^T or dO
// V^T. They begin at rows a_row and b_row (multiples of 8) of the tiles.
template <Engine E, int D, int N>
__device__ __forceinline__ void multiply_rows(float (&acc)[N][4], const unsigned char* a, int a_row,
                                              const unsigned char* b, int b_row) {
  const int lane = ptx::lane_index();
  if constexpr (!is_fp32(E)) {
    using Shared = SharedTile<D>;
    const MatrixAddress own = row_operand(lane), other = column_operand(lane);
    const std::uint32_t a_lane = ptx::shared_address(a) + Shared::offset(own.row, own.chunk);
    const std::uint32_t b_lane = ptx::shared_address(b) + Shared::offset(other.row, other.chunk);
#pragma unroll(D == 64 ? 4 : 2)
    for (int step = 0; step < D / 16; ++step) {
      std::uint32_t left[4];
      ptx::load_matrix(left, Shared::at(a_lane, a_row, step));
#pragma unroll
      for (int n = 0; n < N; n += 2) {
        std::uint32_t right[4];
        ptx::load_matrix(right, Shared::at(b_lane, b_row + n * 8, step));
        ptx::mma<mma_of(E), type_of(E)>(acc[n], left, right[0], right[1]);
        ptx::mma<mma_of(E), type_of(E)>(acc[n + 1], left, right[2], right[3]);
      }
    }
  } else {
    const unsigned char* a_lane = a + EngineTile<E, D>::at(a_row + lane / 4, 0);
    const unsigned char* b_lane = b + EngineTile<E, D>::at(b_row + lane % 4 * 2, 0);
#pragma unroll 2
    for (int d = 0; d < D; d += 4) {
      float4 left[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        left[h] = *reinterpret_cast<const float4*>(a_lane + EngineTile<E, D>::at(8 * h, d));
      }
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          const float4 right = *reinterpret_cast<const float4*>(b_lane + EngineTile<E, D>::at(8 * n + x, d));
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float& sum = acc[n][2 * h + x];
            sum = fmaf(left[h].x, right.x, sum);
            sum = fmaf(left[h].y, right.y, sum);
            sum = fmaf(left[h].z, right.z, sum);
            sum = fmaf(left[h].w, right.w, sum);
          }
        }
      }
    }
  }
}

// Whether the rows of the left operand are rows or columns of its tile of scores.
enum class Layout : int { rows, columns };

// acc (16 x 8 N) += left (16 x Depth) times rows [0, Depth) of `right`, whose columns begin at
// `column`. The left operand begins at row `left_row` (Layout::columns: at column `left_row`) of a
// tile of scores of width W, and at `left_column` there. Careful: terms whose left factor is 0 are
// skipped, so that a masked element does not turn a NaN or an infinity on the right into a NaN.
template <Engine E, Layout L, int W, int D, int Depth, int N>
__device__ __forceinline__ void multiply_scores(float (&acc)[N][4], const unsigned char* left, int left_row,
                                                int left_column, const unsigned char* right, int column,
                                                bool careful) {
  const int lane = ptx::lane_index();
  if constexpr (!is_fp32(E)) {
    if (!careful) {
      using Scores = SharedTile<W>;
      using Shared = SharedTile<D>;
      const MatrixAddress by_row = row_operand(lane), by_column = column_operand(lane);
      const std::uint32_t right_lane = ptx::shared_address(right) + Shared::offset(by_row.row, by_row.chunk);
#pragma unroll(D == 64 ? 2 : 1)  // registers do not suffice for more
      for (int step = 0; step < Depth / 16; ++step) {
        std::uint32_t a[4];
        if constexpr (L == Layout::rows) {
          ptx::load_matrix(
              a, ptx::shared_address(left) +
                     Scores::offset(left_row + by_row.row, left_column / 8 + 2 * step + by_row.chunk));
        } else {
          ptx::load_matrix_transposed(
              a, ptx::shared_address(left) +
                     Scores::offset(left_column + 16 * step + by_column.row, left_row / 8 + by_column.chunk));
        }
#pragma unroll
        for (int n = 0; n < N; n += 2) {
          std::uint32_t b[4];
          ptx::load_matrix_transposed(b, Shared::at(right_lane, 16 * step, column / 16 + n / 2));
          ptx::mma<mma_of(E), type_of(E)>(acc[n], a, b[0], b[1]);
          ptx::mma<mma_of(E), type_of(E)>(acc[n + 1], a, b[2], b[3]);
        }
      }
      return;
    }
  }
#pragma unroll(is_fp32(E) ? 2 : 1)
  for (int k = 0; k < Depth; ++k) {
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = left_row + lane / 4 + 8 * h;
      factor[h] = load_number<E>(left + (L == Layout::rows ? EngineTile<E, W>::at(row, left_column + k)
                                                           : EngineTile<E, W>::at(left_column + k, row)));
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float2 value = load_pair<E>(right + EngineTile<E, D>::at(k, column + 8 * n + lane % 4 * 2));
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (careful && factor[h] == 0) continue;
        acc[n][2 * h] = fmaf(factor[h], value.x, acc[n][2 * h]);
        acc[n][2 * h + 1] = fmaf(factor[h], value.y, acc[n][2 * h + 1]);
      }
    }
  }
}

// Stores accumulators, rounded, as 16 rows of a tile of scores of width W.
template <Engine E, int W, int N>
__device__ __forceinline__ void store_scores(unsigned char* tile, int row, int column,
                                             const float (&acc)[N][4]) {
  const int lane = ptx::lane_index();
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      store_pair<E>(tile + EngineTile<E, W>::at(row + lane / 4 + 8 * h, column + 8 * n + lane % 4 * 2),
                    acc[n][2 * h], acc[n][2 * h + 1]);
    }
  }
}

}  // namespace tessera::cuda::flash1
