// Where numbers stand in a tile: in the registers of a lane (the layouts of ptx/mma.cuh) and in
// shared memory. Arithmetic that the host can check.
#pragma once

#include <cstdint>

#include "core/base/host_device.h"

namespace tessera::cuda {

// ---- registers ----

// An m16n8 accumulator: element e of lane l.
struct AccumulatorFragment {
  TESSERA_HD static constexpr int row(int lane, int e) { return lane / 4 + e / 2 * 8; }
  TESSERA_HD static constexpr int column(int lane, int e) { return lane % 4 * 2 + e % 2; }
};

// The accumulators of P V for fp32. A lane reads four neighbouring numbers of a row of V at once,
// one for each of four n8 tiles. So tile n holds every fourth column of its group of 32, and a
// lane's accumulators lie in two runs of four.
struct WideFragment {
  TESSERA_HD static constexpr int row(int lane, int e) { return lane / 4 + e / 2 * 8; }
  TESSERA_HD static constexpr int column(int lane, int tile, int e) {
    return tile / 4 * 32 + lane % 4 * 8 + e % 2 * 4 + tile % 4;
  }
};

// The row and the 16-byte chunk that lane l names to ldmatrix, relative to the first row and chunk
// of the operand.
struct MatrixAddress {
  int row;
  int chunk;
};

// A (m16k16) from a tile whose rows are the rows of A. Also B (k16n16, two k16n8 side by side) by
// the transposed load from a tile whose rows are the contraction.
TESSERA_HD constexpr MatrixAddress row_operand(int lane) { return {lane & 15, lane >> 4}; }

// B (two k16n8) from a tile whose rows are the columns of B. Also A by the transposed load from a
// tile whose rows are the contraction.
TESSERA_HD constexpr MatrixAddress column_operand(int lane) {
  return {(lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1};
}

// ---- shared memory ----

// Rows are stored in chunks of 16 bytes. Chunk c of row r takes the place of chunk c ^ (r & 7)
// within its group of eight chunks, so that eight rows of one chunk, which ldmatrix reads at once,
// lie in different banks. Shorter rows share a line of banks, two or four of them, and change
// places from line to line.
inline constexpr int kChunkBytes = 16;

// The offset in bytes of a chunk in rows of `row_bytes`: 32, 64 or a multiple of 128.
TESSERA_HD constexpr std::uint32_t swizzled_offset(int row_bytes, int row, int chunk) {
  const int turn = row_bytes == 32 ? row >> 2 & 1 : row_bytes == 64 ? row >> 1 & 3 : row & 7;
  return static_cast<std::uint32_t>(row * row_bytes + ((chunk ^ turn) << 4));
}

}  // namespace tessera::cuda
