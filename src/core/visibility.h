// Which tiles of the score matrix are visible: the keys visible to a block of queries and,
// transposed, the queries that see a block of keys.
//
// Bands, block masks and boolean masks meet here and nowhere else on the CPU. A kernel's inner loop
// only meets `full` and `partial` tiles; tiles with nothing visible cost nothing.
#pragma once

#include <cstdint>

#include "core/band.h"
#include "core/base/host_device.h"
#include "core/problem.h"
#include "core/tiling.h"

namespace tessera::core {

// Rows or columns of a tile, and how the tile is treated. Only a partial tile is masked by the
// band: a visited tile lies inside kept blocks. The boolean mask hides elements only of a mixed
// one.
struct TileRange : Interval {
  TileKind kind = TileKind::full;
  bool mixed = false;
};

// What a block of queries sees by the boolean mask: the summaries of the groups that it lies in.
struct VisibleGroups {
  const VisibleBlock* first = nullptr;  // null without a boolean mask
  std::int64_t count = 0;
  std::int64_t stride = 0;

  TESSERA_HD explicit operator bool() const { return first != nullptr; }

  TESSERA_HD VisibleBlock operator[](std::int64_t block) const {
    VisibleBlock all = first[block];
    for (std::int64_t g = 1; g < count; ++g) {
      const VisibleBlock& other = first[g * stride + block];
      all.mixed = all.mixed || other.mixed || all.begin != other.begin || all.end != other.end;
      all.begin = all.begin < other.begin ? all.begin : other.begin;
      all.end = all.end > other.end ? all.end : other.end;
    }
    return all;
  }
};

// The keys that a block of queries sees, or the queries that see a block of keys: the band's range
// and, with a block mask, the kept blocks, of which only those are visible. It refers to the arrays
// of the block mask.
struct VisibleSpan {
  VisibleRange range;
  const std::int32_t* kept_blocks = nullptr;  // ascending; null without a block mask
  std::int64_t count = 0;                     // of kept blocks
  std::int64_t block = 0;                     // keys or queries of a block
  bool masked_by_blocks = false;
  VisibleGroups groups{};
};

// The groups of the boolean mask's summary that `queries` lie in.
TESSERA_HD inline VisibleGroups visible_groups(const VisibleSummary& summary, const Sequence& s,
                                               std::int64_t q_head, const Interval& queries) {
  if (summary.blocks == nullptr || queries.empty()) return {};
  const VisibleBlock* head = summary.blocks + s.index * summary.batch_stride + q_head * summary.head_stride;
  if (summary.group_stride == 0) return {head, 1, 0};
  const std::int64_t begin = queries.begin / summary.group_rows;
  const std::int64_t end = (queries.end - 1) / summary.group_rows + 1;
  return {head + begin * summary.group_stride, end - begin, summary.group_stride};
}

// The span with the edges of its full part moved inwards to multiples of `step`. A causal tile of
// 64 rows from row 64 on sees 65 keys in full: with 64, loops over keys take whole register blocks,
// and the masked part has room for the key that is left.
TESSERA_HD inline VisibleSpan with_aligned_full_part(VisibleSpan span, std::int64_t step) {
  VisibleRange& range = span.range;
  if (range.full_begin > range.begin) range.full_begin = (range.full_begin + step - 1) / step * step;
  if (range.full_end < range.end) range.full_end = range.full_end / step * step;
  if (range.full_begin >= range.full_end) range.full_begin = range.full_end = range.end;
  return span;
}

// The keys that `queries` of a sequence see. The queries lie in one row of blocks of the block
// mask, if there is one (Tiling).
TESSERA_HD inline VisibleSpan visible_keys(const Problem& p, const Sequence& s, std::int64_t q_head,
                                           const Interval& queries) {
  VisibleSpan span{.range = visible_range(s.band, queries.begin, queries.end, s.k_length)};
  span.groups = visible_groups(p.visible_summary, s, q_head, queries);
  if (!p.blocks) return span;
  const std::int64_t row = p.blocks.block_row(q_head, queries.begin), first = p.blocks.row_offsets[row];
  return {span.range, p.blocks.columns + first, p.blocks.row_offsets[row + 1] - first, p.blocks.block_k, true,
          span.groups};
}

// The queries of a sequence that see `keys`, but for the boolean mask. The keys lie in one column
// of blocks.
TESSERA_HD inline VisibleSpan visible_queries(const Problem& p, const Sequence& s, std::int64_t q_head,
                                              const Interval& keys) {
  VisibleSpan span{.range = visible_range(s.band.transposed(), keys.begin, keys.end, s.q_length)};
  if (!p.blocks) return span;
  const std::int64_t column = p.blocks.block_column(q_head, keys.begin);
  const std::int64_t first = p.blocks.column_offsets[column];
  return {
      span.range, p.blocks.rows + first, p.blocks.column_offsets[column + 1] - first, p.blocks.block_q, true,
      {}};
}

namespace visibility_detail {

// Calls visit(run, mixed) for the runs of keys in `keys` that the boolean mask does not hide. A run
// is mixed throughout or not at all.
template <typename Visit>
TESSERA_HD void for_each_visible_run(const VisibleGroups& groups, const Interval& keys, Visit&& visit) {
  constexpr std::int64_t kKeys = VisibleBlock::kKeys;
  Interval run{};
  bool mixed = false;
  auto finish = [&] {
    if (!run.empty()) visit(run, mixed);
    run = {};
  };
  for (std::int64_t first = keys.begin / kKeys * kKeys; first < keys.end; first += kKeys) {
    const VisibleBlock block = groups[first / kKeys];
    const Interval part{keys.clamp(first + block.begin), keys.clamp(first + block.end)};
    if (part.empty()) {
      finish();
      continue;
    }
    // Mixed blocks side by side are one run: what lies hidden between them is masked like the rest.
    if (run.empty() || block.mixed != mixed || (!mixed && part.begin != run.end)) {
      finish();
      run = part;
      mixed = block.mixed;
    }
    run.end = part.end;
  }
  finish();
}

// Steps that do not begin with their run begin at multiples of this, as kernels like them best.
inline constexpr std::int64_t kRunGrain = 32;

// Calls visit(TileRange) for [begin, end), cut where the kind changes and every `tile` columns.
template <typename Visit>
TESSERA_HD void for_each_tile_of_run(const VisibleSpan& span, const VisibleRange& range, const Interval& run,
                                     std::int64_t tile, Visit&& visit) {
  auto cut = [&](std::int64_t from, std::int64_t to, TileKind kind) {
    from = from > run.begin ? from : run.begin;
    to = to < run.end ? to : run.end;
    if (from >= to) return;
    if (span.groups) {
      for_each_visible_run(span.groups, {from, to}, [&](const Interval& keys, bool mixed) {
        for (std::int64_t at = keys.begin; at < keys.end;) {
          const std::int64_t aligned = (at + tile) / kRunGrain * kRunGrain;
          std::int64_t end = aligned > at ? aligned : at + tile;
          end = end < keys.end ? end : keys.end;
          visit(TileRange{{at, end}, kind, mixed});
          at = end;
        }
      });
      return;
    }
    for (std::int64_t at = from; at < to; at += tile) {
      visit(TileRange{{at, at + tile < to ? at + tile : to}, kind});
    }
  };
  cut(range.begin, range.full_begin, TileKind::partial);
  cut(range.full_begin, range.full_end, TileKind::full);
  cut(range.full_end, range.end, TileKind::partial);
}

}  // namespace visibility_detail

// Calls visit(TileRange) for the visible tiles of [within.begin, within.end), in ascending order. A
// tile is at most `tile` long and either full or partial; runs of neighbouring kept blocks count as
// one.
template <typename Visit>
TESSERA_HD void for_each_tile(const VisibleSpan& span, const Interval& within, std::int64_t tile,
                              Visit&& visit) {
  const VisibleRange range = span.range.within(within);
  if (range.empty()) return;
  if (!span.masked_by_blocks) {
    return visibility_detail::for_each_tile_of_run(span, range, {range.begin, range.end}, tile, visit);
  }
  const std::int64_t wanted = range.begin / span.block;
  std::int64_t at = 0, high = span.count;
  while (at < high) {  // the first kept block that reaches into the range
    const std::int64_t middle = at + (high - at) / 2;
    if (span.kept_blocks[middle] < wanted) at = middle + 1;
    else high = middle;
  }
  while (at < span.count && span.kept_blocks[at] * span.block < range.end) {
    std::int64_t next = at + 1;
    while (next < span.count && span.kept_blocks[next] == span.kept_blocks[next - 1] + 1) ++next;
    const Interval run{span.kept_blocks[at] * span.block,
                       (span.kept_blocks[next - 1] + std::int64_t{1}) * span.block};
    visibility_detail::for_each_tile_of_run(span, range, run, tile, visit);
    at = next;
  }
}

// The same for everything that is visible.
template <typename Visit>
TESSERA_HD void for_each_tile(const VisibleSpan& span, std::int64_t tile, Visit&& visit) {
  for_each_tile(span, Interval{0, span.range.end}, tile, visit);
}

// Whether anything of `within` is visible.
TESSERA_HD inline bool any_visible(const VisibleSpan& span, const Interval& within) {
  bool any = false;
  if (!within.empty()) for_each_tile(span, within, within.length(), [&any](const TileRange&) { any = true; });
  return any;
}

// Whether the boolean mask shows all of `keys` to the groups.
TESSERA_HD inline bool all_visible(const VisibleGroups& groups, const Interval& keys) {
  if (!groups) return true;
  constexpr std::int64_t kKeys = VisibleBlock::kKeys;
  for (std::int64_t first = keys.begin / kKeys * kKeys; first < keys.end; first += kKeys) {
    const VisibleBlock block = groups[first / kKeys];
    const bool whole =
        keys.clamp(first) >= first + block.begin && keys.clamp(first + kKeys) <= first + block.end;
    if (block.mixed || !whole) return false;
  }
  return true;
}

// Whether the block mask keeps the block that element (i, j) of a head lies in: the definition, for
// the oracle and the tests, which therefore does not use BlockView::block_row.
TESSERA_HD inline bool keeps_block(const BlockView& blocks, std::int64_t q_head, std::int64_t i,
                                   std::int64_t j) {
  if (!blocks) return true;
  const std::int64_t head = blocks.heads == 1 ? 0 : q_head;
  const std::int64_t row = head * blocks.q_blocks + i / blocks.block_q, wanted = j / blocks.block_k;
  std::int64_t low = blocks.row_offsets[row], high = blocks.row_offsets[row + 1];
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (blocks.columns[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low < blocks.row_offsets[row + 1] && blocks.columns[low] == wanted;
}

}  // namespace tessera::core
