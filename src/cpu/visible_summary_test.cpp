#include "cpu/visible_summary.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "core/test_problems.h"
#include "core/visibility.h"
#include "cpu/machine/thread_pool.h"

namespace tessera::cpu {
namespace {

using core::draw;
using core::Interval;
using core::TileRange;

// A mask of patches: hidden, visible, random, each some rows and keys large.
std::vector<std::uint8_t> random_mask(std::mt19937& random, std::int64_t rows, std::int64_t keys) {
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(rows * keys));
  const std::int64_t tall = draw(random, 1, 40), wide = draw(random, 1, 150);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < keys; ++j) {
      const std::int64_t patch = (i / tall * 7 + j / wide * 5) % 3;
      const bool seen = patch == 1 || (patch == 2 && draw(random, 0, 3) != 0);
      mask[static_cast<std::size_t>(i * keys + j)] =
          seen ? static_cast<std::uint8_t>(draw(random, 1, 255)) : 0;
    }
  }
  return mask;
}

// Tiles cover every visible pair once, no pair twice, and nothing outside kept blocks. A full tile
// that is not mixed covers visible pairs alone.
TEST(VisibleSummary, TilesCoverWhatTheMaskShows) {
  std::mt19937 random(7);
  for (int repeat = 0; repeat < 400; ++repeat) {
    SCOPED_TRACE(repeat);
    core::Problem p;
    p.batch = p.q_heads = p.kv_heads = 1;
    p.q_length = draw(random, 1, 100);
    p.k_length = draw(random, 1, 400);
    if (draw(random, 0, 1) == 0) p.right = draw(random, 0, 50);
    BlockMask blocks;
    if (draw(random, 0, 1) == 0) p.blocks = core::view(blocks = core::random_blocks(random, p));
    const bool one_row = draw(random, 0, 3) == 0;
    const std::vector<std::uint8_t> mask = random_mask(random, one_row ? 1 : p.q_length, p.k_length);
    p.has_visible = true;
    p.visible = {const_cast<std::uint8_t*>(mask.data()), 0, 0, one_row ? 0 : p.k_length};
    p.visible_rows = one_row ? 1 : p.q_length;
    const std::int64_t group_rows = draw(random, 1, 40), tile_rows = draw(random, 1, 40);
    std::vector<std::byte> memory(visible_summary_bytes(p, group_rows));
    const Summarised call = summarise_visible(p, group_rows, 1, {.workspace = memory.data()});
    EXPECT_EQ(call.resources.workspace, memory.data() + memory.size());
    const core::Sequence s = core::sequence(p, 0);
    auto seen = [&](std::int64_t i, std::int64_t j) {
      return mask[static_cast<std::size_t>((one_row ? 0 : i * p.k_length) + j)] != 0 &&
             s.band.visible(i, j) && core::keeps_block(p.blocks, 0, i, j);
    };
    std::vector<int> visits(static_cast<std::size_t>(p.q_length * p.k_length));
    const core::Tiling tiling{p.q_length, tile_rows, p.blocks ? p.blocks.block_q : 0};
    const std::int64_t step = draw(random, 1, 100);
    for (std::int64_t t = 0; t < tiling.count(); ++t) {
      const Interval queries = tiling[t];
      core::for_each_tile(core::visible_keys(call.problem, s, 0, queries), step, [&](const TileRange& keys) {
        ASSERT_LE(keys.length(), step);
        ASSERT_FALSE(keys.empty());
        for (std::int64_t i = queries.begin; i < queries.end; ++i) {
          for (std::int64_t j = keys.begin; j < keys.end; ++j) {
            ++visits[static_cast<std::size_t>(i * p.k_length + j)];
            ASSERT_TRUE(core::keeps_block(p.blocks, 0, i, j)) << i << ", " << j;
            if (!keys.mixed && keys.kind == core::TileKind::full) {
              ASSERT_TRUE(seen(i, j)) << i << ", " << j;
            }
          }
        }
      });
    }
    for (std::int64_t i = 0; i < p.q_length; ++i) {
      for (std::int64_t j = 0; j < p.k_length; ++j) {
        const int count = visits[static_cast<std::size_t>(i * p.k_length + j)];
        ASSERT_LE(count, 1);
        if (seen(i, j)) {
          ASSERT_EQ(count, 1) << i << ", " << j;
        }
      }
    }
    if (testing::Test::HasFatalFailure()) return;
  }
}

// A padding mask is nothing but a shorter sequence: full tiles up to its last key.
TEST(VisibleSummary, PaddingEndsWithItsLastKey) {
  core::Problem p;
  p.batch = p.q_heads = p.kv_heads = 1;
  p.q_length = 100;
  p.k_length = 500;
  std::vector<std::uint8_t> mask(500);
  for (std::int64_t begin : {0, 77}) {
    for (std::int64_t j = 0; j < 500; ++j) mask[static_cast<std::size_t>(j)] = j >= begin && j < 333 ? 1 : 0;
    p.has_visible = true;
    p.visible.data = mask.data();
    std::vector<std::byte> memory(visible_summary_bytes(p, 64));
    const Summarised call = summarise_visible(p, 64, 1, {.workspace = memory.data()});
    std::int64_t at = begin;
    core::for_each_tile(core::visible_keys(call.problem, core::sequence(p, 0), 0, {0, 64}), 128,
                        [&](const TileRange& keys) {
                          EXPECT_EQ(keys.begin, at);
                          EXPECT_FALSE(keys.mixed);
                          at = keys.end;
                        });
    EXPECT_EQ(at, 333);
  }
}

// Threads change nothing. The mask is large enough for several of them.
TEST(VisibleSummary, ThreadsAgree) {
  std::mt19937 random(8);
  core::Problem p;
  p.batch = p.visible_batch = 2;
  p.q_heads = p.kv_heads = p.visible_heads = 2;
  p.q_length = p.visible_rows = 200;
  p.k_length = 300;
  const std::vector<std::uint8_t> mask = random_mask(random, 4 * 200, 300);
  p.has_visible = true;
  p.visible = {const_cast<std::uint8_t*>(mask.data()), 2 * 200 * 300, 200 * 300, 300};
  const std::size_t bytes = visible_summary_bytes(p, 64);
  std::vector<std::byte> alone(bytes, std::byte{1}), together(bytes, std::byte{1});
  summarise_visible(p, 64, 1, {.workspace = alone.data()});
  ThreadPool pool;
  summarise_visible(p, 64, 4, {.workspace = together.data(), .executor = &pool});
  EXPECT_EQ(alone, together);
}

}  // namespace
}  // namespace tessera::cpu
