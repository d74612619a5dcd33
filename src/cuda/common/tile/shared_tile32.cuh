// A tile of fp32 numbers in shared memory, swizzled as in shared_tile.cuh, and how it is filled from global memory.
//
// A row is Columns * 4 bytes in chunks of 16; chunk c of row r stands where c ^ (r & 7) would, within its group of
// eight chunks (one line of 128 bytes). Reads of one chunk of eight rows, and of a line's chunks 2n and 2n + 1 in four even
// or four odd rows, meet eight different groups of banks.
#pragma once

#include <cstdint>

#include "core/base/host_device.h"
#include "cuda/common/ptx/copy.cuh"

namespace tessera::cuda {

template <int Columns>
struct SharedTile32 {
  static_assert(Columns % 32 == 0, "a row is whole lines");
  static constexpr int kRowBytes = Columns * 4;
  static constexpr int kChunks = Columns / 4;  // of 16 bytes

  std::uint32_t base;         // shared address, a multiple of 128
  std::uint32_t factors = 0;  // of a split tile (fp32/halves.cuh): where the factors of its rows stand

  // Where chunk `chunk` of row `row` stands.
  static TESSERA_HD constexpr std::uint32_t offset(int row, int chunk) {
    return static_cast<std::uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
  }

  // Where chunk `chunk` + 8 line of row `row` + below stands, from the offset of (row, chunk) with chunk < 8; `below` is
  // a multiple of 8.
  static TESSERA_HD constexpr std::uint32_t further(std::uint32_t offset, int below, int line) {
    return offset + static_cast<std::uint32_t>(below * kRowBytes + line * 128);
  }
};

// An address that the compiler may not compute ahead of time. What it knows to be the same in every step it computes before
// the first, dozens of sums of an address and a constant, and keeps in registers that the products need.
__device__ __forceinline__ std::uint32_t here(std::uint32_t address) {
  asm volatile("" : "+r"(address));
  return address;
}

__device__ __forceinline__ float4 load_float4(std::uint32_t from) {
  const uint4 x = ptx::load_shared(from);
  return {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
}

__device__ __forceinline__ void load_floats(float (&x)[4], std::uint32_t from) {
  const float4 y = load_float4(from);
  x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
}

// PTX ISA: ld.shared.
__device__ __forceinline__ float load_float(std::uint32_t from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}

// Rows of fp32 numbers in global memory.
struct RowSource32 {
  const float* data = nullptr;  // row 0
  std::int64_t stride = 0;      // elements
  int columns = 0;              // numbers per row; what is missing to the tile's width arrives as zero
  bool aligned = false;         // rows begin on 16-byte boundaries
};

// PTX ISA: st.shared.v2.
__device__ __forceinline__ void store_pair(std::uint32_t to, uint2 x) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(x.x), "r"(x.y) : "memory");
}

// PTX ISA: ld.shared.v2.
__device__ __forceinline__ float2 load_float2(std::uint32_t from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}

// The chunks of a tile that one thread copies: `kPasses` of them, (row, chunk) of the first, and how far the next is. A row
// belongs to the lanes of one warp, the whole of it or, when it has more chunks than lanes, in parts.
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

// Copies rows [row, row + Rows) of `from` into the tile, by all Threads threads; rows outside [0, limit) and missing
// columns arrive as zero. Async: by cp.async, to be committed and waited for by the caller; else when it returns, this
// thread's part is stored. Unaligned: the source may be unaligned; costs a branch.
template <int Columns, int Rows, int Threads, bool Async, bool Unaligned>
__device__ __forceinline__ void load_rows(SharedTile32<Columns> to, const RowSource32& from, int row,
                                          int limit) {
  using Own = OwnChunks<Columns, Rows, Threads>;
  // One pointer that moves on: an address of its own for every pass would be kept in registers by the compiler.
  const float* source = from.data + (row + Own::row()) * from.stride + Own::chunk() * 4;
  const std::uint32_t first = here(to.base + SharedTile32<Columns>::offset(Own::row(), Own::chunk()));
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
    // The rows of a pass are a power of two, so the swizzle of a later row differs by an exclusive-or.
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

// ---- numbers that are not finite ----
// A product with a masked probability of 0 must not turn a NaN that nobody sees into a NaN for all. Where a step is
// masked, such numbers are taken out of the tile and added, as they are, to the sums of those that see them.

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

// Whether this thread copied such a number into the tile.
template <int Columns, int Rows, int Threads>
__device__ __forceinline__ bool has_non_finite(SharedTile32<Columns> tile) {
  bool found = false;
  for_own_chunks<Columns, Rows, Threads>(
      tile, [&](std::uint32_t at) { found = found || is_non_finite(ptx::load_shared(at)); });
  return found;
}

// Replaces those that this thread copied by 0.
template <int Columns, int Rows, int Threads>
__device__ __forceinline__ void clear_non_finite(SharedTile32<Columns> tile) {
  for_own_chunks<Columns, Rows, Threads>(tile, [&](std::uint32_t at) {
    const uint4 x = ptx::load_shared(at);
    auto finite = [](std::uint32_t y) { return is_non_finite(y) ? 0U : y; };
    if (is_non_finite(x)) ptx::store_shared(at, uint4{finite(x.x), finite(x.y), finite(x.z), finite(x.w)});
  });
}

}  // namespace tessera::cuda
