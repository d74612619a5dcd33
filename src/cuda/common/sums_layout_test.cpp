#include "cuda/common/sums_layout.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace tessera::cuda {
namespace {

constexpr int kLanes = 32, kNumbers = 4;
using Fragment = std::array<int, kLanes * kNumbers>;  // of an accumulator: lane * 4 + number

// What add_fragment and load_fragment do, for all lanes of a warp.
template <SumsLayout Layout>
Fragment added(const Fragment& x) {
  Fragment sums{};
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int e = 0; e < kNumbers; ++e) sums.at(place_of<Layout>(lane, e)) += x.at(lane * kNumbers + e);
  }
  return sums;
}

template <SumsLayout Layout>
Fragment loaded(const Fragment& sums) {
  Fragment x{};
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int e = 0; e < kNumbers; ++e) x.at(lane * kNumbers + e) = sums.at(place_of<Layout>(lane, e));
  }
  return x;
}

Fragment counting() {
  Fragment x{};
  for (int i = 0; i < kLanes * kNumbers; ++i) x.at(i) = 1 + i;
  return x;
}

TEST(SumsLayout, WhatOneLayoutAddsItLoads) {
  const Fragment x = counting();
  EXPECT_EQ(loaded<SumsLayout::fours>(added<SumsLayout::fours>(x)), x);
  EXPECT_EQ(loaded<SumsLayout::apart>(added<SumsLayout::apart>(x)), x);
}

TEST(SumsLayout, AnotherLayoutLoadsOtherNumbers) {
  const Fragment x = counting();
  EXPECT_NE(loaded<SumsLayout::fours>(added<SumsLayout::apart>(x)), x);
  EXPECT_NE(loaded<SumsLayout::apart>(added<SumsLayout::fours>(x)), x);
}

// Reductions and loads of four numbers take them as one word of 16 bytes. Single reductions of a
// warp go to consecutive words.
TEST(SumsLayout, InstructionsFindTheirNumbersTogether) {
  for (int lane = 0; lane < kLanes; ++lane) {
    EXPECT_EQ(place_of<SumsLayout::fours>(lane, 0) % 4, 0);
    for (int e = 0; e < kNumbers; ++e) {
      EXPECT_EQ(place_of<SumsLayout::fours>(lane, e), place_of<SumsLayout::fours>(lane, 0) + e);
      EXPECT_EQ(place_of<SumsLayout::apart>(lane, e), place_of<SumsLayout::apart>(0, e) + lane);
    }
  }
}

// A block of 64 queries is covered by its fragments, each number once.
TEST(SumsLayout, FragmentsCoverABlock) {
  for (const int head_dim : {64, 96, 128, 256}) {
    std::vector<int> seen(static_cast<std::size_t>(64 * head_dim));
    for (int row = 0; row < 64; row += 16) {
      for (int column = 0; column < head_dim; column += 8) {
        for (int i = 0; i < kLanes * kNumbers; ++i) {
          ++seen.at(static_cast<std::size_t>(fragment_offset(head_dim, row, column) + i));
        }
      }
    }
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << head_dim;
  }
}

}  // namespace
}  // namespace tessera::cuda
