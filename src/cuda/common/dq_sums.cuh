// dQ is a sum over tiles of keys, and other thread blocks own the tiles. So it is summed in fp32 in
// global memory, in the workspace, by three kernels that agree on where a number is:
//
//   prepare   writes zeros
//   tiles     add dS K with add_fragment, in any order or (deterministic mode) in turns
//   finish    reads the sums with load_fragment, applies the scale, and stores rows of dQ
//
// A block of 64 queries (kQueryBlock) has 64 x head_dim sums. They lie fragment by fragment, as
// accumulators of 16 queries x 8 columns leave the registers: fragment_offset says where a fragment
// begins, and place_of where its 128 numbers are (sums_layout.h).
#pragma once

#include "cuda/common/ptx/memory.cuh"
#include "cuda/common/ptx/types.h"
#include "cuda/common/sums_layout.h"

namespace tessera::cuda {

// The layout of cuda.flash2's kernels, all of which are compiled for the same GPUs. The value
// differs from one GPU to the next, and on the host it says nothing. It must not become a template
// argument of a kernel, whose name the host knows.
inline constexpr SumsLayout kOwnLayout = ptx::kBefore90 ? SumsLayout::apart : SumsLayout::fours;

// Adds an accumulator to the fragment at `to`. By a warp.
template <SumsLayout Layout>
__device__ __forceinline__ void add_fragment(float* to, const float (&x)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (Layout == SumsLayout::fours) {
    ptx::add_four(to + place_of<Layout>(lane, 0), x);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) atomicAdd(to + place_of<Layout>(0, e) + lane, x[e]);
  }
}

// The accumulator whose sums are the fragment at `from`. By a warp.
template <SumsLayout Layout>
__device__ __forceinline__ void load_fragment(float (&x)[4], const float* from) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (Layout == SumsLayout::fours) {
    const float4 four = *reinterpret_cast<const float4*>(from + place_of<Layout>(lane, 0));
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = from[place_of<Layout>(lane, e)];
  }
}

}  // namespace tessera::cuda
