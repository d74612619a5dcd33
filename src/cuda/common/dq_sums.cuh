// dQ is a sum over tiles of keys, and other thread blocks own the tiles. So it is summed in fp32 in
// global memory, in the workspace, by three kernels that agree on where a number is:
//
//   prepare   writes zeros
//   tiles     add dS K with add_fragment, in any order or (deterministic mode) in turns
//   finish    reads the sums with load_fragment, applies the scale, and stores rows of dQ
//
// A block of 64 queries (kQueryBlock) has 64 x head_dim sums. They lie fragment by fragment, as
// accumulators of 16 queries x 8 columns leave the registers: fragment_offset says where a fragment
// begins, and the layout where its 128 numbers are.
#pragma once

#include "cuda/common/ptx/memory.cuh"
#include "cuda/common/ptx/types.h"

namespace tessera::cuda {

// The order of a fragment's numbers. It belongs to the kernel that adds; whoever reads the sums
// names the same one.
enum class SumsLayout : int {
  // A lane's four numbers together, for reductions of four numbers at once. sm_90 and newer.
  fours,
  // The lanes' first numbers, then their second ones, and so on: each of the four reductions of a
  // warp covers 128 bytes.
  apart,
};

// The layout of cuda.flash2's kernels, all of which are compiled for the same GPUs. The value
// differs from one GPU to the next, and on the host it says nothing. It must not become a template
// argument of a kernel, whose name the host knows.
inline constexpr SumsLayout kOwnLayout = ptx::kBefore90 ? SumsLayout::apart : SumsLayout::fours;

// Where the fragment of 16 queries from `row` on and 8 columns from `column` on begins in a block.
__device__ __forceinline__ int fragment_offset(int head_dim, int row, int column) {
  return (row / 16 * (head_dim / 8) + column / 8) * 128;
}

// Adds an accumulator to the fragment at `to`. By a warp.
template <SumsLayout Layout>
__device__ __forceinline__ void add_fragment(float* to, const float (&x)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (Layout == SumsLayout::fours) {
    ptx::add_four(to + lane * 4, x);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) atomicAdd(to + e * 32 + lane, x[e]);
  }
}

// The accumulator whose sums are the fragment at `from`. By a warp.
template <SumsLayout Layout>
__device__ __forceinline__ void load_fragment(float (&x)[4], const float* from) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (Layout == SumsLayout::fours) {
    const float4 four = *reinterpret_cast<const float4*>(from + lane * 4);
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = from[e * 32 + lane];
  }
}

}  // namespace tessera::cuda
