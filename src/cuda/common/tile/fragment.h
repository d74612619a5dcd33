// Where a lane's registers lie in a tile: the layouts of ptx/mma.cuh as arithmetic that the host can check.
#pragma once

#include "core/base/host_device.h"

namespace tessera::cuda {

// An m16n8 accumulator: element e of lane l.
struct AccumulatorFragment {
  TESSERA_HD static constexpr int row(int lane, int e) { return lane / 4 + e / 2 * 8; }
  TESSERA_HD static constexpr int column(int lane, int e) { return lane % 4 * 2 + e % 2; }
};

// The accumulators of P V for fp32: a lane reads four neighbouring numbers of a row of V at once, one for each of four
// n8 tiles, so tile n holds every fourth column of its group of 32, and a lane's accumulators lie in two runs of four.
struct WideFragment {
  TESSERA_HD static constexpr int row(int lane, int e) { return lane / 4 + e / 2 * 8; }
  TESSERA_HD static constexpr int column(int lane, int tile, int e) {
    return tile / 4 * 32 + lane % 4 * 8 + e % 2 * 4 + tile % 4;
  }
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
