#include "cuda/common/step_cursor.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "core/test_problems.h"
#include "core/visibility.h"

namespace tessera::cuda {
namespace {

using namespace core;

// How often a walk's steps contain each column, checking each step on the way.
template <typename Walk>
std::map<int, int> columns_of(Walk walk, int width, int shift, bool ascending) {
  std::map<int, int> count;
  int before = ascending ? -1 : INT32_MAX;
  for (; !walk.done(); walk.next()) {
    EXPECT_EQ((walk.begin() + shift) % width, 0);
    EXPECT_LE(walk.begin(), walk.first());
    EXPECT_LT(walk.first(), walk.last());  // hidden steps do not occur
    EXPECT_LE(walk.last(), walk.begin() + width);
    EXPECT_EQ(walk.first() > before, ascending);
    before = walk.first();
    for (int column = walk.first(); column < walk.last(); ++column) ++count[column];
  }
  return count;
}

// The keys that some of `queries` see, pair by pair, each once.
std::map<int, int> columns_seen_by(const TestProblem& test, const Sequence& s, std::int64_t head,
                                   const Interval& queries) {
  std::map<int, int> seen;
  for (std::int64_t i = queries.begin; i < queries.end; ++i) {
    for (std::int64_t j = 0; j < s.k_length; ++j) {
      if (test.visible(s, head, i, j)) seen[static_cast<int>(j)] = 1;
    }
  }
  return seen;
}

// The queries that see some of `keys`.
std::map<int, int> rows_that_see(const TestProblem& test, const Sequence& s, std::int64_t head,
                                 const Interval& keys) {
  std::map<int, int> seeing;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    for (std::int64_t i = 0; i < s.q_length; ++i) {
      if (test.visible(s, head, i, j)) seeing[static_cast<int>(i)] = 1;
    }
  }
  return seeing;
}

TEST(StepWalk, VisitsEveryVisiblePair) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    const auto test = random_problem(random);
    const Problem& p = test->p;
    const DiagonalRule rule = diagonal_rule(p);
    const int width = static_cast<int>(draw(random, 1, 20)),
              shift = static_cast<int>(draw(random, 0, width - 1));
    for (std::int64_t index = 0; index < p.batch; ++index) {
      const Sequence s = sequence(p, index);
      const ShortSequence brief = short_sequence(p, static_cast<int>(index));
      ASSERT_EQ(brief.q_length, s.q_length);
      ASSERT_EQ(brief.k_begin, s.k_begin);
      const std::int64_t head = draw(random, 0, p.q_heads - 1);
      const Tiling rows{s.q_length, draw(random, 1, 12), p.blocks.block_q};
      for (std::int64_t t = 0; t < rows.count(); ++t) {
        const std::map<int, int> expected = columns_seen_by(*test, s, head, rows[t]);
        const int begin = static_cast<int>(rows[t].begin), end = static_cast<int>(rows[t].end);
        EXPECT_EQ(columns_of(key_walk(p, s, head, begin, end, width, shift), width, shift, false), expected);
        const KeyWalk short_walk(
            visible_keys(p, rule(brief), brief.k_length, static_cast<int>(head), begin, end), width, shift);
        EXPECT_EQ(columns_of(short_walk, width, shift, false), expected);
      }
      const Tiling columns{s.k_length, draw(random, 1, 12), p.blocks.block_k};
      for (std::int64_t t = 0; t < columns.count(); ++t) {
        const std::map<int, int> expected = rows_that_see(*test, s, head, columns[t]);
        const int begin = static_cast<int>(columns[t].begin), end = static_cast<int>(columns[t].end);
        EXPECT_EQ(columns_of(query_walk(p, s, head, begin, end, width, shift), width, shift, true), expected);
      }
    }
  }
}

TEST(DiagonalRule, IsTheBand) {
  std::mt19937 random(2);
  for (int round = 0; round < 2000; ++round) {
    const auto test = random_problem(random);
    const Problem& p = test->p;
    for (std::int64_t index = 0; index < p.batch; ++index) {
      const Sequence s = sequence(p, index);
      const Diagonals d = diagonal_rule(p)(short_sequence(p, static_cast<int>(index)));
      for (std::int64_t i = 0; i < s.q_length; ++i) {
        for (std::int64_t j = 0; j < s.k_length; ++j) {
          ASSERT_EQ(i + d.low <= j && j <= i + d.high, s.band.visible(i, j)) << i << " " << j;
        }
      }
    }
  }
}

// Lengths near the limit, diagonals beyond it: 32 bits are enough.
TEST(DiagonalRule, DoesNotOverflow) {
  const auto longest = static_cast<int>(kLongestWalk - 1);
  for (const std::int64_t diagonal : {-(std::int64_t{1} << 40), std::int64_t{-5}, std::int64_t{1} << 40}) {
    for (const std::int64_t left : {kUnbounded, std::int64_t{7}, std::int64_t{1} << 40}) {
      for (const std::int64_t right : {kUnbounded, std::int64_t{0}, std::int64_t{1} << 40}) {
        Problem p;
        p.q_length = p.k_length = longest;
        p.left = left;
        p.right = right;
        p.explicit_diagonal = true;
        p.diagonal = diagonal;
        const Diagonals d = diagonal_rule(p)(short_sequence(p, 0));
        const Band band{left, right, diagonal};
        for (const std::int64_t i : {0, 9, longest - 1}) {
          for (const std::int64_t j : {0, 8, longest - 1}) {
            EXPECT_EQ(i + d.low <= j && j <= i + d.high, band.visible(i, j))
                << diagonal << " " << i << " " << j;
          }
        }
        p.explicit_diagonal = false;  // bottom right, with lengths that differ by as much as they can
        for (const bool more_keys : {false, true}) {
          p.q_length = more_keys ? 1 : longest;
          p.k_length = more_keys ? longest : 1;
          const Diagonals e = diagonal_rule(p)(short_sequence(p, 0));
          const Band bottom{left, right, p.k_length - p.q_length};
          for (const std::int64_t i : {std::int64_t{0}, p.q_length - 1}) {
            for (const std::int64_t j : {std::int64_t{0}, p.k_length - 1}) {
              EXPECT_EQ(i + e.low <= j && j <= i + e.high, bottom.visible(i, j));
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cuda
