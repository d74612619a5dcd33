#include "core/block_mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/test_problems.h"
#include "tessera/error.h"

namespace tessera {
namespace {

// Both directions hold the same blocks, ascending, and the view shows the same data.
void expect_consistent(const BlockMask& mask) {
  const core::BlockView view = core::view(mask);
  ASSERT_TRUE(view);
  ASSERT_EQ(view.q_blocks, mask.q_blocks());
  ASSERT_EQ(view.k_blocks, mask.k_blocks());
  ASSERT_EQ(view.heads, mask.layout().heads);
  ASSERT_EQ(view.block_q, std::min(mask.layout().block_q, core::kMaxPosition));
  ASSERT_EQ(view.block_k, std::min(mask.layout().block_k, core::kMaxPosition));
  ASSERT_EQ(view.row_offsets[view.heads * view.q_blocks], mask.kept());
  ASSERT_EQ(view.column_offsets[view.heads * view.k_blocks], mask.kept());
  std::int64_t kept = 0;
  for (std::int64_t head = 0; head < view.heads; ++head) {
    for (std::int64_t q_block = 0; q_block < view.q_blocks; ++q_block) {
      const auto row = mask.row(head, q_block);
      ASSERT_TRUE(std::is_sorted(row.begin(), row.end()));
      ASSERT_EQ(std::adjacent_find(row.begin(), row.end()), row.end());
      for (const std::int32_t k_block : row) {
        ASSERT_GE(k_block, 0);
        ASSERT_LT(k_block, mask.k_blocks());
        const auto column = mask.column(head, k_block);
        ASSERT_TRUE(std::binary_search(column.begin(), column.end(), q_block));
        ++kept;
      }
    }
    for (std::int64_t k_block = 0; k_block < view.k_blocks; ++k_block) {
      const auto column = mask.column(head, k_block);
      ASSERT_TRUE(std::is_sorted(column.begin(), column.end()));
      ASSERT_EQ(std::adjacent_find(column.begin(), column.end()), column.end());
    }
  }
  ASSERT_EQ(kept, mask.kept());
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(BlockMask, EmptyMaskKeepsEverything) {
  const BlockMask mask;
  EXPECT_FALSE(mask);
  EXPECT_FALSE(core::view(mask));
  EXPECT_EQ(mask.density(), 1);
  EXPECT_EQ(mask.kept(), 0);
  EXPECT_EQ(mask.q_blocks(), 0);
  EXPECT_EQ(mask.k_blocks(), 0);
  EXPECT_EQ(mask.layout().block_q, 0);
  EXPECT_EQ(mask.layout().heads, 0);
  EXPECT_EQ(mask.draw(), "");
  EXPECT_EQ(error_of([&] { (void)mask.row(0, 0); }),
            "BlockMask::row: the mask is empty (it keeps everything) and has no blocks to list");
}

TEST(BlockMask, FromCompressedRows) {
  const std::vector<std::int64_t> offsets{0, 2, 2, 3};
  const std::vector<std::int32_t> columns{0, 2, 1};
  const BlockMask mask = BlockMask::from_csr({9, 10, 4, 4, 1}, offsets, columns);
  EXPECT_EQ(mask.draw(),
            "#.#\n"
            "...\n"
            ".#.\n");
  EXPECT_EQ(mask.kept(), 3);
  EXPECT_DOUBLE_EQ(mask.density(), 3.0 / 9);
  expect_consistent(mask);
}

TEST(BlockMask, CopiesShareTheirData) {
  const BlockMask mask = BlockMask::local({64, 64, 16, 16, 1}, 0);
  const BlockMask copy = mask;
  EXPECT_EQ(copy.data(), mask.data());
  EXPECT_EQ(core::view(copy).row_offsets, core::view(mask).row_offsets);
}

TEST(BlockMask, BlocksRowsAndElementsGiveTheSameMask) {
  std::mt19937 random(1);
  for (int repeat = 0; repeat < 300; ++repeat) {
    const BlockLayout layout{core::draw(random, 1, 30), core::draw(random, 1, 30), core::draw(random, 1, 9),
                             core::draw(random, 1, 9), core::draw(random, 1, 3)};
    const core::BlockGrid grid = core::block_grid(layout);
    std::vector<std::uint8_t> flags(static_cast<std::size_t>(layout.heads * grid.q_blocks * grid.k_blocks));
    for (std::uint8_t& flag : flags)
      flag = random() % 3 == 0 ? 0 : static_cast<std::uint8_t>(random() % 2 + 1);
    const BlockMask mask = BlockMask::from_blocks(layout, flags);
    expect_consistent(mask);

    std::vector<std::uint8_t> visible;
    for (std::int64_t head = 0; head < layout.heads; ++head) {
      for (std::int64_t i = 0; i < layout.q_length; ++i) {
        for (std::int64_t j = 0; j < layout.k_length; ++j) {
          const std::int64_t row = head * grid.q_blocks + i / layout.block_q;
          visible.push_back(flags[row * grid.k_blocks + j / layout.block_k]);
          ASSERT_EQ(core::keeps_block(core::view(mask), head, i, j), visible.back() != 0);
        }
      }
    }
    const BlockMask dense = BlockMask::from_dense(layout, visible);
    const core::BlockView view = core::view(mask);
    const BlockMask rows = BlockMask::from_csr(
        layout, {view.row_offsets, static_cast<std::size_t>(layout.heads * grid.q_blocks + 1)},
        {view.columns, static_cast<std::size_t>(mask.kept())});
    for (std::int64_t head = 0; head < layout.heads; ++head) {
      ASSERT_EQ(dense.draw(head), mask.draw(head));
      ASSERT_EQ(rows.draw(head), mask.draw(head));
    }
  }
}

TEST(BlockMask, PresetsAreSoundForAnyLayout) {
  std::mt19937 random(2);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const BlockLayout layout{core::draw(random, 1, 300), core::draw(random, 1, 300),
                             core::draw(random, 1, 40), core::draw(random, 1, 40), core::draw(random, 1, 2)};
    const std::int64_t a = core::draw(random, 0, 4), b = core::draw(random, 1, 5);
    const double density = static_cast<double>(core::draw(random, 1, 100)) / 100;
    for (const BlockMask& mask :
         {BlockMask::local(layout, a), BlockMask::strided(layout, b),
          BlockMask::fixed(layout, b, std::min(a, b)), BlockMask::big_bird(layout, a, b, a, random()),
          BlockMask::butterfly(layout), BlockMask::random(layout, density, random())}) {
      expect_consistent(mask);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(BlockMask, NothingKeptIsAMaskToo) {
  const BlockMask mask = BlockMask::from_blocks({8, 8, 4, 4, 1}, std::vector<std::uint8_t>(4, 0));
  EXPECT_TRUE(mask);
  EXPECT_EQ(mask.density(), 0);
  expect_consistent(mask);
  EXPECT_FALSE(core::keeps_block(core::view(mask), 0, 0, 0));
}

TEST(BlockMask, BlocksLargerThanTheSequence) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  const BlockMask mask = BlockMask::local({10, 20, kHuge, kHuge, 1}, 0);
  EXPECT_EQ(mask.draw(), "#\n");
  expect_consistent(mask);
}

TEST(BlockMask, WrongSizesAreNamed) {
  auto local = [](const BlockLayout& layout) { return error_of([&] { (void)BlockMask::local(layout, 1); }); };
  EXPECT_EQ(local({0, 8, 4, 4, 1}), "BlockMask: q_length is 0; it must be at least 1");
  EXPECT_EQ(local({8, -3, 4, 4, 1}), "BlockMask: k_length is -3; it must be at least 1");
  EXPECT_EQ(local({8, 8, 0, 4, 1}), "BlockMask: block_q is 0; it must be at least 1");
  EXPECT_EQ(local({8, 8, 4, -1, 1}), "BlockMask: block_k is -1; it must be at least 1");
  EXPECT_EQ(local({8, 8, 4, 4, 0}), "BlockMask: heads is 0; it must be at least 1");
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(local({8, 8, 4, 4, kHuge}),
            "BlockMask: heads is 9223372036854775807; at most 2147483647 are allowed");
  EXPECT_EQ(local({std::int64_t{1} << 40, 8, 2, 4, 1}),
            "BlockMask: q_length is 1099511627776, which gives 549755813888 blocks of 2; at most 2147483647 "
            "are allowed");
  EXPECT_EQ(local({1 << 30, 1 << 30, 1, 1, 64}),
            "BlockMask: heads is 64, which with 1073741824 x 1073741824 blocks gives more than 2^63 - 1 "
            "blocks");
}

TEST(BlockMask, WrongCompressedRowsAreNamed) {
  const BlockLayout layout{8, 12, 4, 4, 1};  // 2 x 3 blocks
  auto csr = [&](const std::vector<std::int64_t>& offsets, const std::vector<std::int32_t>& columns) {
    return error_of([&] { (void)BlockMask::from_csr(layout, offsets, columns); });
  };
  EXPECT_EQ(csr({0, 1}, {0}),
            "BlockMask::from_csr: row_offsets has 2 entries; it must have 3 (heads * q_blocks + 1)");
  EXPECT_EQ(csr({1, 1, 1}, {0}), "BlockMask::from_csr: row_offsets[0] is 1; it must be 0");
  EXPECT_EQ(csr({0, 2, 1}, {0}),
            "BlockMask::from_csr: row_offsets[2] is 1, below the entry before it, 2; offsets must not "
            "descend");
  EXPECT_EQ(csr({0, 1, 5}, {0}),
            "BlockMask::from_csr: row_offsets ends with 5; it must end with the number of columns, 1");
  EXPECT_EQ(csr({0, 1, 2}, {0, 3}), "BlockMask::from_csr: columns[1] is 3; it must be in [0, 3)");
  EXPECT_EQ(csr({0, 1, 2}, {-1, 0}), "BlockMask::from_csr: columns[0] is -1; it must be in [0, 3)");
  EXPECT_EQ(csr({0, 0, 2}, {1, 1}),
            "BlockMask::from_csr: columns[1] is 1, not above the entry before it, 1; the columns of a row "
            "must be strictly ascending");
  EXPECT_EQ(csr({0, 2, 2}, {2, 1}),
            "BlockMask::from_csr: columns[1] is 1, not above the entry before it, 2; the columns of a row "
            "must be strictly ascending");
}

TEST(BlockMask, WrongFlagsAreNamed) {
  const BlockLayout layout{8, 12, 4, 4, 1};
  EXPECT_EQ(error_of([&] { (void)BlockMask::from_blocks(layout, std::vector<std::uint8_t>(5)); }),
            "BlockMask::from_blocks: kept has 5 entries; it must have 6 (heads * q_blocks * k_blocks)");
  EXPECT_EQ(error_of([&] { (void)BlockMask::from_dense(layout, std::vector<std::uint8_t>(95)); }),
            "BlockMask::from_dense: visible has 95 entries; it must have 96 (heads * q_length * k_length)");
  std::vector<std::uint8_t> partly(96, 0);
  partly[4 * 12 + 9] = 1;  // query 4, key 9: block (1, 2)
  EXPECT_EQ(error_of([&] { (void)BlockMask::from_dense(layout, partly); }),
            "BlockMask::from_dense: of the block at head 0, query block 1, key block 2 only 1 of 16 "
            "elements are visible; blocks must be visible as a whole or not at all: choose smaller blocks "
            "or use a bias");
  constexpr std::int64_t kLong = std::int64_t{1} << 32;
  EXPECT_EQ(error_of([&] { (void)BlockMask::from_dense({kLong, kLong, kLong, kLong, 1}, {}); }),
            "BlockMask::from_dense: heads is 1, which with 4294967296 x 4294967296 gives more than 2^63 - 1 "
            "elements");
}

TEST(BlockMask, WrongIndicesAreNamed) {
  const BlockMask mask = BlockMask::local({8, 12, 4, 4, 2}, 0);
  EXPECT_EQ(error_of([&] { (void)mask.row(2, 0); }), "BlockMask::row: head is 2; it must be in [0, 2)");
  EXPECT_EQ(error_of([&] { (void)mask.row(0, 2); }), "BlockMask::row: q_block is 2; it must be in [0, 2)");
  EXPECT_EQ(error_of([&] { (void)mask.column(1, -1); }),
            "BlockMask::column: k_block is -1; it must be in [0, 3)");
  EXPECT_EQ(error_of([&] { (void)mask.draw(-1); }), "BlockMask::draw: head is -1; it must be in [0, 2)");
}

TEST(BlockMask, WhatCannotFitIsOutOfMemory) {
  const BlockLayout layout{8, 12, 4, 4, 2};
  try {
    // More than any vector can hold.
    (void)core::build_block_mask(layout, [](std::int64_t, std::int64_t, std::vector<std::int32_t>& columns) {
      columns.reserve(std::numeric_limits<std::size_t>::max() / 2);
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_STREQ(error.what(), "BlockMask: no memory for a mask of 2 x 2 x 3 blocks");
  }
}

}  // namespace
}  // namespace tessera
