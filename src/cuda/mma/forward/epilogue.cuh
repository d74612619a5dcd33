// The end of a tile of both forward kernels: normalised rows of O, and LSE.
#pragma once

#include "cuda/mma/forward/tile.cuh"
#include "cuda/mma/forward/wide_kernel.cuh"

namespace tessera::cuda::mma::forward {

// The sum of a number over the four lanes that share a row.
__device__ __forceinline__ float sum_of_quad(float x) {
  x += __shfl_xor_sync(0xFFFFFFFF, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFF, x, 2);
}

// Puts half `half` of the accumulators of 16 rows, times `normaliser`, into row `r` of the staged
// output, from chunk `chunk` on.
template <ptx::Half16 Type, int HeadDim, int Blocks>
__device__ __forceinline__ void stage_row(SharedTile<HeadDim> staged, int lane, int r, int chunk,
                                          const float (&o)[Blocks][4], int half, float normaliser) {
#pragma unroll
  for (int j = 0; j < Blocks; ++j) {
    ptx::store_shared(staged.base + SharedTile<HeadDim>::offset(r, chunk + j) + lane % 4 * 4,
                      ptx::pack<Type>(o[j][2 * half] * normaliser, o[j][2 * half + 1] * normaliser));
  }
}

// O leaves through the shared memory of Q, so that rows are written in whole lines.
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
      const float sum = sum_of_quad(sum_[mi][half]);
      if (lse_rows != nullptr && lane_ % 4 == 0 && row(mi, half) < rows)
        lse_rows[row(mi, half) * p.lse.row_stride] = row_lse(maximum_[mi][half] * c, sum);
      stage_row<C.type>(Tile{shared_}, lane_, row(mi, half), 0, o_[mi], half,
                        sum == 0 ? 0 : a_.features.keep_scale / sum);
    }
  }
  __syncwarp();
  if (careful) {
    reach_visible_rows<C.type, kFeatured && C.bias>(Tile{shared_}, info(), p, warp_row_, warp_row_ + 16 * kM);
  }
  store_output<C.head_dim, 16 * kM, kFeatured>(Tile{shared_}, info(), p, warp_row_, a_.out_aligned);
}

// The sums of the two warps of a pair are added first: each has those of its own keys.
template <Config C>
__device__ __forceinline__ void WideQueryTile<C>::finalize(bool careful) {
  const core::Problem& p = a_.p;
  float* const lse_rows = info().lse;
  const int rows = info().end - info().begin;
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_quad(sum_[mi][half]);
      if (lane_ % 4 == 0) ptx::store_shared(exchange(part_, row(mi, half)), __float_as_uint(sum));
    }
  }
  __syncthreads();
#pragma unroll
  for (int mi = 0; mi < kM; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row(mi, half);
      const float sum = __uint_as_float(ptx::load_shared_word(exchange(0, r))) +
                        __uint_as_float(ptx::load_shared_word(exchange(1, r)));
      if (part_ == 0 && lse_rows != nullptr && lane_ % 4 == 0 && r < rows)
        lse_rows[r * p.lse.row_stride] = row_lse(maximum_[mi][half] * a_.features.scale_log2, sum);
      stage_row<C.type>(Tile{shared_}, lane_, r, part_ * kD, o_[mi], half,
                        sum == 0 ? 0 : a_.features.keep_scale / sum);
    }
  }
  __syncthreads();
  constexpr int kRows = C.block_q() / C.warps;
  const int first = static_cast<int>(threadIdx.x) / 32 * kRows;
  if (careful) reach_visible_rows<C.type, false>(Tile{shared_}, info(), p, first, first + kRows);
  store_output<C.head_dim, kRows, false>(Tile{shared_}, info(), p, first, true);
}

}  // namespace tessera::cuda::mma::forward
