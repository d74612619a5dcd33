// Rows of 16-bit tensors on their way between global memory, tiles in shared memory and
// accumulators.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "cuda/common/engine.h"
#include "cuda/common/features.h"
#include "cuda/common/ptx/copy.cuh"
#include "cuda/common/ptx/math.cuh"
#include "cuda/common/tile/shared_tile.cuh"

namespace tessera::cuda {

// Closes the group of this thread's copies, and waits for all of them. Where rows are copied by
// plain loads and stores there is nothing to wait for.
template <Engine E>
__device__ __forceinline__ void commit_copies() {
  if constexpr (copies_async(E)) ptx::commit_copies();
}
template <Engine E>
__device__ __forceinline__ void wait_copies() {
  if constexpr (copies_async(E)) ptx::wait_copies<0>();
}

// Whether rows from `data` on begin on 16-byte boundaries and are whole 16-byte chunks. `stride`
// and `columns` count elements.
__device__ __forceinline__ bool rows_aligned(const ptx::HalfBits* data, std::int64_t stride,
                                             std::int64_t columns) {
  return ((reinterpret_cast<std::uintptr_t>(data) / sizeof(ptx::HalfBits) |
           static_cast<std::uintptr_t>(stride) | static_cast<std::uintptr_t>(columns)) &
          7) == 0;
}

// The rows of one head of a tensor from `first_row` on. Plain instances run on aligned tensors
// alone.
template <Variant V>
__device__ __forceinline__ RowSource rows_of(const core::View& view, std::int64_t batch, int head,
                                             std::int64_t first_row, std::int64_t columns) {
  const auto* data = view.row<const ptx::HalfBits>(batch, head, first_row);
  const bool aligned = V == Variant::plain || rows_aligned(data, view.row_stride, columns);
  return {data, view.row_stride, static_cast<int>(columns), aligned};
}

// Stores rows [first, last) of a tile into a tensor, by `threads` threads, of which this is number
// `thread`: whole chunks or, where the tensor is not aligned, number by number.
template <int Columns>
__device__ __forceinline__ void store_rows(std::uint32_t tile, ptx::HalfBits* to, std::int64_t stride,
                                           int first, int last, int columns, bool aligned, int thread,
                                           int threads) {
  constexpr int kChunks = SharedTile<Columns>::kChunks;
  for (int at = first * kChunks + thread; at < last * kChunks; at += threads) {
    const int row = at / kChunks, chunk = at % kChunks;
    if (chunk * 8 >= columns) continue;
    const uint4 x = ptx::load_shared(tile + SharedTile<Columns>::offset(row, chunk));
    ptx::HalfBits* target = to + row * stride + chunk * 8;
    if (aligned) {
      *reinterpret_cast<uint4*>(target) = x;
    } else {
      const std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (chunk * 8 + e < columns) target[e] = static_cast<ptx::HalfBits>(words[e / 2] >> (e % 2 * 16));
      }
    }
  }
}

// Stores accumulators of 16 * Tiles rows, times `factor` and rounded, into a tile. `row` is their
// first row and `chunk` the chunk of their first column. By a warp.
template <ptx::Half16 Type, int Columns, int Tiles, int Blocks>
__device__ __forceinline__ void stage_rows(std::uint32_t tile, int row, int chunk,
                                           const float (&x)[Tiles][Blocks][4], float factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < Tiles; ++m) {
#pragma unroll
    for (int j = 0; j < Blocks; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int at = row + m * 16 + lane / 4 + 8 * h;
        ptx::store_shared(tile + SharedTile<Columns>::offset(at, chunk + j) + lane % 4 * 4,
                          ptx::pack<Type>(x[m][j][2 * h] * factor, x[m][j][2 * h + 1] * factor));
      }
    }
  }
}

}  // namespace tessera::cuda
