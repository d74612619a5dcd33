// A tile of 16-bit numbers in shared memory, swizzled, and how it is filled from global memory.
#pragma once

#include <cstdint>

#include "cuda/ptx/copy.cuh"
#include "cuda/tile/fragment.h"
#include "cuda/tile/swizzle.h"

namespace tessera::cuda {

template <int Columns>
struct SharedTile {
  static_assert(Columns % 64 == 0 || Columns == 32 || Columns == 16,
                "a row is whole groups of eight chunks, or a part of one");
  static constexpr int kRowBytes = Columns * 2;
  static constexpr int kChunks = Columns / 8;  // of 16 bytes

  std::uint32_t base;  // shared address

  // Where chunk `chunk` of row `row` stands.
  static TESSERA_HD constexpr std::uint32_t offset(int row, int chunk) {
    return swizzled_offset(Columns, row, chunk);
  }

  // The address for ldmatrix at chunk `2 * step` and `row` (a multiple of 8), from the lane's own part
  // offset(address.row, address.chunk): two chunks further is the exclusive-or of a constant.
  static __device__ __forceinline__ std::uint32_t at(std::uint32_t lane_base, int row, int step) {
    return (lane_base ^ static_cast<std::uint32_t>((step & 3) << 5)) + (step >> 2) * 128 + row * kRowBytes;
  }
};

// How a source of rows is read: whole chunks when rows begin on 16-byte boundaries, else number by number.
struct RowSource {
  const std::uint16_t* data;  // row 0
  std::int64_t stride;        // elements
  int columns;                // numbers per row; what is missing to the tile's width arrives as zero
  bool aligned;               // data, stride and columns are multiples of 16 bytes
};

// Copies rows [row, row + Rows) of `from` into the tile, by all Threads threads; rows from `limit` on and missing columns
// arrive as zero. Async: by cp.async, to be committed and waited for by the caller; else when it returns, this
// thread's part is stored. Unaligned: the source may be unaligned; costs a branch. Early: `row` may be below 0, and what is
// there arrives as zero.
template <int Columns, int Rows, int Threads, bool Async, bool Unaligned, bool Early = false>
__device__ __forceinline__ void load_rows(SharedTile<Columns> to, const RowSource& from, int row, int limit) {
  using Tile = SharedTile<Columns>;
  constexpr int kPerPass = Threads / Tile::kChunks;  // rows
  static_assert(Threads % Tile::kChunks == 0 && Rows % kPerPass == 0);
  const int own_row = static_cast<int>(threadIdx.x) / Tile::kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % Tile::kChunks;
  const std::uint16_t* source = from.data + (row + own_row) * from.stride + chunk * 8;
  const int left = limit - row - own_row;
  if (!Unaligned || from.aligned) {
    const bool inside = chunk * 8 < from.columns;
#pragma unroll(Async ? Rows / kPerPass : 2)
    for (int i = 0; i < Rows; i += kPerPass) {
      const bool valid = inside && i < left && (!Early || row + own_row + i >= 0);
      const std::uint32_t target = to.base + Tile::offset(own_row + i, chunk);
      if constexpr (Async) {
        ptx::copy_async(target, source, valid);
      } else {
        ptx::store_shared(target, valid ? __ldg(reinterpret_cast<const uint4*>(source)) : uint4{});
      }
      source += kPerPass * from.stride;
    }
    return;
  }
  if constexpr (Unaligned) {
#pragma unroll 1
    for (int i = 0; i < Rows; i += kPerPass) {
      const bool valid = i < left && (!Early || row + own_row + i >= 0);
      std::uint32_t words[4] = {};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (valid && chunk * 8 + e < from.columns) {
          words[e / 2] |= static_cast<std::uint32_t>(source[i * from.stride + e]) << (e % 2 * 16);
        }
      }
      ptx::store_shared(to.base + Tile::offset(own_row + i, chunk), {words[0], words[1], words[2], words[3]});
    }
  }
}

}  // namespace tessera::cuda
