#include "tessera/mask.h"

#include <gtest/gtest.h>

#include <string>

#include "tessera/error.h"

namespace tessera {
namespace {

std::string error_of(const Mask& a, const Mask& b) {
  try {
    (void)(a & b);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(Mask, DefaultSeesEverything) {
  const Mask mask = Mask{} & Mask{};
  EXPECT_EQ(mask.left, -1);
  EXPECT_EQ(mask.right, -1);
  EXPECT_EQ(mask.align, Align::bottom_right);
  EXPECT_FALSE(mask.diagonal.has_value());
  EXPECT_FALSE(mask.blocks);
  EXPECT_EQ(mask.lengths.count, 0);
}

TEST(Mask, TheTighterBoundOfEachSideCounts) {
  const Mask mask = window(512, 3) & causal() & window(100, -1);
  EXPECT_EQ(mask.left, 100);
  EXPECT_EQ(mask.right, 0);
  const Mask other = window(-1, 7) & window(5, 9);
  EXPECT_EQ(other.left, 5);
  EXPECT_EQ(other.right, 7);
  const Mask same = window(0, 0) & Mask{};
  EXPECT_EQ(same.left, 0);
  EXPECT_EQ(same.right, 0);
}

TEST(Mask, BlocksAndLengthsComeFromTheSideThatHasThem) {
  const BlockMask blocks = BlockMask::local({64, 64, 16, 16, 1}, 1);
  const Lengths lengths{.count = 3, .max_q = 64, .max_k = 64};
  for (const Mask& mask : {causal() & window(512, -1) & block_sparse(blocks) & packed(lengths),
                           packed(lengths) & block_sparse(blocks) & window(512, -1) & causal()}) {
    EXPECT_EQ(mask.left, 512);
    EXPECT_EQ(mask.right, 0);
    EXPECT_EQ(mask.blocks.data(), blocks.data());
    EXPECT_EQ(mask.lengths.count, 3);
    EXPECT_EQ(mask.lengths.max_q, 64);
  }
}

TEST(Mask, TheSideThatBoundsTheBandSaysWhereItsDiagonalLies) {
  EXPECT_EQ((causal(Align::top_left) & Mask{}).align, Align::top_left);
  EXPECT_EQ((Mask{} & causal(Align::top_left)).align, Align::top_left);
  EXPECT_EQ((causal_at(7) & Mask{}).diagonal, 7);
  EXPECT_EQ((Mask{} & causal_at(7)).diagonal, 7);
  EXPECT_EQ((Mask{.align = Align::top_left} & causal()).align, Align::bottom_right);
  EXPECT_FALSE((Mask{.diagonal = 3} & causal()).diagonal.has_value());
}

TEST(Mask, WithoutBoundsTheSideThatNamesADiagonalCounts) {
  EXPECT_EQ((Mask{.align = Align::top_left} & Mask{}).align, Align::top_left);
  EXPECT_EQ((Mask{} & Mask{.align = Align::top_left}).align, Align::top_left);
  EXPECT_EQ((Mask{} & Mask{.diagonal = 3}).diagonal, 3);
}

TEST(Mask, EqualDiagonalsCombine) {
  const Mask mask = causal_at(7) & Mask{.left = 5, .align = Align::top_left, .diagonal = 7};
  EXPECT_EQ(mask.left, 5);
  EXPECT_EQ(mask.right, 0);
  EXPECT_EQ(mask.diagonal, 7);
  EXPECT_EQ((causal(Align::top_left) & window(4, -1, Align::top_left)).align, Align::top_left);
}

TEST(Mask, WhatCannotBeCombinedIsRefused) {
  EXPECT_EQ(error_of(causal(), window(3, -1, Align::top_left)),
            "Mask: the sides of & bound the band around different diagonals, Align::bottom_right and "
            "Align::top_left; they must name the same one");
  EXPECT_EQ(error_of(causal_at(3), causal_at(-4)),
            "Mask: the sides of & bound the band around different diagonals, the explicit diagonal 3 and "
            "the explicit diagonal -4; they must name the same one");
  EXPECT_EQ(error_of(causal_at(0), causal(Align::top_left)),
            "Mask: the sides of & bound the band around different diagonals, the explicit diagonal 0 and "
            "Align::top_left; they must name the same one");
  const Mask blocks = block_sparse(BlockMask::local({64, 64, 16, 16, 1}, 1));
  EXPECT_EQ(error_of(blocks, blocks),
            "Mask: both sides of & have a block mask; at most one may: put the blocks that both keep into "
            "one BlockMask");
  EXPECT_EQ(error_of(packed({.count = 2}), packed({.count = 5})),
            "Mask: both sides of & have lengths, of 2 and 5 sequences; at most one may");
  EXPECT_EQ(error_of(window(-2, 0), {}), "Mask: left is -2; it must be at least 0, or -1 for no bound");
  EXPECT_EQ(error_of({}, window(0, -7)), "Mask: right is -7; it must be at least 0, or -1 for no bound");
}

}  // namespace
}  // namespace tessera
