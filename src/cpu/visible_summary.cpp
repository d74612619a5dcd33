#include "cpu/visible_summary.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/tiling.h"
#include "cpu/machine/arena.h"
#include "cpu/machine/parallel_for.h"

namespace tessera::cpu {
namespace {

using core::VisibleBlock;

constexpr std::int64_t kKeys = VisibleBlock::kKeys;

// A mask of fewer bytes is read by the calling thread: waking workers takes longer.
constexpr std::int64_t kSerialBytes = 64 << 10;

// How many summaries there are along each dimension. Packed sequences have one each, because what
// lies past the end of a sequence must not count.
struct Counts {
  std::int64_t batch, heads, groups, blocks;

  Counts(const core::Problem& p, std::int64_t group_rows)
      : batch(p.packed ? p.batch : p.visible_batch),
        heads(p.visible_heads),
        groups(p.visible_rows == 1 ? 1 : core::Tiling{p.visible_rows, group_rows}.count()),
        blocks(core::Tiling{p.k_length, kKeys}.count()) {}
};

VisibleBlock* take_blocks(Arena& arena, const Counts& counts) {
  return arena.take<VisibleBlock>(counts.batch, counts.heads, counts.groups, counts.blocks);
}

// The block that `count` keys of some rows make. A key counts as seen by all when no row's byte is
// 0.
VisibleBlock block_of(const std::uint8_t* first, std::int64_t row_stride, std::int64_t rows,
                      std::int64_t count) {
  std::array<std::uint8_t, kKeys> any{}, least;
  least.fill(255);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::uint8_t* row = first + r * row_stride;
    std::array<std::uint8_t, kKeys> tail{};
    if (count < kKeys)
      row = static_cast<const std::uint8_t*>(std::memcpy(tail.data(), row, static_cast<std::size_t>(count)));
    for (std::int64_t x = 0; x < kKeys; ++x) {
      any[x] |= row[x];
      least[x] = std::min(least[x], row[x]);
    }
  }
  VisibleBlock block;
  for (std::int64_t x = 0; x < count; ++x) {
    if (any[x] == 0) continue;
    if (block.begin == kKeys) block.begin = static_cast<std::uint8_t>(x);
    block.end = static_cast<std::uint8_t>(x + 1);
  }
  for (std::int64_t x = block.begin; x < block.end; ++x) block.mixed = block.mixed || least[x] == 0;
  return block;
}

// The blocks of one group of one head.
void summarise_group(const core::Problem& p, const Counts& counts, std::int64_t group_rows,
                     std::int64_t index, VisibleBlock* blocks) {
  const std::int64_t group = index % counts.groups, head = index / counts.groups % counts.heads;
  const std::int64_t batch = index / counts.groups / counts.heads;
  blocks += index * counts.blocks;
  std::int64_t q_length = p.q_length, k_length = p.k_length;
  if (p.packed) {
    const core::Sequence s = core::sequence(p, batch);
    q_length = s.q_length;
    k_length = s.k_length;
  }
  const core::Interval queries = core::Tiling{q_length, group_rows}[group];
  const std::int64_t rows = p.visible_rows == 1 ? std::min<std::int64_t>(q_length, 1) : queries.length();
  for (std::int64_t b = 0; b < counts.blocks; ++b) {
    const std::int64_t keys = std::min(kKeys, k_length - b * kKeys);
    blocks[b] = VisibleBlock{};
    if (rows <= 0 || keys <= 0) continue;
    const auto* first = p.visible.row<const std::uint8_t>(batch, head, queries.begin) + b * kKeys;
    blocks[b] = block_of(first, p.visible.row_stride, rows, keys);
  }
}

}  // namespace

std::size_t visible_summary_bytes(const core::Problem& p, std::int64_t group_rows) {
  if (!p.has_visible) return 0;
  Arena arena;
  take_blocks(arena, Counts(p, group_rows));
  return arena.used();
}

Summarised summarise_visible(const core::Problem& p, std::int64_t group_rows, int workers,
                             const core::Resources& resources) {
  Summarised result{p, resources};
  if (!p.has_visible) return result;
  const Counts counts(p, group_rows);
  Arena arena(resources.workspace);
  VisibleBlock* blocks = take_blocks(arena, counts);
  result.resources.workspace += arena.used();
  auto& summary = result.problem.visible_summary;
  const std::int64_t of_head = counts.groups * counts.blocks;
  summary = {.blocks = blocks,
             .group_rows = group_rows,
             .batch_stride = counts.batch > 1 ? counts.heads * of_head : 0,
             .head_stride = counts.heads > 1 ? of_head : 0,
             .group_stride = counts.groups > 1 ? counts.blocks : 0};
  const std::int64_t groups = counts.batch * counts.heads * counts.groups;
  auto run = [&](std::int64_t index, int) { summarise_group(p, counts, group_rows, index, blocks); };
  const std::int64_t bytes = p.visible_batch * p.visible_heads * p.visible_rows * p.k_length;
  if (workers == 1 || bytes <= kSerialBytes) {
    for (std::int64_t index = 0; index < groups; ++index) run(index, 0);
  } else {
    parallel_for(*resources.executor, workers, groups, run);
  }
  return result;
}

}  // namespace tessera::cpu
