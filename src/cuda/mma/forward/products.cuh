// The products of scores that both forward kernels issue.
#pragma once

#include <cstdint>

#include "cuda/common/ptx/mma.cuh"
#include "cuda/common/tile/shared_tile.cuh"
#include "cuda/mma/forward/config.h"

namespace tessera::cuda::mma::forward {

// S += Q K^T, or (in the first step) S = Q K^T, for step `k_step` of 16 columns of head_dim, and
// for the keys of S from `row` of their tile on. `k` is this lane's address in the tile.
template <Config C, int Tiles, int Blocks>
__device__ __forceinline__ void multiply_keys(float (&s)[Tiles][Blocks][4],
                                              const std::uint32_t (&q)[Tiles][4], std::uint32_t k, int row,
                                              int k_step) {
#pragma unroll
  for (int j = 0; j < Blocks; j += 2) {
    std::uint32_t b[4];
    ptx::load_matrix(b, SharedTile<C.head_dim>::at(k, row + j * 8, k_step));
#pragma unroll
    for (int mi = 0; mi < Tiles; ++mi) {
      if (k_step == 0) {
        ptx::mma_first<C.mma, C.type>(s[mi][j], q[mi], b[0], b[1]);
        ptx::mma_first<C.mma, C.type>(s[mi][j + 1], q[mi], b[2], b[3]);
      } else {
        ptx::mma<C.mma, C.type>(s[mi][j], q[mi], b[0], b[1]);
        ptx::mma<C.mma, C.type>(s[mi][j + 1], q[mi], b[2], b[3]);
      }
    }
  }
}

}  // namespace tessera::cuda::mma::forward
