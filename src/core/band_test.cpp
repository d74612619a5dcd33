#include "core/band.h"

#include <gtest/gtest.h>

#include <random>

#include "core/test_problems.h"

namespace tessera::core {
namespace {

// How many of rows [row_begin, row_end) see a column.
std::int64_t seen_by(const Band& band, std::int64_t row_begin, std::int64_t row_end, std::int64_t column) {
  std::int64_t count = 0;
  for (std::int64_t i = row_begin; i < row_end; ++i) count += band.visible(i, column) ? 1 : 0;
  return count;
}

TEST(Band, DefinitionOfCausalAndWindow) {
  const Band causal{kUnbounded, 0, 0};
  EXPECT_TRUE(causal.visible(3, 3));
  EXPECT_TRUE(causal.visible(3, 0));
  EXPECT_FALSE(causal.visible(3, 4));
  const Band window{2, 1, 5};  // row 0 meets the diagonal at column 5
  for (std::int64_t j = 0; j < 12; ++j) EXPECT_EQ(window.visible(0, j), j >= 3 && j <= 6) << j;
  EXPECT_TRUE((Band{}.visible(0, 1000)));
  EXPECT_FALSE(Band{}.bounded());
  EXPECT_TRUE(causal.bounded());
}

TEST(Band, TransposedIsTheSameBandSeenFromTheColumns) {
  std::mt19937 random(1);
  for (int repeat = 0; repeat < 500; ++repeat) {
    const Band band = random_band(random, 10);
    const Band transposed = band.transposed();
    for (std::int64_t i = 0; i < 12; ++i) {
      for (std::int64_t j = 0; j < 12; ++j) ASSERT_EQ(band.visible(i, j), transposed.visible(j, i));
    }
  }
}

TEST(VisibleRange, IsExactForRandomBands) {
  std::mt19937 random(2);
  for (int repeat = 0; repeat < 4000; ++repeat) {
    const Band band = random_band(random, 15);
    const std::int64_t columns = draw(random, 0, 20), begin = draw(random, 0, 20);
    const std::int64_t end = begin + draw(random, 0, 6);
    const VisibleRange range = visible_range(band, begin, end, columns);
    SCOPED_TRACE(testing::Message() << "left " << band.left << " right " << band.right << " diagonal "
                                    << band.diagonal << " rows " << begin << ".." << end << " columns "
                                    << columns);
    ASSERT_LE(range.begin, range.full_begin);
    ASSERT_LE(range.full_begin, range.full_end);
    ASSERT_LE(range.full_end, range.end);
    bool any_full = false;
    for (std::int64_t j = 0; j < columns; ++j) {
      const std::int64_t seen = seen_by(band, begin, end, j);
      ASSERT_EQ(seen > 0, j >= range.begin && j < range.end) << j;
      const bool full = seen > 0 && seen == end - begin;
      any_full |= full;
      ASSERT_EQ(full, j >= range.full_begin && j < range.full_end) << j;
    }
    if (!any_full) {
      ASSERT_EQ(range.full_begin, range.end);
    }
    ASSERT_EQ(range.empty(), range.begin == range.end);
  }
}

TEST(VisibleRange, KindOfATile) {
  std::mt19937 random(3);
  for (int repeat = 0; repeat < 4000; ++repeat) {
    const Band band = random_band(random, 15);
    const std::int64_t columns = draw(random, 1, 20), begin = draw(random, 0, 20);
    const std::int64_t end = begin + draw(random, 1, 6);
    const VisibleRange range = visible_range(band, begin, end, columns);
    const std::int64_t tile_begin = draw(random, 0, columns), tile_end = draw(random, tile_begin, columns);
    std::int64_t seen = 0;
    for (std::int64_t j = tile_begin; j < tile_end; ++j) seen += seen_by(band, begin, end, j);
    TileKind expected = TileKind::partial;
    if (seen == 0) expected = TileKind::skip;
    else if (seen == (tile_end - tile_begin) * (end - begin)) expected = TileKind::full;
    ASSERT_EQ(range.kind(tile_begin, tile_end), expected);
  }
}

TEST(VisiblePairs, ClosedFormCountsWhatEnumerationCounts) {
  std::mt19937 random(4);
  for (int repeat = 0; repeat < 4000; ++repeat) {
    const Band band = random_band(random, 15);
    const std::int64_t rows = draw(random, 0, 20), columns = draw(random, 0, 20);
    std::int64_t count = 0;
    for (std::int64_t j = 0; j < columns; ++j) count += seen_by(band, 0, rows, j);
    ASSERT_EQ(visible_pairs(band, rows, columns), static_cast<double>(count))
        << band.left << " " << band.right << " " << band.diagonal << " " << rows << " " << columns;
  }
}

TEST(VisiblePairs, LargeSizesAreExactAndExtremeDiagonalsHarmless) {
  constexpr std::int64_t kMillion = 1 << 20;
  const Band causal{kUnbounded, 0, 0};
  EXPECT_EQ(visible_pairs(causal, kMillion, kMillion), 0.5 * kMillion * (kMillion + 1.0));
  const Band window{1000, 0, 0};
  EXPECT_EQ(visible_pairs(window, kMillion, kMillion), 1001.0 * kMillion - 1000.0 * 1001 / 2);
  constexpr std::int64_t kFar = std::int64_t{1} << 60;
  EXPECT_EQ(visible_pairs({kUnbounded, 0, kFar}, 100, 200), 20000.0);
  EXPECT_EQ(visible_pairs({kUnbounded, 0, -kFar}, 100, 200), 0.0);
  EXPECT_EQ(visible_pairs({0, kUnbounded, kFar}, 100, 200), 0.0);
  EXPECT_EQ(visible_pairs({kFar, kFar, 0}, 100, 200), 20000.0);
}

// What a strip of rows sees of a tile's columns, element by element.
TEST(VisiblePart, IsTheBandWithinATile) {
  std::mt19937 random(3);
  for (int repeat = 0; repeat < 3000; ++repeat) {
    const Band band = random_band(random, 20);
    const std::int64_t first = draw(random, 0, 30), begin = draw(random, 0, 30);
    const Interval rows{first, first + draw(random, 1, 8)}, columns{begin, begin + draw(random, 0, 12)};
    const VisibleRange part = visible_part(band, rows, columns);
    ASSERT_TRUE(part.empty() || (columns.begin <= part.begin && part.end <= columns.end));
    ASSERT_TRUE(part.begin <= part.full_begin && part.full_begin <= part.full_end &&
                part.full_end <= part.end);
    for (std::int64_t j = columns.begin; j < columns.end; ++j) {
      bool some = false, all = true;
      for (std::int64_t i = rows.begin; i < rows.end; ++i) {
        some = some || band.visible(i, j);
        all = all && band.visible(i, j);
      }
      if (some) {
        ASSERT_TRUE(part.begin <= j && j < part.end) << j;
      }
      ASSERT_EQ(part.full_begin <= j && j < part.full_end, all) << j;
    }
  }
}

}  // namespace
}  // namespace tessera::core
