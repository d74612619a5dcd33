// The queries of a tile of keys against the definition of the masks, pair by pair.
#include "cuda/sm90/backward/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/band.h"
#include "cuda/sm90/backward/table.h"

namespace tessera::cuda::sm90::backward {
namespace {

struct MaskCase {
  std::int64_t left = core::kUnbounded, right = core::kUnbounded;
  Align align = Align::bottom_right;
};

const MaskCase kMasks[] = {
    {},
    {.right = 0},
    {.right = 0, .align = Align::top_left},
    {.left = 0},
    {.left = 0, .right = 0},
    {.left = 0, .right = 0, .align = Align::top_left},
    {.left = 20, .right = 3},
    {.left = 150, .right = 90, .align = Align::top_left},
    {.left = 700, .right = 0},
    {.right = 200},
    {.left = 5, .align = Align::top_left},
    {.left = kLongestWalk, .right = kLongestWalk},
};

// The band and the diagonals, as a kernel gets them, of a problem's only sequence.
struct Visibility {
  core::Band band;
  Diagonals diagonals;

  Visibility(const MaskCase& mask, int q_length, int k_length) {
    core::Problem p;
    p.batch = 1, p.q_length = p.q_tokens = q_length, p.k_length = p.k_tokens = k_length;
    p.left = mask.left, p.right = mask.right, p.align = mask.align;
    band = {mask.left, mask.right, mask.align == Align::bottom_right ? k_length - q_length : 0};
    diagonals = diagonal_rule(p)(short_sequence(p, 0));
  }
};

// Checks every tile of keys of a sequence. Counts the tiles that no query sees, and the steps in
// which every query sees every key.
void check_tiles(const Config& c, const Visibility& visibility, int q_length, int k_length, int& empty,
                 int& whole) {
  for (int key = 0; key < k_length; key += c.block_k()) {
    const TileQueries t = tile_queries(visibility.diagonals, key, q_length, k_length, c.block_q, c.block_k());
    ASSERT_EQ(t.keys, k_length - key);
    auto visible = [&](int query, int within) {
      return query < q_length && within < t.keys && visibility.band.visible(query, key + within);
    };
    // The pairs that the kernel takes for visible, and the first and last query that see a key.
    int first = q_length, last = 0;
    for (int within = 0; within < c.block_k(); ++within) {
      const QueryRange range = queries_of_key(t, within);
      for (int query = 0; query < q_length + c.block_q; ++query) {
        const bool found = query >= range.first && query < range.last;
        ASSERT_EQ(found, visible(query, within)) << "key " << key + within << ", query " << query;
        if (!found) continue;
        first = std::min(first, query), last = std::max(last, query + 1);
        ASSERT_TRUE(query >= t.begin && query < t.end) << "no step has query " << query;
      }
    }
    // The steps begin at multiples of block_q, and none of them is empty.
    if (first < last) {
      ASSERT_TRUE(t.first == first && t.last == last) << t.first << " to " << t.last;
      ASSERT_TRUE(t.begin == first / c.block_q * c.block_q && t.end - c.block_q < last &&
                  t.end % c.block_q == 0);
    } else {
      ASSERT_EQ(t.begin, t.end) << "steps of a tile that no query sees";
      ++empty;
    }
    for (int begin = t.begin; begin < t.end; begin += c.block_q) {
      bool all = true;
      for (int query = begin; query < begin + c.block_q && all; ++query) {
        for (int within = 0; within < c.block_k() && all; ++within) all = visible(query, within);
      }
      ASSERT_EQ(t.whole(begin, c.block_q, c.block_k()), all) << "key " << key << ", queries from " << begin;
      whole += all;
    }
  }
}

TEST(HopperBackwardTiles, PairsAreVisibleExactlyWhereTheMaskSaysSo) {
  for (const Config& c : kConfigs<ptx::Half16::bf16>) {
    if (c.dropout) continue;  // the same tiles as without
    int empty = 0, whole = 0;
    for (const MaskCase& mask : kMasks) {
      for (const auto& [q_length, k_length] : {std::pair{1, 1},
                                               {1, 300},
                                               {300, 1},
                                               {64, 128},
                                               {128, 128},
                                               {127, 129},
                                               {65, 63},
                                               {256, 384},
                                               {203, 517},
                                               {517, 203},
                                               {400, 400}}) {
        SCOPED_TRACE(testing::Message() << "left " << mask.left << ", right " << mask.right
                                        << (mask.align == Align::top_left ? ", top left, " : ", ") << q_length
                                        << " x " << k_length << ", steps of " << c.block_q);
        check_tiles(c, Visibility(mask, q_length, k_length), q_length, k_length, empty, whole);
        if (HasFatalFailure()) return;
      }
    }
    EXPECT_GT(empty, 10) << "the cases no longer cover this";
    EXPECT_GT(whole, 10) << "the cases no longer cover this";
  }
}

// Bounds on, before and behind every edge of a step and of a tile.
TEST(HopperBackwardTiles, EveryBound) {
  constexpr int kQueries = 300, kKeys = 270;
  for (const Config& c : kConfigs<ptx::Half16::bf16>) {
    if (c.dropout) continue;
    int empty = 0, whole = 0;
    for (int bound = 0; bound < 260; ++bound) {
      for (const MaskCase& mask : {MaskCase{.right = bound, .align = Align::top_left},
                                   MaskCase{.left = bound, .align = Align::top_left}}) {
        SCOPED_TRACE(testing::Message() << "left " << mask.left << ", right " << mask.right);
        check_tiles(c, Visibility(mask, kQueries, kKeys), kQueries, kKeys, empty, whole);
        if (HasFatalFailure()) return;
      }
    }
    EXPECT_GT(whole, 100) << "the cases no longer cover this";
  }
}

// The farthest masks and the longest sequences: nothing overflows.
TEST(HopperBackwardTiles, TheLongestSequences) {
  constexpr int kLength = static_cast<int>(kLongestWalk) - 1, kKey = (kLength - 1) / 128 * 128;
  for (const MaskCase& mask : kMasks) {
    for (const int q_length : {1, kLength}) {
      const Visibility visibility(mask, q_length, kLength);
      for (const int key : {0, kKey}) {
        const TileQueries t = tile_queries(visibility.diagonals, key, q_length, kLength, 64, 128);
        for (const int within : {0, kLength - kKey - 1}) {
          const QueryRange range = queries_of_key(t, within);
          for (const int query : {0, 1, 63, 128, q_length - 129, q_length - 1}) {
            if (query < 0 || query >= q_length) continue;
            EXPECT_EQ(query >= range.first && query < range.last,
                      visibility.band.visible(query, key + within))
                << "left " << mask.left << ", right " << mask.right << ", key " << key + within << ", query "
                << query;
          }
        }
        EXPECT_TRUE(t.begin >= 0 && t.begin <= t.end && t.end < q_length + 64);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cuda::sm90::backward
