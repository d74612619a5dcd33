#include "core/visibility.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "core/test_problems.h"

namespace tessera::core {
namespace {

TEST(Tiling, CoversTheLengthOnceInOrderAndNeverCrossesABlock) {
  for (std::int64_t length = 0; length <= 40; ++length) {
    for (const std::int64_t tile : {1, 2, 3, 7, 16, 64}) {
      for (const std::int64_t block : {0, 1, 2, 5, 8, 16, 100}) {
        const Tiling tiling{length, tile, block};
        SCOPED_TRACE(testing::Message() << length << " in " << tile << " by " << block);
        std::int64_t expected = 0;
        for (std::int64_t t = 0; t < tiling.count(); ++t) {
          const Interval part = tiling[t];
          ASSERT_EQ(part.begin, expected);
          ASSERT_GT(part.end, part.begin);
          ASSERT_LE(part.end - part.begin, tile);
          ASSERT_EQ(tiling.index_of(part.begin), t);
          ASSERT_EQ(tiling.index_of(part.end - 1), t);
          if (block > 0) {
            ASSERT_EQ(part.begin / block, (part.end - 1) / block);
          }
          expected = part.end;
        }
        ASSERT_EQ(expected, length);
      }
    }
  }
}

// Counts the visits of every (query, key) pair and checks the kind of every tile. With aligned
// edges a partial tile may be visible everywhere.
class Visits {
 public:
  Visits(const TestProblem& test, const Sequence& s, std::int64_t head, bool aligned = false)
      : test_(test),
        s_(s),
        head_(head),
        aligned_(aligned),
        counts_(static_cast<std::size_t>(s.q_length * s.k_length)) {}

  void add(const Interval& queries, const Interval& keys, TileKind kind) {
    std::int64_t visible = 0;
    for (std::int64_t i = queries.begin; i < queries.end; ++i) {
      for (std::int64_t j = keys.begin; j < keys.end; ++j) {
        ++counts_[i * s_.k_length + j];
        visible += test_.visible(s_, head_, i, j) ? 1 : 0;
        ASSERT_TRUE(keeps_block(test_.p.blocks, head_, i, j)) << "a block that is not kept was visited";
      }
    }
    const std::int64_t all = (queries.end - queries.begin) * (keys.end - keys.begin);
    ASSERT_GT(all, 0);
    ASSERT_GT(visible, 0) << "a tile where nothing is visible was visited";
    if (aligned_ && kind == TileKind::partial) return;
    ASSERT_EQ(kind, visible == all ? TileKind::full : TileKind::partial);
  }

  // Every visible pair exactly once, every other at most once.
  void check() const {
    for (std::int64_t i = 0; i < s_.q_length; ++i) {
      for (std::int64_t j = 0; j < s_.k_length; ++j) {
        const int count = counts_[i * s_.k_length + j];
        ASSERT_LE(count, 1) << i << ", " << j;
        if (test_.visible(s_, head_, i, j)) {
          ASSERT_EQ(count, 1) << i << ", " << j;
        }
      }
    }
  }

