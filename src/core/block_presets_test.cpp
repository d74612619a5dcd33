#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/out_of_memory.h"
#include "core/block_mask.h"
#include "tessera/error.h"

namespace tessera {
namespace {

constexpr BlockLayout kSquare{64, 64, 8, 8, 1};  // 8 x 8 blocks

TEST(DiagonalBlock, HoldsTheKeyOfTheLastQueryOfTheBlock) {
  for (const BlockLayout& layout :
       {BlockLayout{64, 64, 8, 8, 1}, BlockLayout{30, 70, 7, 9, 1}, BlockLayout{70, 30, 7, 9, 1},
        BlockLayout{1, 50, 128, 3, 1}, BlockLayout{50, 1, 3, 128, 1}, BlockLayout{64, 64, 16, 4, 1}}) {
    for (std::int64_t q_block = 0; q_block < core::block_grid(layout).q_blocks; ++q_block) {
      const std::int64_t last = std::min((q_block + 1) * layout.block_q, layout.q_length) - 1;
      const std::int64_t key = std::max<std::int64_t>(last + layout.k_length - layout.q_length, 0);
      EXPECT_EQ(core::diagonal_block(layout, q_block), key / layout.block_k);
    }
  }
}

TEST(Preset, Local) {
  EXPECT_EQ(BlockMask::local(kSquare, 0).draw(),
            "#.......\n"
            ".#......\n"
            "..#.....\n"
            "...#....\n"
            "....#...\n"
            ".....#..\n"
            "......#.\n"
            ".......#\n");
  EXPECT_EQ(BlockMask::local(kSquare, 2).draw(),
            "###.....\n"
            "####....\n"
            "#####...\n"
            ".#####..\n"
            "..#####.\n"
            "...#####\n"
            "....####\n"
            ".....###\n");
  EXPECT_EQ(BlockMask::local(kSquare, std::int64_t{1} << 62).density(), 1);
}

TEST(Preset, LocalFollowsTheBottomRightDiagonal) {
  EXPECT_EQ(BlockMask::local({16, 64, 8, 8, 1}, 1).draw(),
            ".....###\n"
            "......##\n");
  EXPECT_EQ(BlockMask::local({64, 16, 8, 8, 1}, 0).draw(),
            "#.\n"
            "#.\n"
            "#.\n"
            "#.\n"
            "#.\n"
            "#.\n"
            "#.\n"
            ".#\n");
  EXPECT_EQ(BlockMask::local({64, 64, 16, 8, 1}, 1).draw(),  // two key blocks per query block
            "###.....\n"
            "..###...\n"
            "....###.\n"
            "......##\n");
}

TEST(Preset, Strided) {
  EXPECT_EQ(BlockMask::strided(kSquare, 3).draw(),
            "####..#.\n"
            "#####..#\n"
            "######..\n"
            "#######.\n"
            ".#######\n"
            "..######\n"
            "#..#####\n"
            ".#..####\n");
}

TEST(Preset, Fixed) {
  EXPECT_EQ(BlockMask::fixed(kSquare, 4, 1).draw(),
            "####...#\n"
            "####...#\n"
            "####...#\n"
            "####...#\n"
            "...#####\n"
            "...#####\n"
            "...#####\n"
            "...#####\n");
  EXPECT_EQ(BlockMask::fixed(kSquare, 3, 2).draw(),
            "###.##.#\n"
            "###.##.#\n"
            "###.##.#\n"
            ".#####.#\n"
            ".#####.#\n"
            ".#####.#\n"
            ".##.####\n"
            ".##.####\n");
  EXPECT_EQ(BlockMask::fixed(kSquare, 4, 0).draw(),
            "####....\n"
            "####....\n"
            "####....\n"
            "####....\n"
            "....####\n"
            "....####\n"
            "....####\n"
            "....####\n");
}

TEST(Preset, Butterfly) {
  EXPECT_EQ(BlockMask::butterfly(kSquare).draw(),
            "###.#...\n"
            "##.#.#..\n"
            "#.##..#.\n"
            ".###...#\n"
            "#...###.\n"
            ".#..##.#\n"
            "..#.#.##\n"
            "...#.###\n");
  EXPECT_EQ(BlockMask::butterfly({40, 40, 8, 8, 1}).draw(),  // not a power of two
            "###.#\n"
            "##.#.\n"
            "#.##.\n"
            ".###.\n"
            "#...#\n");
}

TEST(Preset, BigBirdWithoutRandomBlocks) {
  EXPECT_EQ(BlockMask::big_bird(kSquare, 1, 1, 0).draw(),
            "########\n"
            "###.....\n"
            "####....\n"
            "#.###...\n"
            "#..###..\n"
            "#...###.\n"
            "#....###\n"
            "#.....##\n");
  EXPECT_EQ(BlockMask::big_bird(kSquare, 0, 100, 5).density(), 1);
}

// What a block mask keeps at one place.
bool keeps(const BlockMask& mask, std::int64_t head, std::int64_t q_block, std::int64_t k_block) {
  return mask.draw(head)[q_block * (mask.k_blocks() + 1) + k_block] == '#';
}

TEST(Preset, BigBirdAddsRandomBlocksToEveryRow) {
  const BlockLayout layout{512, 512, 16, 16, 2};
  const BlockMask plain = BlockMask::big_bird(layout, 1, 2, 0),
                  mask = BlockMask::big_bird(layout, 1, 2, 3, 9);
  for (std::int64_t head = 0; head < 2; ++head) {
    for (std::int64_t row = 0; row < 32; ++row) {
      const std::size_t before = plain.row(head, row).size();
      EXPECT_EQ(mask.row(head, row).size(), std::min<std::size_t>(32, before + (row < 2 ? 0 : 3)));
      for (const std::int32_t k_block : plain.row(head, row)) {
        EXPECT_TRUE(keeps(mask, head, row, k_block));
      }
    }
  }
  EXPECT_NE(mask.draw(0), mask.draw(1)) << "every head draws its own";
  EXPECT_EQ(mask.draw(0), BlockMask::big_bird(layout, 1, 2, 3, 9).draw(0));
  EXPECT_NE(mask.draw(0), BlockMask::big_bird(layout, 1, 2, 3, 10).draw(0));
  EXPECT_EQ(BlockMask::big_bird(layout, 1, 2, 1000).density(), 1) << "no more than there are";
}

TEST(Preset, RandomHasTheDensityAskedForInEveryRow) {
  const BlockLayout layout{1000, 700, 10, 10, 3};  // 100 x 70 blocks
  for (const double density : {0.001, 0.013, 0.1, 0.5, 0.777, 1.0}) {
    const BlockMask mask = BlockMask::random(layout, density, 5);
    const std::int64_t per_head = std::llround(density * 7000);
    EXPECT_EQ(mask.kept(), 3 * per_head);
    for (std::int64_t head = 0; head < 3; ++head) {
      std::int64_t so_far = 0;
      for (std::int64_t row = 0; row < 100; ++row) {
        so_far += static_cast<std::int64_t>(mask.row(head, row).size());
        ASSERT_EQ(so_far, (row + 1) * per_head / 100) << "not spread evenly";
      }
    }
  }
}

TEST(Preset, RandomOfTooManyBlocksIsRefusedBeforeItTakesMemory) {
  const BlockLayout layout{std::int64_t{1} << 31, std::int64_t{1} << 31, 128, 128, 1};
  try {
    (void)BlockMask::random(layout, 0.5);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("keeps 140737488355328 of 281474976710656 blocks"),
              std::string::npos)
        << error.what();
  }
}

// Systems that grant more memory than they have would end the process when the mask is filled.
TEST(Preset, RandomOfMoreBlocksThanThisMachineHoldsIsRefusedBeforeItTakesMemory) {
  const BlockLayout layout{std::int64_t{1} << 31, std::int64_t{1} << 31, 128, 128, 1};
  const double density = 0.003;  // 6.8 TB of indices
  ASSERT_LT(core::physical_memory(), std::size_t{6} << 40);
  try {
    (void)BlockMask::random(layout, density);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_NE(std::string(error.what()).find("its indices take at least 6292 GiB, and this machine has "),
              std::string::npos)
        << error.what();
  }
}

TEST(Preset, RandomIsUniformAndDependsOnSeedAndHead) {
  const BlockLayout layout{256, 256, 16, 16, 2};
  const std::string one = BlockMask::random(layout, 0.25, 1).draw(0);
  EXPECT_EQ(one, BlockMask::random(layout, 0.25, 1).draw(0));
  EXPECT_NE(one, BlockMask::random(layout, 0.25, 2).draw(0));
  EXPECT_NE(one, BlockMask::random(layout, 0.25, std::uint64_t{1} << 32 | 1).draw(0));
  EXPECT_NE(one, BlockMask::random(layout, 0.25, 1).draw(1));
  // Every column is as likely as any other: 2000 seeds, 16 rows and 2 heads, 4 of 16 columns each.
  std::vector<double> counts(16, 0);
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const BlockMask mask = BlockMask::random(layout, 0.25, seed);
    for (std::int64_t column = 0; column < 16; ++column) {
      counts[column] += static_cast<double>(mask.column(0, column).size() + mask.column(1, column).size());
    }
  }
  const double expected = 2000 * 16 * 2 / 4.0, sigma = std::sqrt(expected * 0.75);
  for (const double count : counts) EXPECT_NEAR(count, expected, 4 * sigma);
}

