// Where elements lie in the shared memory of the Hopper kernels: arithmetic that the host can
// check.
//
// A tile of R rows is cut into panels of 128 bytes a row, such as 64 columns of 16 bits. Panel
// follows panel, and in each of them row follows row, as the copy engine writes its boxes. It
// swizzles them: the eight 16-byte chunks of a row change places by chunk ^= row % 8, provided that
// tiles begin on multiples of 1024 bytes.
#pragma once

#include <cstdint>

#include "core/base/host_device.h"

namespace tessera::cuda::sm90 {

inline constexpr int kWarpGroup = 128;  // threads
inline constexpr int kGroupRows = 64;   // rows of a warp group's accumulators: wgmma's m64
inline constexpr int kTileSlots = 4;    // tiles announced at a time; the loaders say why

inline constexpr int kRowBytes = 128;       // of a panel
inline constexpr int kChunkBytes = 16;      // what the swizzle moves
inline constexpr int kSwizzleBytes = 1024;  // eight rows: the swizzle repeats
inline constexpr int kStepBytes = 32;       // along a row: a step of a contraction over columns
inline constexpr int kRowStepBytes = 2048;  // 16 rows: a step of a contraction over rows

// Columns of a panel.
constexpr int panel_columns(int element_bytes) { return kRowBytes / element_bytes; }

// The offset of an element from the beginning of a tile of `rows` rows.
TESSERA_HD constexpr std::uint32_t element_offset(int rows, int row, int column, int element_bytes) {
  const int panel = panel_columns(element_bytes), per_chunk = kChunkBytes / element_bytes;
  const int chunk = column % panel / per_chunk;
  return static_cast<std::uint32_t>(column / panel * rows * kRowBytes + row * kRowBytes +
                                    ((chunk ^ (row & 7)) << 4) + column % per_chunk * element_bytes);
}

// Operands of wgmma are named by descriptors (PTX ISA: matrix descriptor). Addresses and strides
// count in units of 16 bytes; mode 1 is the swizzle over 128 bytes. `leading` is the distance
// between panels; operands whose contraction runs along the row do not use it. Only the lower half
// depends on the address, which is below 2^18.
TESSERA_HD constexpr std::uint32_t descriptor_low(std::uint32_t address, std::uint32_t leading) {
  return address >> 4 | leading >> 4 << 16;
}
TESSERA_HD constexpr std::uint64_t join_descriptor(std::uint32_t low) {
  return std::uint64_t{(kSwizzleBytes >> 4) | 1U << 30} << 32 | low;
}

// From the beginning of a tile to step `step` along its rows: Q and K in S = Q K^T, where the
// columns are the contraction.
TESSERA_HD constexpr std::uint32_t column_step(int rows, int step) {
  constexpr int kSteps = kRowBytes / kStepBytes;  // of a panel
  return static_cast<std::uint32_t>(step / kSteps * rows * kRowBytes + step % kSteps * kStepBytes);
}

// To step `step` of 16 rows: V in O = P V, where the rows are the contraction. wgmma has this for
// 16-bit types only.
TESSERA_HD constexpr std::uint32_t row_step(int step) {
  return static_cast<std::uint32_t>(step * kRowStepBytes);
}

// stmatrix and ldmatrix move 16-bit units. Which row lane `lane` names to them for the first 16
// columns of 16 rows from `row` on; and, if that is the address `at`, for columns [8 j, 8 j + 16),
// j even: one instruction instead of eight.
inline constexpr int kMatrixUnitBytes = 2;
TESSERA_HD constexpr std::uint32_t matrix_offset(int rows, int row, int lane) {
  return element_offset(rows, row + lane % 16, lane / 16 * 8, kMatrixUnitBytes);
}
TESSERA_HD constexpr std::uint32_t matrix_step(int rows, std::uint32_t at, int j) {
  return (at ^ static_cast<std::uint32_t>(j % 8 * 16)) + static_cast<std::uint32_t>(j / 8 * rows * kRowBytes);
}

}  // namespace tessera::cuda::sm90
