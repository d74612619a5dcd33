// A tile of fp32 numbers in shared memory, swizzled as in layout.h, and how it is filled from
// global memory.
//
// A row is Columns * 4 bytes. Two kinds of reads meet eight different groups of banks: one chunk of
// eight rows, and a line's chunks 2n and 2n + 1 in four even or four odd rows. (A line is 128
// bytes, a group of eight chunks.)
#pragma once

#include <cstdint>

#include "core/base/host_device.h"
#include "cuda/common/ptx/copy.cuh"
#include "cuda/common/ptx/opaque.cuh"
#include "cuda/common/tile/layout.h"

namespace tessera::cuda {

template <int Columns>
struct SharedTile32 {
  static_assert(Columns % 32 == 0, "a row is whole lines");
  static constexpr int kElementBytes = sizeof(float);
  static constexpr int kRowBytes = Columns * kElementBytes;
  static constexpr int kChunks = kRowBytes / kChunkBytes;

  std::uint32_t base;         // shared address, a multiple of 128
  std::uint32_t factors = 0;  // of a split tile (fp32/halves.cuh): where the factors of its rows stand

  // Where chunk `chunk` of row `row` is.
  static TESSERA_HD constexpr std::uint32_t offset(int row, int chunk) {
    return swizzled_offset(kRowBytes, row, chunk);
  }

