// Where the chunks of a tile stand in shared memory: arithmetic that the host can check.
//
// A row is columns * 2 bytes in chunks of 16; chunk c of row r stands where c ^ (r & 7) would, within its group of
// eight chunks. So eight rows of one chunk, which is what ldmatrix reads at once, lie in different banks. (Shorter rows
// share a line of banks, two or four of them, and change places from line to line.)
#pragma once

#include <cstdint>

#include "core/base/host_device.h"

namespace tessera::cuda {

// The offset in bytes of a chunk of a row of `columns` 16-bit numbers: 16, 32 or a multiple of 64.
TESSERA_HD constexpr std::uint32_t swizzled_offset(int columns, int row, int chunk) {
  const int turn = columns == 16 ? row >> 2 & 1 : columns == 32 ? row >> 1 & 3 : row & 7;
  return static_cast<std::uint32_t>(row * columns * 2 + ((chunk ^ turn) << 4));
}

}  // namespace tessera::cuda
