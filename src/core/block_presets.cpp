// The patterns of the literature as block masks. Random ones draw from Philox, so that a seed gives
// the same mask on every platform.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/base/refuse.h"
#include "core/block_mask.h"
#include "core/philox.h"

namespace tessera {
namespace {

using Columns = std::vector<std::int32_t>;

// The most blocks of a random mask: the indices of more would take 8 TiB.
constexpr std::int64_t kMostKept = std::int64_t{1} << 40;

void require_at_least(const char* preset, const char* name, std::int64_t value, std::int64_t least) {
  if (value >= least) return;
  core::refuse("BlockMask::", preset, ": ", name, " is ", value, "; it must be at least ", least);
}

void append_range(std::int64_t begin, std::int64_t end, Columns& columns) {
  for (std::int64_t column = begin; column < end; ++column) {
    columns.push_back(static_cast<std::int32_t>(column));
  }
}

// The key blocks whose index differs from the diagonal block's by at most `radius`, as [begin,
// end).
std::pair<std::int64_t, std::int64_t> neighbourhood(std::int64_t diagonal, std::int64_t radius,
                                                    std::int64_t k_blocks) {
  return {diagonal - std::min(radius, diagonal), diagonal + std::min(radius, k_blocks - 1 - diagonal) + 1};
}

// Random numbers for one block row.
class Draws {
 public:
  Draws(std::uint64_t seed, std::int64_t head, std::int64_t q_block)
      : key0_(static_cast<std::uint32_t>(seed)),
        key1_(static_cast<std::uint32_t>(seed >> 32)),
        counter_{{0, static_cast<std::uint32_t>(q_block), static_cast<std::uint32_t>(head),
                  static_cast<std::uint32_t>(head >> 32)}} {}

  // Uniform in [0, bound), 1 <= bound < 2^32, without bias: Lemire's multiplication with rejection.
  std::uint32_t below(std::uint32_t bound) {
    const std::uint32_t biased = (0 - bound) % bound;
    std::uint64_t product = 0;
    do {
      product = std::uint64_t{next()} * bound;
    } while (static_cast<std::uint32_t>(product) < biased);
    return static_cast<std::uint32_t>(product >> 32);
  }

 private:
  std::uint32_t next() {
    if (used_ == 4) {
      block_ = core::philox4x32<10>(counter_, key0_, key1_);  // masks made earlier stay the same
      ++counter_.word[0];
      used_ = 0;
    }
    return block_.word[used_++];
  }