// A seed means the same mask on every platform and in every version: these pictures must not
// change.
TEST(Preset, RandomPicturesAreFixed) {
  EXPECT_EQ(BlockMask::random(kSquare, 0.3, 42).draw(),
            "#...#...\n"
            "..#.#...\n"
            "#...#..#\n"
            ".....##.\n"
            "#.#.....\n"
            "##.#....\n"
            "...#..#.\n"
            "#..#..#.\n");
  EXPECT_EQ(BlockMask::big_bird(kSquare, 0, 1, 2, 42).draw(),
            "########\n"
            "##.#.#..\n"
            "#.#..#.#\n"
            "##.#..#.\n"
            "#.###...\n"
            "##.#.#..\n"
            "#..#.##.\n"
            "#...##.#\n");
}

TEST(Preset, HeadsShareAPatternThatIsNotRandom) {
  const BlockLayout layout{64, 64, 8, 8, 3};
  for (const BlockMask& mask : {BlockMask::local(layout, 1), BlockMask::strided(layout, 2),
                                BlockMask::fixed(layout, 2), BlockMask::butterfly(layout)}) {
    EXPECT_EQ(mask.draw(0), mask.draw(1));
    EXPECT_EQ(mask.draw(0), mask.draw(2));
    EXPECT_EQ(mask.kept() % 3, 0);
  }
}

