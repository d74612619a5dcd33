#include "cuda/baselines/standard/kept_blocks.h"

#include <gtest/gtest.h>

#include "core/test_problems.h"

namespace tessera::cuda::standard {
namespace {

// Pair by pair, in every order in which a row may ask: forwards, backwards and at random. What one
// question leaves behind must not change the answer to the next.
TEST(KeptBlocks, AreThoseOfTheMask) {
  std::mt19937 random(3);
  int masked = 0;
  for (int round = 0; round < 1000; ++round) {
    const auto test = core::random_problem(random);
    const core::Problem& p = test->p;
    masked += p.blocks ? 1 : 0;
    for (std::int64_t index = 0; index < p.batch; ++index) {
      const core::Sequence s = core::sequence(p, index);
      for (std::int64_t i = 0; i < s.q_length; ++i) {
        const std::int64_t head = core::draw(random, 0, p.q_heads - 1);
        KeptBlocks kept(p.blocks, static_cast<int>(head), static_cast<int>(i));
        ASSERT_EQ(kept.all(), !p.blocks);
        auto expect_right = [&](std::int64_t j) {
          // The masks agree inside the band: outside it nothing is visible, whatever is kept.
          if (!s.band.visible(i, j)) return;
          ASSERT_EQ(kept.contain(static_cast<int>(j)), test->visible(s, head, i, j))
              << "head " << head << ", query " << i << ", key " << j;
        };
        for (std::int64_t j = 0; j < s.k_length; ++j) expect_right(j);
        for (std::int64_t j = s.k_length; j-- > 0;) expect_right(j);
        for (std::int64_t n = 0; n < s.k_length; ++n) expect_right(core::draw(random, 0, s.k_length - 1));
      }
    }
  }
  EXPECT_GT(masked, 100);
}

}  // namespace
}  // namespace tessera::cuda::standard
