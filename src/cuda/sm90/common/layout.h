// Where numbers stand in the shared memory of the Hopper kernels: arithmetic that the host can check.
//
// A tile of R rows stands in panels of 64 columns: panel after panel, in each row after row of 128 bytes, as the copy engine
// writes boxes of 64 columns. It swizzles them: the eight 16-byte chunks of a row change places by chunk ^= row % 8, provided
// that tiles begin on multiples of 1024 bytes.
#pragma once

#include <cstdint>

#include "core/base/host_device.h"

namespace tessera::cuda::sm90 {

inline constexpr int kWarpGroup = 128;  // threads
inline constexpr int kGroupRows = 64;   // rows of an accumulator that a warp group owns: wgmma's m64
inline constexpr int kTileSlots = 4;    // tiles announced at a time; the loaders say why these are enough

inline constexpr int kPanel = 64;           // 16-bit columns in a row of a panel
inline constexpr int kRowBytes = 128;       // of a panel
inline constexpr int kSwizzleBytes = 1024;  // eight rows: what the swizzle repeats after
inline constexpr int kStepBytes = 32;       // 16 columns within a row: a step of the contraction over columns
inline constexpr int kRowStepBytes = 2048;  // 16 rows: a step of the contraction over rows

// Of a number, from the beginning of a tile of `rows` rows.
TESSERA_HD constexpr std::uint32_t element_offset(int rows, int row, int column) {
  const int chunk = column % 64 / 8;
  return static_cast<std::uint32_t>(column / 64 * rows * kRowBytes + row * kRowBytes +
                                    ((chunk ^ (row & 7)) << 4) + column % 8 * 2);
}

// Operands of wgmma by their descriptor (PTX ISA: matrix descriptor): addresses and strides in units of 16 bytes, mode 1 for
// the swizzle over 128 bytes. `leading` is the distance of panels; operands whose contraction runs along the row do not use
// it. Only the lower half depends on the address, which is below 2^18.
TESSERA_HD constexpr std::uint32_t descriptor_low(std::uint32_t address, std::uint32_t leading) {
  return address >> 4 | leading >> 4 << 16;
}
TESSERA_HD constexpr std::uint64_t join_descriptor(std::uint32_t low) {
  return std::uint64_t{(kSwizzleBytes >> 4) | 1U << 30} << 32 | low;
}

// From the beginning of a tile to step `step` of 16 columns: Q and K in S = Q K^T, where the columns are the contraction.
TESSERA_HD constexpr std::uint32_t column_step(int rows, int step) {
  return static_cast<std::uint32_t>(step / 4 * rows * kRowBytes + step % 4 * kStepBytes);
}

// To step `step` of 16 rows: V in O = P V, where the rows are the contraction.
TESSERA_HD constexpr std::uint32_t row_step(int step) {
  return static_cast<std::uint32_t>(step * kRowStepBytes);
}

// Which row lane `lane` names for stmatrix or ldmatrix of the first 16 columns of 16 rows from `row` on; and, if that is the
// address `at`, for columns [8 j, 8 j + 16), j even: one instruction instead of eight.
TESSERA_HD constexpr std::uint32_t matrix_offset(int rows, int row, int lane) {
  return element_offset(rows, row + lane % 16, lane / 16 * 8);
}
TESSERA_HD constexpr std::uint32_t matrix_step(int rows, std::uint32_t at, int j) {
  return (at ^ static_cast<std::uint32_t>(j % 8 * 16)) + static_cast<std::uint32_t>(j / 8 * rows * kRowBytes);
}

}  // namespace tessera::cuda::sm90