  // Where chunk `chunk` + 8 line of row `row` + below is, from the offset of (row, chunk) with
  // chunk < 8; `below` is a multiple of 8.
  static TESSERA_HD constexpr std::uint32_t further(std::uint32_t offset, int below, int line) {
    return offset + static_cast<std::uint32_t>(below * kRowBytes + line * 128);
  }
};

using ptx::load_float, ptx::load_float2, ptx::store_pair;

__device__ __forceinline__ float4 load_float4(std::uint32_t from) {
  const uint4 x = ptx::load_shared(from);
  return {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
}

__device__ __forceinline__ void load_floats(float (&x)[4], std::uint32_t from) {
  const float4 y = load_float4(from);
  x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
}

// Rows of fp32 numbers in global memory.
struct RowSource32 {
  const float* data = nullptr;  // row 0
  std::int64_t stride = 0;      // elements
  int columns = 0;              // numbers per row; columns from here to the tile's width arrive as zero
  bool aligned = false;         // rows begin on 16-byte boundaries
};

// The chunks of a tile that one thread copies: `kPasses` of them, the row and the chunk of the
// first, and the distance to the next. The lanes of one warp copy a row together, in several passes
// when it has more chunks than lanes.
template <int Columns, int Rows, int Threads>
struct OwnChunks {
  static constexpr int kChunks = SharedTile32<Columns>::kChunks;
  static constexpr int kLanes = kChunks < 32 ? kChunks : 32;
  static constexpr int kRowsPerPass = Threads / kLanes;
  static constexpr int kPartsOfRow = kChunks / kLanes;
  static constexpr int kPasses = Rows * kChunks / Threads;
  static_assert((kRowsPerPass & (kRowsPerPass - 1)) == 0 && Threads % 8 == 0);
  static_assert(Rows % kRowsPerPass == 0 && kPasses * Threads == Rows * kChunks);

  static __device__ __forceinline__ int row() { return static_cast<int>(threadIdx.x) / kLanes; }
  static __device__ __forceinline__ int chunk() { return static_cast<int>(threadIdx.x) % kLanes; }
};

// Copies rows [row, row + Rows) of `from` into the tile, by all Threads threads. Rows outside [0,
// limit) and missing columns arrive as zero. Async: by cp.async, and the caller commits and waits;
// otherwise this thread's part is stored when the function returns. Unaligned: the source may be
// unaligned, which costs a branch.
template <int Columns, int Rows, int Threads, bool Async, bool Unaligned>
__device__ __forceinline__ void load_rows(SharedTile32<Columns> to, const RowSource32& from, int row,
                                          int limit) {
  using Own = OwnChunks<Columns, Rows, Threads>;
  // One pointer that moves on: an address of its own for every pass would be kept in registers by
  // the compiler.
  const float* source = from.data + (row + Own::row()) * from.stride + Own::chunk() * 4;
  const std::uint32_t first = ptx::opaque(to.base + SharedTile32<Columns>::offset(Own::row(), Own::chunk()));
  // Without cp.async the numbers pass through registers: not too many at a time.
  constexpr int kUnrolled = Async || Own::kPasses < 4 ? Own::kPasses : 4;
#pragma unroll(kUnrolled)
  for (int pass = 0; pass < Own::kPasses; ++pass) {
    const int part = pass % Own::kPartsOfRow;
    const int tile_row = Own::row() + pass / Own::kPartsOfRow * Own::kRowsPerPass;
    const int chunk = Own::chunk() + part * Own::kLanes;
    const bool inside = static_cast<unsigned>(row + tile_row) < static_cast<unsigned>(limit);
    const int left = inside ? from.columns - chunk * 4 : 0;  // numbers to read, if positive
    const float* at = source + part * Own::kLanes * 4;
    // The rows of a pass are a power of two, so the swizzle of a later row differs by an
    // exclusive-or.
    const int below = pass / Own::kPartsOfRow * Own::kRowsPerPass;
    const std::uint32_t target = (first ^ static_cast<std::uint32_t>((below & 7) << 4)) +
                                 below * SharedTile32<Columns>::kRowBytes + part * Own::kLanes * 16;
    if constexpr (Async) {
      if (!Unaligned || from.aligned) {
        ptx::copy_async_part(target, at, left >= 4 ? 16 : left > 0 ? left * 4 : 0);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) ptx::copy_async_word(target + e * 4, at + e, e < left);
      }
    } else {
      uint4 x{};
      if ((!Unaligned || from.aligned) && left >= 4) {
        x = __ldg(reinterpret_cast<const uint4*>(at));
      } else {
        if (left > 0) x.x = __float_as_uint(__ldg(at));
        if (left > 1) x.y = __float_as_uint(__ldg(at + 1));
        if (left > 2) x.z = __float_as_uint(__ldg(at + 2));
        if (left > 3) x.w = __float_as_uint(__ldg(at + 3));
      }
      ptx::store_shared(target, x);
    }
    if (part == Own::kPartsOfRow - 1) source += Own::kRowsPerPass * from.stride;
  }
}

// ---- non-finite values ----
// 0 x NaN is NaN, so a masked probability of 0 would spread a NaN at a key that no query sees to
// every output. Where a step is masked, non-finite values are taken out of the tile and added, as
// they are, to the sums of the rows that see them.

// Calls visit(address) for the chunks that this thread copied into the tile.
template <int Columns, int Rows, int Threads, typename Visit>
__device__ __forceinline__ void for_own_chunks(SharedTile32<Columns> tile, Visit&& visit) {
  using Own = OwnChunks<Columns, Rows, Threads>;
#pragma unroll 1
  for (int pass = 0; pass < Own::kPasses; ++pass) {
    const int row = Own::row() + pass / Own::kPartsOfRow * Own::kRowsPerPass;
    const int chunk = Own::chunk() + pass % Own::kPartsOfRow * Own::kLanes;
    visit(tile.base + SharedTile32<Columns>::offset(row, chunk));
  }
}

__device__ __forceinline__ bool is_non_finite(std::uint32_t x) { return (x & 0x7F800000U) == 0x7F800000U; }
__device__ __forceinline__ bool is_non_finite(const uint4& x) {
  return is_non_finite(x.x) || is_non_finite(x.y) || is_non_finite(x.z) || is_non_finite(x.w);
}

// Whether this thread copied a non-finite value into the tile.
template <int Columns, int Rows, int Threads>
__device__ __forceinline__ bool has_non_finite(SharedTile32<Columns> tile) {
  bool found = false;
  for_own_chunks<Columns, Rows, Threads>(
      tile, [&](std::uint32_t at) { found = found || is_non_finite(ptx::load_shared(at)); });
  return found;
}

// Replaces the non-finite values that this thread copied by 0.
template <int Columns, int Rows, int Threads>
__device__ __forceinline__ void clear_non_finite(SharedTile32<Columns> tile) {
  for_own_chunks<Columns, Rows, Threads>(tile, [&](std::uint32_t at) {
    const uint4 x = ptx::load_shared(at);
    auto finite = [](std::uint32_t y) { return is_non_finite(y) ? 0U : y; };
    if (is_non_finite(x)) ptx::store_shared(at, uint4{finite(x.x), finite(x.y), finite(x.z), finite(x.w)});
  });
}

}  // namespace tessera::cuda
