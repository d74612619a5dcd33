// Runs of visible columns against the tiles of core/visibility.h.
#include "cuda/common/visible.h"

#include <gtest/gtest.h>

#include <map>

#include "core/test_problems.h"
#include "core/visibility.h"

namespace tessera::cuda {
namespace {

// How often the runs contain each column. Runs come from the last to the first and do not overlap.
std::map<int, int> columns_of(Runs runs, int width, int shift) {
  std::map<int, int> count;
  int before = INT32_MAX;
  for (Run run = runs.next(width, shift); run.first < run.last; run = runs.next(width, shift)) {
    EXPECT_EQ((run.begin + shift) % width, 0);
    EXPECT_LE(run.begin, run.last - 1);
    EXPECT_GT(run.begin + width, run.last - 1);
    EXPECT_LE(run.last, before);
    before = run.first;
    for (int column = run.first; column < run.last; ++column) ++count[column];
  }
  return count;
}

TEST(Runs, ContainWhatTheTilesContain) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    const auto test = core::random_problem(random);
    const core::Problem& p = test->p;
    const int width = static_cast<int>(core::draw(random, 1, 20));
    const int shift = static_cast<int>(core::draw(random, 0, width - 1));
    for (std::int64_t index = 0; index < p.batch; ++index) {
      const core::Sequence s = core::sequence(p, index);
      const std::int64_t head = core::draw(random, 0, p.q_heads - 1);
      const core::Tiling rows{s.q_length, core::draw(random, 1, 12), p.blocks.block_q};
      for (std::int64_t t = 0; t < rows.count(); ++t) {
        const int begin = static_cast<int>(rows[t].begin), end = static_cast<int>(rows[t].end);
        std::map<int, int> expected;
        core::for_each_tile(core::visible_keys(p, s, head, {begin, end}), 7,
                            [&](const core::TileRange& tile) {
                              for (std::int64_t column = tile.begin; column < tile.end; ++column)
                                ++expected[static_cast<int>(column)];
                            });
        EXPECT_EQ(columns_of(Runs(visible_keys(p, s, head, begin, end)), width, shift), expected);
      }
      const core::Tiling columns{s.k_length, core::draw(random, 1, 12), p.blocks.block_k};
      for (std::int64_t t = 0; t < columns.count(); ++t) {
        const int begin = static_cast<int>(columns[t].begin), end = static_cast<int>(columns[t].end);
        std::map<int, int> expected;
        core::for_each_tile(core::visible_queries(p, s, head, {begin, end}), 7,
                            [&](const core::TileRange& tile) {
                              for (std::int64_t row = tile.begin; row < tile.end; ++row)
                                ++expected[static_cast<int>(row)];
                            });
        EXPECT_EQ(columns_of(Runs(visible_queries(p, s, head, begin, end)), width, shift), expected);
      }
    }
  }
}

TEST(ColumnRange, IsEmptyWhereItEndsBeforeItBegins) {
  for (int first = -3; first < 4; ++first) {
    for (int last = -3; last < 4; ++last) {
      const ColumnRange range = ColumnRange::of(first, last);
      for (int column = -5; column < 6; ++column) EXPECT_EQ(range(column), first <= column && column < last);
    }
  }
}

}  // namespace
}  // namespace tessera::cuda
