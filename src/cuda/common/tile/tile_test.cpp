// The layouts that the CUDA kernels rely on, enumerated.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "cuda/common/tile/layout.h"

namespace tessera::cuda {
namespace {

TEST(AccumulatorFragment, HoldsEveryElementOnce) {
  std::set<std::pair<int, int>> seen;
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 4; ++e) {
      const int row = AccumulatorFragment::row(lane, e), column = AccumulatorFragment::column(lane, e);
      EXPECT_TRUE(row >= 0 && row < 16 && column >= 0 && column < 8);
      EXPECT_TRUE(seen.emplace(row, column).second);
    }
  }
  EXPECT_EQ(seen.size(), 128U);
}

// ldmatrix.x4: eight lanes name the rows of one 8x8 matrix.
TEST(MatrixAddress, NamesFourMatrices) {
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int i = 0; i < 8; ++i) {
      const MatrixAddress a = row_operand(matrix * 8 + i), b = column_operand(matrix * 8 + i);
      EXPECT_EQ(a.row, matrix % 2 * 8 + i);  // a[0], a[1]: eight rows below; a[2], a[3]: the next chunk
      EXPECT_EQ(a.chunk, matrix / 2);
      EXPECT_EQ(b.row, matrix / 2 * 8 + i);  // b0, b1 of eight columns, then of the next eight
      EXPECT_EQ(b.chunk, matrix % 2);
    }
  }
}

TEST(Swizzle, IsAPermutationWithoutBankConflicts) {
  for (const int row_bytes : {32, 64, 128, 256, 512}) {
    const int chunks = row_bytes / kChunkBytes;
    std::set<std::uint32_t> seen;
    for (int row = 0; row < 64; ++row) {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const std::uint32_t at = swizzled_offset(row_bytes, row, chunk);
        EXPECT_EQ(at % 16, 0U);
        EXPECT_EQ(at / static_cast<std::uint32_t>(row_bytes),
                  static_cast<std::uint32_t>(row));  // stays in its row
        EXPECT_TRUE(seen.insert(at).second);
      }
    }
    for (int row = 0; row < 64; row += 8) {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        std::set<std::uint32_t> banks;  // of 16 bytes, eight of them
        for (int i = 0; i < 8; ++i) banks.insert(swizzled_offset(row_bytes, row + i, chunk) / 16 % 8);
        EXPECT_EQ(banks.size(), 8U) << row_bytes << " bytes a row, chunk " << chunk;
      }
    }
  }
}

// Two chunks further is the exclusive-or of a constant: what SharedTile::at does.
TEST(Swizzle, StepsByExclusiveOr) {
  for (const int row_bytes : {128, 256, 512}) {
    for (int row = 0; row < 16; ++row) {
      for (int chunk = 0; chunk < 2; ++chunk) {
        for (int step = 0; step < row_bytes / 32; ++step) {
          const std::uint32_t base = swizzled_offset(row_bytes, row, chunk);
          const std::uint32_t stepped = (base ^ static_cast<std::uint32_t>((step & 3) << 5)) +
                                        static_cast<std::uint32_t>((step >> 2) * 128);
          EXPECT_EQ(stepped, swizzled_offset(row_bytes, row, chunk + 2 * step));
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cuda
