// Rows that leave shared memory number by number, where the copy engine would write beyond the end
// of a packed sequence.
#pragma once

#include "cuda/common/ptx/copy.cuh"
#include "cuda/common/ptx/types.h"
#include "cuda/sm90/common/layout.h"

namespace tessera::cuda::sm90 {

// Stores the first `columns` numbers of row `row` of a tile of Rows rows. By a warp.
template <int Rows>
__device__ __forceinline__ void store_row(ptx::HalfBits* to, const unsigned char* tile, int row, int columns,
                                          int lane) {
#pragma unroll 1
  for (int column = lane; column < columns; column += 32) {
    to[column] = ptx::load_shared_half(ptx::shared_address(tile) + element_offset(Rows, row, column));
  }
}

}  // namespace tessera::cuda::sm90
