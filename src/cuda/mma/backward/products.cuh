// Products of a warp on tiles in shared memory.
//
// Kernels that own keys compute S^T and dP^T: rows of an accumulator are keys, columns are queries.
// So P^T and dS^T are, once packed, the A operands of dV += P^T dO and dK += dS^T Q.
#pragma once

#include <cstdint>

#include "cuda/common/engine.h"
#include "cuda/common/ptx/mma.cuh"
#include "cuda/common/tile/shared_tile.cuh"

namespace tessera::cuda::mma::backward {

// Scores of 16 * Tiles rows of `own` by 8 * Blocks rows of `streamed`. They are added to `out` or,
// First, take its place. Addresses are those of the lane.
template <Engine E, int Columns, bool First, int Tiles, int Blocks>
__device__ __forceinline__ void issue_scores(float (&out)[Tiles][Blocks][4], std::uint32_t own,
                                             std::uint32_t streamed) {
  using Tile = SharedTile<Columns>;
#pragma unroll
  for (int step = 0; step < Columns / 16; ++step) {
    std::uint32_t a[Tiles][4];
#pragma unroll
    for (int m = 0; m < Tiles; ++m) ptx::load_matrix(a[m], Tile::at(own, m * 16, step));
#pragma unroll
    for (int j = 0; j < Blocks; j += 2) {
      std::uint32_t b[4];
      ptx::load_matrix(b, Tile::at(streamed, j * 8, step));
#pragma unroll
      for (int m = 0; m < Tiles; ++m) {
        if (First && step == 0) {
          ptx::mma_first<mma_of(E), type_of(E)>(out[m][j], a[m], b[0], b[1]);
          ptx::mma_first<mma_of(E), type_of(E)>(out[m][j + 1], a[m], b[2], b[3]);
        } else {
          ptx::mma<mma_of(E), type_of(E)>(out[m][j], a[m], b[0], b[1]);
          ptx::mma<mma_of(E), type_of(E)>(out[m][j + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
}

// sums += left x rows of a tile. Each A operand takes 16 rows, from `row` on. `right` is the lane's
// address in row 0 and the first of the columns.
template <Engine E, int Columns, int Tiles, int Blocks, int Steps>
__device__ __forceinline__ void issue_sums(float (&sums)[Tiles][Blocks][4],
                                           const std::uint32_t (&left)[Tiles][Steps][4], std::uint32_t right,
                                           int row) {
#pragma unroll
  for (int n = 0; n < Steps; ++n) {
#pragma unroll
    for (int j = 0; j < Blocks; j += 2) {
      std::uint32_t b[4];
      ptx::load_matrix_transposed(b, SharedTile<Columns>::at(right, row + n * 16, j / 2));
#pragma unroll
      for (int m = 0; m < Tiles; ++m) {
        ptx::mma<mma_of(E), type_of(E)>(sums[m][j], left[m][n], b[0], b[1]);
        ptx::mma<mma_of(E), type_of(E)>(sums[m][j + 1], left[m][n], b[2], b[3]);
      }
    }
  }
}

// Accumulators, packed: two of them side by side are the A operand of 16 columns.
template <ptx::Half16 Type, int Tiles, int Pairs, int Blocks>
__device__ __forceinline__ void pack_operands(std::uint32_t (&packed)[Tiles][Pairs][4],
                                              const float (&x)[Tiles][Blocks][4]) {
  static_assert(Blocks == 2 * Pairs);
#pragma unroll
  for (int m = 0; m < Tiles; ++m) {
#pragma unroll
    for (int n = 0; n < Pairs; ++n) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float(&from)[4] = x[m][2 * n + r / 2];
        packed[m][n][r] = ptx::pack<Type>(from[r % 2 * 2], from[r % 2 * 2 + 1]);
      }
    }
  }
}

}  // namespace tessera::cuda::mma::backward
