// The end of a tile of the forward kernel, and what values that are not finite ask for.
#pragma once

#include "cuda/flash2/forward_tile.cuh"

namespace tessera::cuda {

// Whether every accumulated value of this warp is.
template <ForwardConfig C>
__device__ __forceinline__ bool ForwardTile<C>::finite() const {
  float trace = 0;  // stays 0
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int j = 0; j < kD; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) trace = fmaf(o_[mi][j][e], 0.0F, trace);
    }
  }
  return trace == 0;
}

// Normalises and stores O, through the memory of Q so that rows are written in whole lines, and LSE.
template <ForwardConfig C>
__device__ __forceinline__ void ForwardTile<C>::finalize(bool careful) {
  const core::Problem& p = a_.p;
  float* const lse_rows = place().lse;
  const int rows = place().end - place().begin;
  const float c = exponent_scale();
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[mi][half];
      sum += __shfl_xor_sync(kWarp, sum, 1);
      sum += __shfl_xor_sync(kWarp, sum, 2);
      if (lse_rows != nullptr && lane_ % 4 == 0 && row(mi, half) < rows) {
        lse_rows[row(mi, half) * p.lse.row_stride] =
            sum == 0 ? -INFINITY : (maximum_[mi][half] * c + log2f(sum)) * kLn2;
      }
      const float normaliser = sum == 0 ? 0 : a_.features.keep_scale / sum;
#pragma unroll
      for (int j = 0; j < kD; ++j) {
        ptx::store_shared(
            shared_ + Tile::offset(row(mi, half), j) + lane_ % 4 * 4,
            ptx::pack<C.type>(o_[mi][j][2 * half] * normaliser, o_[mi][j][2 * half + 1] * normaliser));
      }
    }
  }
  __syncwarp();
  if (careful) reach_visible_rows<C.type>(Tile{shared_}, place(), p, warp_row_, warp_row_ + 16 * kM);
  store_output<C.head_dim, 16 * kM, kFeatured>(Tile{shared_}, place(), p, warp_row_, a_.out_aligned);
}

}  // namespace tessera::cuda