  std::uint32_t key0_, key1_;
  core::PhiloxBlock counter_;
  core::PhiloxBlock block_{};
  int used_ = 4;
};

// Moves `count` candidates, each set of them equally likely, to the front: a Fisher-Yates shuffle
// that stops when it has enough.
void choose(Columns& candidates, std::int64_t count, Draws draws) {
  const auto size = static_cast<std::int64_t>(candidates.size());
  for (std::int64_t at = 0; at < count; ++at) {
    const auto other = at + draws.below(static_cast<std::uint32_t>(size - at));
    std::swap(candidates[at], candidates[other]);
  }
}

}  // namespace

BlockMask BlockMask::local(const BlockLayout& layout, std::int64_t radius) {
  const core::BlockGrid grid = core::block_grid(layout);
  require_at_least("local", "radius", radius, 0);
  return BlockMask(core::build_block_mask(layout, [&](std::int64_t, std::int64_t q_block, Columns& columns) {
    const auto [begin, end] = neighbourhood(core::diagonal_block(layout, q_block), radius, grid.k_blocks);
    append_range(begin, end, columns);
  }));
}

BlockMask BlockMask::strided(const BlockLayout& layout, std::int64_t stride) {
  const core::BlockGrid grid = core::block_grid(layout);
  require_at_least("strided", "stride", stride, 1);
  return BlockMask(core::build_block_mask(layout, [&](std::int64_t, std::int64_t q_block, Columns& columns) {
    const std::int64_t diagonal = core::diagonal_block(layout, q_block);
    for (std::int64_t column = 0; column < grid.k_blocks; ++column) {
      const std::int64_t distance = std::abs(column - diagonal);
      if (distance < stride || distance % stride == 0) append_range(column, column + 1, columns);
    }
  }));
}

BlockMask BlockMask::fixed(const BlockLayout& layout, std::int64_t stride, std::int64_t summary) {
  const core::BlockGrid grid = core::block_grid(layout);
  require_at_least("fixed", "stride", stride, 1);
  if (summary < 0 || summary > stride) {
    core::refuse("BlockMask::fixed: summary is ", summary, "; it must be in [0, ", stride,
                 "], at most stride");
  }
  return BlockMask(core::build_block_mask(layout, [&](std::int64_t, std::int64_t q_block, Columns& columns) {
    const std::int64_t group = core::diagonal_block(layout, q_block) / stride;
    for (std::int64_t column = 0; column < grid.k_blocks; ++column) {
      if (column / stride == group || column % stride >= stride - summary) {
        append_range(column, column + 1, columns);
      }
    }
  }));
}

BlockMask BlockMask::big_bird(const BlockLayout& layout, std::int64_t radius, std::int64_t global,
                              std::int64_t random, std::uint64_t seed) {
  const core::BlockGrid grid = core::block_grid(layout);
  require_at_least("big_bird", "radius", radius, 0);
  require_at_least("big_bird", "global", global, 0);
  require_at_least("big_bird", "random", random, 0);
  Columns others;  // of a row: what neither the neighbourhood nor the global columns keep
  return BlockMask(
      core::build_block_mask(layout, [&](std::int64_t head, std::int64_t q_block, Columns& columns) {
        if (q_block < global) return append_range(0, grid.k_blocks, columns);
        const auto [begin, end] = neighbourhood(core::diagonal_block(layout, q_block), radius, grid.k_blocks);
        const std::int64_t columns_for_all = std::min(global, grid.k_blocks);
        const auto row_begin = static_cast<std::ptrdiff_t>(columns.size());
        append_range(0, columns_for_all, columns);
        append_range(std::max(begin, columns_for_all), end, columns);
        if (random == 0) return;
        others.clear();
        append_range(columns_for_all, begin, others);
        append_range(std::max(end, columns_for_all), grid.k_blocks, others);
        const auto count = std::min(random, static_cast<std::int64_t>(others.size()));
        choose(others, count, Draws(seed, head, q_block));
        columns.insert(columns.end(), others.begin(), others.begin() + count);
        std::sort(columns.begin() + row_begin, columns.end());
      }));
}

BlockMask BlockMask::butterfly(const BlockLayout& layout) {
  const core::BlockGrid grid = core::block_grid(layout);
  return BlockMask(core::build_block_mask(layout, [&](std::int64_t, std::int64_t q_block, Columns& columns) {
    const std::int64_t diagonal = core::diagonal_block(layout, q_block);
    const auto row_begin = static_cast<std::ptrdiff_t>(columns.size());
    append_range(diagonal, diagonal + 1, columns);
    for (std::int64_t bit = 1; bit < grid.k_blocks; bit *= 2) {
      const std::int64_t column = diagonal ^ bit;
      if (column < grid.k_blocks) append_range(column, column + 1, columns);
    }
    std::sort(columns.begin() + row_begin, columns.end());
  }));
}

BlockMask BlockMask::random(const BlockLayout& layout, double density, std::uint64_t seed) {
  const core::BlockGrid grid = core::block_grid(layout);
  if (!(density > 0 && density <= 1)) {
    core::refuse("BlockMask::random: density is ", density, "; it must be in (0, 1]");
  }
  // Of one head: the nearest number of blocks. Rows then differ by at most one block, and the rows
  // with one more are themselves spread evenly: row r ends at floor((r + 1) * total / q_blocks).
  const std::int64_t blocks = grid.q_blocks * grid.k_blocks;
  const std::int64_t total = density == 1 ? blocks : std::llround(density * static_cast<double>(blocks));
  const std::int64_t each = total / grid.q_blocks, left_over = total % grid.q_blocks;
  if (total > kMostKept / layout.heads) {
    core::refuse("BlockMask::random: density is ", density, ", which keeps ", total, " of ", blocks,
                 " blocks for each of ", layout.heads, " heads; at most ", kMostKept,
                 " may be kept; take larger blocks or a lower density");
  }
  Columns all;
  return BlockMask(core::build_block_mask(
      layout,
      [&](std::int64_t head, std::int64_t q_block, Columns& columns) {
        const std::int64_t count =
            each + (q_block + 1) * left_over / grid.q_blocks - q_block * left_over / grid.q_blocks;
        if (count == 0) return;
        all.resize(static_cast<std::size_t>(grid.k_blocks));
        std::iota(all.begin(), all.end(), 0);
        choose(all, count, Draws(seed, head, q_block));
        std::sort(all.begin(), all.begin() + count);
        columns.insert(columns.end(), all.begin(), all.begin() + count);
      },
      layout.heads * total));
}

}  // namespace tessera
