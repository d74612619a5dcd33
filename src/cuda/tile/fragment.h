// Where a lane's registers lie in a tile: the layouts of ptx/mma.cuh as arithmetic that the host can check.
#pragma once

#include "core/host_device.h"

namespace tessera::cuda {

// An m16n8 accumulator: element e of lane l.
struct AccumulatorFragment {
  TESSERA_HD static constexpr int row(int lane, int e) { return lane / 4 + e / 2 * 8; }
  TESSERA_HD static constexpr int column(int lane, int e) { return lane % 4 * 2 + e % 2; }
};

// The row and the 16-byte chunk that lane l names to ldmatrix, relative to the first row and chunk of the operand.
struct MatrixAddress {
  int row;
  int chunk;
};

// A (m16k16) from a tile whose rows are the rows of A; also B (k16n16, two k16n8 side by side) by the transposed
// load from a tile whose rows are the contraction.
TESSERA_HD constexpr MatrixAddress row_operand(int lane) { return {lane & 15, lane >> 4}; }

// B (two k16n8) from a tile whose rows are the columns of B; also A by the transposed load from a tile whose rows
// are the contraction.
TESSERA_HD constexpr MatrixAddress column_operand(int lane) {
  return {(lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1};
}

}  // namespace tessera::cuda
