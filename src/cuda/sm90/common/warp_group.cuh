// What the computing warp groups of both Hopper kernels need: values that are uniform over a warp,
// descriptors for wgmma, and the way of 16 rows of results from shared memory to a tensor.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "cuda/common/ptx/async.cuh"
#include "cuda/sm90/common/layout.h"

namespace tessera::cuda::sm90 {

inline constexpr unsigned kWholeWarp = 0xFFFFFFFF;

// A number that all lanes hold already; the shuffle lets the assembler know it.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(kWholeWarp, x, 0); }

// The wgmma descriptor of an operand that begins `offset` bytes into a tile.
//
// Whatever a descriptor depends on is the same for all lanes, and the assembler has to know it:
// then descriptors live in uniform registers. A branch that lanes might take differently, even far
// away, takes this knowledge from it (tools/check-hopper counts the instructions).
__device__ __forceinline__ std::uint64_t descriptor(const void* tile, int offset, std::uint32_t leading) {
  const std::uint32_t address = ptx::shared_address(tile) + static_cast<std::uint32_t>(offset);
  return join_descriptor(descriptor_low(address, leading));
}

}  // namespace tessera::cuda::sm90
