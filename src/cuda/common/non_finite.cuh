// Non-finite values in tiles whose rows meet zeros. P and dS are exactly 0 at masked positions, but
// 0 x NaN and 0 x inf are NaN. So before a product with a masked block of scores the tile's
// non-finite values become 0. Where such a value is visible, the gradient is NaN all the same: the
// score or dP of that pair is not finite.
#pragma once

#include <cstdint>

#include "cuda/common/ptx/copy.cuh"
#include "cuda/common/ptx/shared_memory.cuh"
#include "cuda/common/ptx/types.h"
#include "cuda/common/tile/layout.h"

namespace tessera::cuda {

// Two numbers, with 0 in place of a non-finite one.
template <ptx::Half16 Type>
__device__ __forceinline__ std::uint32_t only_finite(std::uint32_t pair) {
  constexpr std::uint32_t kExponent = Type == ptx::Half16::bf16 ? 0x7F80 : 0x7C00;
  if ((pair & kExponent) == kExponent) pair &= 0xFFFF0000U;
  if ((pair >> 16 & kExponent) == kExponent) pair &= 0xFFFFU;
  return pair;
}

// Clears one chunk of a tile in shared memory. Together: another thread may be doing the same.
template <ptx::Half16 Type, bool Together = false>
__device__ __forceinline__ void clear_chunk(std::uint32_t chunk) {
  const uint4 x = Together ? ptx::load_shared_same(chunk) : ptx::load_shared(chunk);
  const uint4 cleared{only_finite<Type>(x.x), only_finite<Type>(x.y), only_finite<Type>(x.z),
                      only_finite<Type>(x.w)};
  if constexpr (Together) ptx::store_shared_same(chunk, cleared);
  else ptx::store_shared(chunk, cleared);
}

// Clears rows [first, last) of a tile of rows of Columns numbers, by the whole thread block of
// Threads threads. The order of the chunks in a row does not matter.
template <ptx::Half16 Type, int Columns, int Threads>
__device__ __forceinline__ void clear_non_finite(std::uint32_t tile, int first, int last) {
  constexpr int kRowChunks = Columns * ptx::element_bytes(Type) / kChunkBytes;
#pragma unroll 1
  for (int at = first * kRowChunks + static_cast<int>(threadIdx.x); at < last * kRowChunks; at += Threads)
    clear_chunk<Type>(tile + at * kChunkBytes);
}

}  // namespace tessera::cuda