 private:
  const TestProblem& test_;
  const Sequence& s_;
  std::int64_t head_;
  bool aligned_;
  std::vector<int> counts_;
};

TEST(Visibility, TilesCoverEveryVisiblePairExactlyOnceFromBothSides) {
  std::mt19937 random(1);
  for (int repeat = 0; repeat < 1500; ++repeat) {
    const auto test = random_problem(random);
    const Problem& p = test->p;
    const std::int64_t tile_q = draw(random, 1, 12), tile_k = draw(random, 1, 12);
    const Sequence s = sequence(p, draw(random, 0, p.batch - 1));
    const std::int64_t head = draw(random, 0, p.q_heads - 1);
    SCOPED_TRACE(testing::Message() << "case " << repeat);

    Visits by_rows(*test, s, head), by_aligned_rows(*test, s, head, true), by_columns(*test, s, head);
    const std::int64_t step = draw(random, 1, 9);
    const Tiling q_tiles{s.q_length, tile_q, p.blocks.block_q};
    for (std::int64_t t = 0; t < q_tiles.count(); ++t) {
      const Interval queries = q_tiles[t];
      for_each_tile(visible_keys(p, s, head, queries), tile_k, [&](const TileRange& keys) {
        ASSERT_LE(keys.length(), tile_k);
        by_rows.add(queries, keys, keys.kind);
      });
      const VisibleSpan aligned = with_aligned_full_part(visible_keys(p, s, head, queries), step);
      for_each_tile(aligned, tile_k,
                    [&](const TileRange& keys) { by_aligned_rows.add(queries, keys, keys.kind); });
    }
    by_rows.check();
    by_aligned_rows.check();
    Visits by_blocks(*test, s, head);
    const Tiling k_blocks{s.k_length, draw(random, 1, 20)};  // blocks of keys outside, wherever they lie
    for (std::int64_t b = 0; b < k_blocks.count(); ++b) {
      const Interval block = k_blocks[b];
      for (std::int64_t t = 0; t < q_tiles.count(); ++t) {
        const Interval queries = q_tiles[t];
        const VisibleSpan span = visible_keys(p, s, head, queries);
        bool visited = false;
        for_each_tile(span, block, tile_k, [&](const TileRange& keys) {
          ASSERT_LE(keys.length(), tile_k);
          ASSERT_TRUE(keys.begin >= block.begin && keys.end <= block.end);
          by_blocks.add(queries, keys, keys.kind);
          visited = true;
        });
        ASSERT_EQ(any_visible(span, block), visited);
      }
    }
    by_blocks.check();
    const Tiling k_tiles{s.k_length, tile_k, p.blocks.block_k};
    for (std::int64_t t = 0; t < k_tiles.count(); ++t) {
      const Interval keys = k_tiles[t];
      for_each_tile(visible_queries(p, s, head, keys), tile_q, [&](const TileRange& queries) {
        ASSERT_LE(queries.length(), tile_q);
        by_columns.add(queries, keys, queries.kind);
      });
    }
    by_columns.check();
    if (testing::Test::HasFatalFailure()) return;
  }
}

// The edges between masked and unmasked keys, for rows in the middle of a causal window.
TEST(Visibility, TheFullPartEndsAtMultiplesOfAStep) {
  Problem p;
  p.batch = p.q_heads = p.kv_heads = 1;
  p.q_length = p.k_length = 1000;
  p.left = 300;
  p.right = 0;
  const VisibleRange before = visible_keys(p, sequence(p, 0), 0, {448, 512}).range;
  EXPECT_EQ(before.full_begin, 211);
  EXPECT_EQ(before.full_end, 449);
  const VisibleRange after = with_aligned_full_part({before}, 16).range;
  EXPECT_EQ(after.begin, before.begin);
  EXPECT_EQ(after.full_begin, 224);
  EXPECT_EQ(after.full_end, 448);
  EXPECT_EQ(after.end, before.end);
  // Without a mask nothing moves.
  p.left = p.right = kUnbounded;
  const VisibleRange all = with_aligned_full_part(visible_keys(p, sequence(p, 0), 0, {448, 512}), 16).range;
  EXPECT_EQ(all.full_begin, 0);
  EXPECT_EQ(all.full_end, 1000);
}

TEST(Visibility, TilesAscend) {
  std::mt19937 random(2);
  for (int repeat = 0; repeat < 300; ++repeat) {
    const auto test = random_problem(random);
    const Sequence s = sequence(test->p, 0);
    std::int64_t last = 0;
    for_each_tile(visible_keys(test->p, s, 0, {0, 1}), 4, [&](const TileRange& keys) {
      ASSERT_GE(keys.begin, last);
      last = keys.end;
    });
  }
}

TEST(Sequence, DiagonalOfEveryAlignment) {
  Problem p;
  p.batch = 2;
  p.q_length = 10;
  p.k_length = 30;
  p.right = 0;
  EXPECT_EQ(sequence(p, 1).band.diagonal, 20);
  EXPECT_EQ(sequence(p, 1).tensor_batch, 1);
  p.align = Align::top_left;
  EXPECT_EQ(sequence(p, 0).band.diagonal, 0);
  // Global row = origin.row + i and global column = origin.column + j: a shard masks as the whole
  // would.
  p.origin = {.row = 100, .column = 40};
  EXPECT_EQ(sequence(p, 0).band.diagonal, 60);
  p.explicit_diagonal = true;
  p.diagonal = -5;
  EXPECT_EQ(sequence(p, 0).band.diagonal, 55);
}

TEST(Sequence, PackedSequencesHaveTheirOwnDiagonal) {
  const std::vector<std::int32_t> q{0, 3, 3, 8}, k{0, 5, 9, 9};
  Problem p;
  p.batch = 3;
  p.packed = true;
  p.cumulative_q = q.data();
  p.cumulative_k = k.data();
  const Sequence last = sequence(p, 2);
  EXPECT_EQ(last.index, 2);
  EXPECT_EQ(last.tensor_batch, 0);
  EXPECT_EQ(last.q_begin, 3);
  EXPECT_EQ(last.q_length, 5);
  EXPECT_EQ(last.k_begin, 9);
  EXPECT_EQ(last.k_length, 0);
  EXPECT_EQ(last.band.diagonal, -5);
  EXPECT_EQ(sequence(p, 0).band.diagonal, 2);
  EXPECT_EQ(sequence(p, 1).q_length, 0);
}

}  // namespace
}  // namespace tessera::core
