// Random small problems for the tests of core: bands, block masks and packed sequences in all
// combinations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "core/block_mask.h"
#include "core/problem.h"
#include "core/visibility.h"

namespace tessera::core {

// Uniform in [low, high], the same on every platform.
inline std::int64_t draw(std::mt19937& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

inline Band random_band(std::mt19937& random, std::int64_t reach) {
  auto bound = [&] { return draw(random, 0, 2) == 0 ? kUnbounded : draw(random, 0, reach); };
  return {bound(), bound(), draw(random, -2 * reach, 2 * reach)};
}

// A problem without data, and what it points to.
struct TestProblem {
  Problem p{};
  BlockMask blocks{};
  std::vector<std::int32_t> cumulative_q{}, cumulative_k{};

  // Whether query i of a sequence sees key j, by definition.
  bool visible(const Sequence& s, std::int64_t head, std::int64_t i, std::int64_t j) const {
    return s.band.visible(i, j) && keeps_block(p.blocks, head, i, j);
  }
};

inline BlockMask random_blocks(std::mt19937& random, const Problem& p) {
  const BlockLayout layout{p.q_length, p.k_length, draw(random, 1, 9), draw(random, 1, 9),
                           draw(random, 0, 1) == 0 ? 1 : p.q_heads};
  const BlockGrid grid = block_grid(layout);
  std::vector<std::uint8_t> flags(static_cast<std::size_t>(layout.heads * grid.q_blocks * grid.k_blocks));
  const std::int64_t share = draw(random, 1, 4);
  for (std::uint8_t& flag : flags) flag = draw(random, 0, 3) < share ? 1 : 0;
  return BlockMask::from_blocks(layout, flags);
}

inline std::vector<std::int32_t> random_cumulative(std::mt19937& random, std::int64_t count,
                                                   std::int64_t longest) {
  std::vector<std::int32_t> cumulative{0};
  for (std::int64_t s = 0; s < count; ++s) {
    const std::int64_t length = s == 0 ? longest : draw(random, 0, longest);
    cumulative.push_back(cumulative.back() + static_cast<std::int32_t>(length));
  }
  return cumulative;
}

inline std::unique_ptr<TestProblem> random_problem(std::mt19937& random) {
  auto test = std::make_unique<TestProblem>();
  Problem& p = test->p;
  p.batch = draw(random, 1, 3);
  p.q_length = draw(random, 1, 40);
  p.k_length = draw(random, 1, 40);
  p.kv_heads = draw(random, 1, 2);
  p.q_heads = p.kv_heads * draw(random, 1, 2);
  p.qk_dim = draw(random, 1, 64);
  p.v_dim = draw(random, 1, 64);
  const Band band = random_band(random, 20);
  p.left = band.left;
  p.right = band.right;
  p.align = draw(random, 0, 1) == 0 ? Align::bottom_right : Align::top_left;
  p.explicit_diagonal = draw(random, 0, 3) == 0;
  p.diagonal = band.diagonal;
  if (draw(random, 0, 1) == 0) {
    test->blocks = random_blocks(random, p);
    p.blocks = view(test->blocks);
  }
  p.q_tokens = p.batch * p.q_length;
  p.k_tokens = p.batch * p.k_length;
  if (draw(random, 0, 2) == 0) {
    test->cumulative_q = random_cumulative(random, p.batch, p.q_length);
    test->cumulative_k = random_cumulative(random, p.batch, p.k_length);
    p.packed = true;
    p.cumulative_q = test->cumulative_q.data();
    p.cumulative_k = test->cumulative_k.data();
    p.q_tokens = test->cumulative_q.back();
    p.k_tokens = test->cumulative_k.back();
  }
  return test;
}

}  // namespace tessera::core
