// A tile of 16-bit numbers in shared memory, swizzled, and how it is filled from global memory.
#pragma once

#include <cstdint>

#include "cuda/common/ptx/copy.cuh"
#include "cuda/common/ptx/types.h"
#include "cuda/common/tile/layout.h"

namespace tessera::cuda {

template <int Columns>
struct SharedTile {
  static_assert(Columns % 64 == 0 || Columns == 32 || Columns == 16,
                "a row is whole groups of eight chunks, or a part of one");
  using Element = ptx::HalfBits;
  static constexpr int kElementBytes = sizeof(Element);
  static constexpr int kRowBytes = Columns * kElementBytes;
  static constexpr int kChunks = kRowBytes / kChunkBytes;

  std::uint32_t base;  // shared address

  // Where chunk `chunk` of row `row` is.
  static TESSERA_HD constexpr std::uint32_t offset(int row, int chunk) {
    return swizzled_offset(kRowBytes, row, chunk);
  }

  // The address for ldmatrix at chunk `2 * step` and `row` (a multiple of 8). `lane_base` is the
  // lane's own part, base + offset(address.row, address.chunk). Two chunks further is the
  // exclusive-or of a constant.
  static __device__ __forceinline__ std::uint32_t at(std::uint32_t lane_base, int row, int step) {
    return (lane_base ^ static_cast<std::uint32_t>((step & 3) << 5)) + (step >> 2) * 128 + row * kRowBytes;
  }
};

// Rows in global memory. They are read by whole chunks when they begin on 16-byte boundaries, else
// number by number.
struct RowSource {
  const ptx::HalfBits* data;  // row 0
  std::int64_t stride;        // elements
  int columns;                // numbers per row; columns from here to the tile's width arrive as zero
  bool aligned;               // data, stride and columns are multiples of 16 bytes
};

// Copies rows [row, row + Rows) of `from` into the tile, by all Threads threads. Rows from `limit`
// on and missing columns arrive as zero. Async: by cp.async, and the caller commits and waits;
// otherwise this thread's part is stored when the function returns. Unaligned: the source may be
// unaligned, which costs a branch. Early: `row` may be below 0; rows before the first arrive as
// zero.
template <int Columns, int Rows, int Threads, bool Async, bool Unaligned, bool Early = false>
__device__ __forceinline__ void load_rows(SharedTile<Columns> to, const RowSource& from, int row, int limit) {
  using Tile = SharedTile<Columns>;
  constexpr int kPerPass = Threads / Tile::kChunks;  // rows
  static_assert(Threads % Tile::kChunks == 0 && Rows % kPerPass == 0);
  const int own_row = static_cast<int>(threadIdx.x) / Tile::kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % Tile::kChunks;
  const ptx::HalfBits* source = from.data + (row + own_row) * from.stride + chunk * 8;
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

// The first column that a thread copies when all threads copy whole tiles of rows.
template <int Columns>
__device__ __forceinline__ int own_column() {
  return static_cast<int>(threadIdx.x) % SharedTile<Columns>::kChunks * 8;
}

// Where the thread's first chunk is, in bytes from the tile's first row. Rows are less than 2^27
// bytes apart.
template <int Columns>
__device__ __forceinline__ int own_offset(int row_bytes) {
  return static_cast<int>(threadIdx.x) / SharedTile<Columns>::kChunks * row_bytes +
         own_column<Columns>() * SharedTile<Columns>::kElementBytes;
}

// Copies rows [row, row + Rows), all of which exist, by cp.async; writes zeros when not `valid`.
// `own` is own_offset.
template <int Columns, int Rows, int Threads>
__device__ __forceinline__ void copy_rows(SharedTile<Columns> to, const ptx::HalfBits* rows, int own,
                                          int row_bytes, int row, bool valid) {
  using Tile = SharedTile<Columns>;
  constexpr int kPerPass = Threads / Tile::kChunks;
  static_assert(Threads % Tile::kChunks == 0 && Rows % kPerPass == 0);
  const int own_row = static_cast<int>(threadIdx.x) / Tile::kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % Tile::kChunks;
  const char* source = reinterpret_cast<const char*>(rows) + std::int64_t{row} * row_bytes + own;
#pragma unroll
  for (int i = 0; i < Rows; i += kPerPass) {
    ptx::copy_async(to.base + Tile::offset(own_row + i, chunk), source, valid);
    source += std::int64_t{kPerPass} * row_bytes;
  }
}

// A thread's part of rows on their way through registers, where there is no cp.async. fetch() reads
// them early; put() stores them when their place is free.
template <int Columns, int Rows, int Threads>
struct HeldRows {
  using Tile = SharedTile<Columns>;
  static constexpr int kPerPass = Threads / Tile::kChunks;
  uint4 chunks[Rows / kPerPass];

  template <bool Unaligned, bool Early>
  __device__ __forceinline__ void fetch(const RowSource& from, int row, int limit) {
    if (Unaligned && !from.aligned) return;
    const int own_row = static_cast<int>(threadIdx.x) / Tile::kChunks, column = own_column<Columns>();
    const ptx::HalfBits* source = from.data + (row + own_row) * from.stride + column;
#pragma unroll
    for (int i = 0; i < Rows; i += kPerPass) {
      const int at = row + own_row + i;
      const bool valid = column < from.columns && at < limit && (!Early || at >= 0);
      chunks[i / kPerPass] = valid ? __ldg(reinterpret_cast<const uint4*>(source)) : uint4{};
      source += kPerPass * from.stride;
    }
  }

  // Unaligned rows are read here: fetch() leaves them alone.
  template <bool Unaligned, bool Early>
  __device__ __forceinline__ void put(Tile to, const RowSource& from, int row, int limit) const {
    if (Unaligned && !from.aligned) {
      load_rows<Columns, Rows, Threads, false, true, Early>(to, from, row, limit);
      return;
    }
    const int own_row = static_cast<int>(threadIdx.x) / Tile::kChunks;
    const int chunk = static_cast<int>(threadIdx.x) % Tile::kChunks;
#pragma unroll
    for (int i = 0; i < Rows; i += kPerPass) {
      ptx::store_shared(to.base + Tile::offset(own_row + i, chunk), chunks[i / kPerPass]);
    }
  }
};

}  // namespace tessera::cuda