template <typename Call>
std::string error_of(Call&& call) {
  try {
    (void)call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(Preset, WrongArgumentsAreNamed) {
  EXPECT_EQ(error_of([] { return BlockMask::local(kSquare, -1); }),
            "BlockMask::local: radius is -1; it must be at least 0");
  EXPECT_EQ(error_of([] { return BlockMask::strided(kSquare, 0); }),
            "BlockMask::strided: stride is 0; it must be at least 1");
  EXPECT_EQ(error_of([] { return BlockMask::fixed(kSquare, 0); }),
            "BlockMask::fixed: stride is 0; it must be at least 1");
  EXPECT_EQ(error_of([] { return BlockMask::fixed(kSquare, 4, 5); }),
            "BlockMask::fixed: summary is 5; it must be in [0, 4], at most stride");
  EXPECT_EQ(error_of([] { return BlockMask::fixed(kSquare, 4, -1); }),
            "BlockMask::fixed: summary is -1; it must be in [0, 4], at most stride");
  EXPECT_EQ(error_of([] { return BlockMask::big_bird(kSquare, -1, 0, 0); }),
            "BlockMask::big_bird: radius is -1; it must be at least 0");
  EXPECT_EQ(error_of([] { return BlockMask::big_bird(kSquare, 0, -2, 0); }),
            "BlockMask::big_bird: global is -2; it must be at least 0");
  EXPECT_EQ(error_of([] { return BlockMask::big_bird(kSquare, 0, 0, -3); }),
            "BlockMask::big_bird: random is -3; it must be at least 0");
  EXPECT_EQ(error_of([] { return BlockMask::random(kSquare, 0); }),
            "BlockMask::random: density is 0; it must be in (0, 1]");
  EXPECT_EQ(error_of([] { return BlockMask::random(kSquare, 1.5); }),
            "BlockMask::random: density is 1.5; it must be in (0, 1]");
  EXPECT_EQ(error_of([] { return BlockMask::random(kSquare, std::nan("")); }),
            "BlockMask::random: density is nan; it must be in (0, 1]");
  EXPECT_EQ(error_of([] { return BlockMask::butterfly({0, 8, 8, 8, 1}); }),
            "BlockMask: q_length is 0; it must be at least 1");
}

}  // namespace
}  // namespace tessera
