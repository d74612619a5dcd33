// The shared memory of the Hopper kernels, with models of the copy engine and of wgmma as the PTX
// ISA describes them.
#include "cuda/sm90/common/layout.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "cuda/common/tile/layout.h"

namespace tessera::cuda::sm90 {
namespace {

using Element = std::pair<int, int>;              // row, column of a tile
using Memory = std::map<std::uint32_t, Element>;  // by address

// CU_TENSOR_MAP_SWIZZLE_128B and wgmma's 128-byte swizzle: address bits 4 to 6 ^= bits 7 to 9.
std::uint32_t swizzled(std::uint32_t address) { return address ^ (address >> 3 & 0x70); }

// What boxes of 64 columns write, also beyond `columns` in the last box: row after row of 128
// bytes, swizzled by address.
Memory load_boxes(std::uint32_t base, int rows, int columns) {
  Memory memory;
  for (int panel = 0; panel < (columns + 63) / 64; ++panel) {
    const std::uint32_t box = base + static_cast<std::uint32_t>(panel * rows * kRowBytes);
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < 64; ++column) {
        memory[swizzled(box + static_cast<std::uint32_t>(row * kRowBytes + column * 2))] = {
            row, panel * 64 + column};
      }
    }
  }
  return memory;
}

struct Descriptor {
  std::uint32_t address, leading, stride;
  explicit Descriptor(std::uint64_t bits)
      : address(static_cast<std::uint32_t>(bits & 0x3FFF) << 4),
        leading(static_cast<std::uint32_t>(bits >> 16 & 0x3FFF) << 4),
        stride(static_cast<std::uint32_t>(bits >> 32 & 0x3FFF) << 4) {
    EXPECT_EQ(bits >> 62, 1U) << "128-byte swizzle";
    EXPECT_EQ(bits >> 49 & 7, 0U) << "base offset";
  }
  // The contraction is contiguous: groups of eight rows are `stride` apart.
  std::uint32_t contraction_contiguous(int outer, int k) const {
    return swizzled(address + static_cast<std::uint32_t>(outer / 8) * stride +
                    static_cast<std::uint32_t>(outer % 8 * 128 + k * 2));
  }
  // The other dimension is contiguous: groups of eight contraction rows are `stride` apart, groups
  // of 64 columns `leading`.
  std::uint32_t outer_contiguous(int outer, int k) const {
    return swizzled(address + static_cast<std::uint32_t>(outer / 64) * leading +
                    static_cast<std::uint32_t>(k / 8) * stride +
                    static_cast<std::uint32_t>(k % 8 * 128 + outer % 64 * 2));
  }
};

std::uint64_t advanced(std::uint32_t low, std::uint32_t bytes) { return join_descriptor(low + (bytes >> 4)); }

constexpr std::uint32_t kBases[] = {1024, 64 * 1024, 200 * 1024};

TEST(HopperLayout, ElementsStandWhereTheCopyEnginePutsThem) {
  for (const int columns : {64, 128, 192, 256}) {
    for (const int rows : {64, 96, 128, 256}) {
      for (const auto& [address, element] : load_boxes(0, rows, columns)) {
        ASSERT_EQ(element_offset(rows, element.first, element.second, 2), address);
      }
    }
  }
}

// Q and K: step i of the contraction reads columns [16 i, 16 i + 16) of the rows of its warp group.
TEST(HopperLayout, DescriptorsOfScores) {
  for (const std::uint32_t base : kBases) {
    for (const int columns : {64, 96, 128, 192, 256}) {
      for (const int rows : {64, 96, 128, 192, 256}) {
        if (base + static_cast<std::uint32_t>((columns + 63) / 64 * rows * kRowBytes) > 227 * 1024) continue;
        const Memory memory = load_boxes(base, rows, columns);
        for (int first = 0; first + 64 <= rows; first += 64) {
          const std::uint32_t low = descriptor_low(base + static_cast<std::uint32_t>(first * kRowBytes), 0);
          for (int step = 0; step < columns / 16; ++step) {
            const Descriptor matrix(advanced(low, column_step(rows, step)));
            for (int row = 0; row < 64; ++row) {
              for (int k = 0; k < 16; ++k) {
                ASSERT_EQ(memory.at(matrix.contraction_contiguous(row, k)),
                          Element(first + row, 16 * step + k));
              }
            }
          }
        }
      }
    }
  }
}

// V: step i reads rows [16 i, 16 i + 16), all columns.
TEST(HopperLayout, DescriptorsOfValues) {
  for (const std::uint32_t base : kBases) {
    for (const int columns : {64, 96, 128, 256}) {
      for (const int rows : {64, 96, 128}) {
        if (base + static_cast<std::uint32_t>((columns + 63) / 64 * rows * kRowBytes) > 227 * 1024) continue;
        const Memory memory = load_boxes(base, rows, columns);
        const std::uint32_t low = descriptor_low(base, static_cast<std::uint32_t>(rows * kRowBytes));
        for (int step = 0; step < rows / 16; ++step) {
          const Descriptor matrix(advanced(low, row_step(step)));
          for (int column = 0; column < columns; ++column) {
            for (int k = 0; k < 16; ++k) {
              ASSERT_EQ(memory.at(matrix.outer_contiguous(column, k)), Element(16 * step + k, column));
            }
          }
        }
      }
    }
  }
}

// stmatrix: eight lanes name the rows of one 8x8 matrix; matrices 0 and 1 are the halves of eight
// columns, 2 and 3 of the next.
TEST(HopperLayout, OutputIsStoredAsBoxesAreRead) {
  constexpr int kRows = 128, kFirst = 48;
  const Memory memory = load_boxes(0, kRows, 128);
  for (int j = 0; j < 16; j += 2) {
    std::set<Element> seen;
    for (int register_index = 0; register_index < 4; ++register_index) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int e = 0; e < 2; ++e) {
          // The element that this lane's accumulator holds ...
          const int accumulator = register_index / 2, half = register_index % 2;
          const Element held{kFirst + AccumulatorFragment::row(lane, 2 * half + e),
                             (j + accumulator) * 8 + AccumulatorFragment::column(lane, 2 * half + e)};
          // ... goes to row lane / 4 of the matrix, whose address lane 8 * register + lane / 4
          // names.
          const int named = 8 * register_index + lane / 4;
          const std::uint32_t at = matrix_step(kRows, matrix_offset(kRows, kFirst, named), j) +
                                   static_cast<std::uint32_t>(lane % 4 * 4 + e * 2);
          ASSERT_EQ(memory.at(at), held);
          seen.insert(held);
        }
      }
    }
    EXPECT_EQ(seen.size(), 256U);
  }
}

// Panels are 128 bytes wide whatever the elements are: chunk c of a row holds the same bytes for
// each type.
TEST(HopperLayout, PanelsDependOnBytesAlone) {
  EXPECT_EQ(panel_columns(1), 128);
  EXPECT_EQ(panel_columns(2), 64);
  constexpr int kRows = 128;
  for (int row = 0; row < kRows; ++row) {
    for (int byte = 0; byte < 256; byte += 2) {
      EXPECT_EQ(element_offset(kRows, row, byte, 1), element_offset(kRows, row, byte / 2, 2))
          << row << " " << byte;
      EXPECT_EQ(element_offset(kRows, row, byte + 1, 1), element_offset(kRows, row, byte, 1) + 1);
    }
  }
}

}  // namespace
}  // namespace tessera::cuda::sm90
