// The end of a tile of the forward kernel.
#pragma once

#include "cuda/mma/forward/tile.cuh"

namespace tessera::cuda::mma::forward {

// Normalises and stores O, through the memory of Q so that rows are written in whole lines, and LSE.
template <Config C>
__device__ __forceinline__ void QueryTile<C>::finalize(bool careful) {
  const core::Problem& p = a_.p;
  float* const lse_rows = info().lse;
  const int rows = info().end - info().begin;
  const float c = exponent_scale();
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[mi][half];
      sum += __shfl_xor_sync(kWarp, sum, 1);
      sum += __shfl_xor_sync(kWarp, sum, 2);
      if (lse_rows != nullptr && lane_ % 4 == 0 && row(mi, half) < rows) {
        lse_rows[row(mi, half) * p.lse.row_stride] = row_lse(maximum_[mi][half] * c, sum);
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
  if (careful) {
    reach_visible_rows<C.type, kFeatured && C.bias>(Tile{shared_}, info(), p, warp_row_, warp_row_ + 16 * kM);
  }
  store_output<C.head_dim, 16 * kM, kFeatured>(Tile{shared_}, info(), p, warp_row_, a_.out_aligned);
}

}  // namespace tessera::cuda::mma::forward
