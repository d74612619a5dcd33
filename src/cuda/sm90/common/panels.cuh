// Copies of tiles between tensors and panels in shared memory, by the copy engine.
#pragma once

#include <cstdint>

#include "cuda/common/ptx/async.cuh"
#include "cuda/sm90/common/layout.h"

namespace tessera::cuda::sm90 {

// Loads `Rows` rows of `Columns` columns, panel by panel, into a tile of `Pitch` rows; their bytes
// arrive at `full`, which has been told to expect them. By one thread.
template <int ElementBytes, int Columns, int Rows, int Pitch = Rows>
__device__ __forceinline__ void load_panels(unsigned char* to, const CUtensorMap& map, std::uint64_t* full,
                                            int row, int head, int batch) {
  constexpr int kColumns = panel_columns(ElementBytes);
#pragma unroll
  for (int panel = 0; panel < Columns / kColumns; ++panel) {
    ptx::load_box(to + panel * Pitch * kRowBytes, map, full, panel * kColumns, row, head, batch);
  }
}

}  // namespace tessera::cuda::sm90
