// The walk over the tiles of scores that exist: what a block of queries sees of the keys, and, transposed,
// which queries see a block of keys. Bands and block-sparse masks meet here, so that a kernel's inner loop
// only knows `full` and `partial` tiles and skipped ones cost nothing.
#pragma once

#include <cstdint>

#include "core/band.h"
#include "core/base/host_device.h"
#include "core/problem.h"

namespace tessera::core {

// A stretch of columns to work on. When partial, the band must be applied to each element; block masks
// never need to be: what is visited lies inside kept blocks.
struct Tile {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  TileKind kind = TileKind::full;
};

// Calls visit(Tile) for [begin, end) cut where the range changes its kind and every `tile` columns.
template <typename Visit>
TESSERA_HD void for_each_tile_in(const VisibleRange& range, std::int64_t begin, std::int64_t end,
                                 std::int64_t tile, Visit&& visit) {
  auto cut = [&](std::int64_t from, std::int64_t to, TileKind kind) {
    from = from > begin ? from : begin;
    to = to < end ? to : end;
    for (std::int64_t at = from; at < to; at += tile) {
      visit(Tile{at, at + tile < to ? at + tile : to, kind});
    }
  };
  cut(range.begin, range.full_begin, TileKind::partial);
  cut(range.full_begin, range.full_end, TileKind::full);
  cut(range.full_end, range.end, TileKind::partial);
}

// As above, over runs of kept blocks of `block` columns each.
template <typename Visit>
TESSERA_HD void for_each_tile_in_blocks(const VisibleRange& range, const std::int32_t* kept,
                                        std::int64_t count, std::int64_t block, std::int64_t columns,
                                        std::int64_t tile, Visit&& visit) {
  for (std::int64_t at = 0; at < count;) {
    std::int64_t next = at + 1;
    while (next < count && kept[next] == kept[next - 1] + 1) ++next;
    const std::int64_t begin = kept[at] * block;
    std::int64_t end = (kept[next - 1] + std::int64_t{1}) * block;
    end = end < columns ? end : columns;
    for_each_tile_in(range, begin, end, tile, visit);
    at = next;
  }
}

// The tiles of keys that queries [begin, end) of a sequence see. The queries must lie in one block of the
// block mask, if there is one (see query_tile).
template <typename Visit>
TESSERA_HD void for_each_key_tile(const Problem& p, const Sequence& s, std::int64_t q_head,
                                  std::int64_t begin, std::int64_t end, std::int64_t tile, Visit&& visit) {
  const VisibleRange range = visible_range(s.band, begin, end, s.k_length);
  if (!p.blocks) return for_each_tile_in(range, 0, s.k_length, tile, visit);
  const std::int64_t head = p.blocks.heads == 1 ? 0 : q_head;
  const std::int64_t row = head * p.blocks.q_blocks + begin / p.blocks.block_q;
  const std::int64_t first = p.blocks.row_offsets[row];
  for_each_tile_in_blocks(range, p.blocks.columns + first, p.blocks.row_offsets[row + 1] - first,
                          p.blocks.block_k, s.k_length, tile, visit);
}

// As above, of the keys [keys.begin, keys.end) alone: for kernels that walk over blocks of keys outside.
template <typename Visit>
TESSERA_HD void for_each_key_tile_within(const Problem& p, const Sequence& s, std::int64_t q_head,
                                         std::int64_t begin, std::int64_t end, const Tile& keys,
                                         std::int64_t tile, Visit&& visit) {
  auto clamp = [&keys](std::int64_t x) { return x < keys.begin ? keys.begin : x > keys.end ? keys.end : x; };
  const VisibleRange all = visible_range(s.band, begin, end, s.k_length);
  const VisibleRange range{clamp(all.begin), clamp(all.full_begin), clamp(all.full_end), clamp(all.end)};
  if (range.empty()) return;
  if (!p.blocks) return for_each_tile_in(range, keys.begin, keys.end, tile, visit);
  const std::int64_t head = p.blocks.heads == 1 ? 0 : q_head;
  const std::int64_t row = head * p.blocks.q_blocks + begin / p.blocks.block_q;
  std::int64_t first = p.blocks.row_offsets[row], last = p.blocks.row_offsets[row + 1];
  const std::int64_t row_end = last, wanted = keys.begin / p.blocks.block_k;
  while (first < last) {  // the first kept block that reaches into `keys`
    const std::int64_t middle = first + (last - first) / 2;
    if (p.blocks.columns[middle] < wanted) first = middle + 1;
    else last = middle;
  }
  last = first;
  while (last < row_end && p.blocks.columns[last] * p.blocks.block_k < keys.end) ++last;
  for_each_tile_in_blocks(range, p.blocks.columns + first, last - first, p.blocks.block_k, s.k_length, tile,
                          visit);
}

// Whether any of the queries [begin, end), which must lie in one block, sees any of the keys.
TESSERA_HD inline bool sees(const Problem& p, const Sequence& s, std::int64_t q_head, std::int64_t begin,
                            std::int64_t end, const Tile& keys) {
  bool seen = false;
  if (keys.begin >= keys.end) return seen;
  for_each_key_tile_within(p, s, q_head, begin, end, keys, keys.end - keys.begin,
                           [&seen](const Tile&) { seen = true; });
  return seen;
}

// The tiles of queries that see keys [begin, end) of a sequence, which must lie in one block (key_tile).
template <typename Visit>
TESSERA_HD void for_each_query_tile(const Problem& p, const Sequence& s, std::int64_t q_head,
                                    std::int64_t begin, std::int64_t end, std::int64_t tile, Visit&& visit) {
  const VisibleRange range = visible_range(s.band.transposed(), begin, end, s.q_length);
  if (!p.blocks) return for_each_tile_in(range, 0, s.q_length, tile, visit);
  const std::int64_t head = p.blocks.heads == 1 ? 0 : q_head;
  const std::int64_t column = head * p.blocks.k_blocks + begin / p.blocks.block_k;
  const std::int64_t first = p.blocks.column_offsets[column];
  for_each_tile_in_blocks(range, p.blocks.rows + first, p.blocks.column_offsets[column + 1] - first,
                          p.blocks.block_q, s.q_length, tile, visit);
}

// Whether the block mask keeps element (i, j) of a head: the definition, for reference and tests.
TESSERA_HD inline bool kept(const BlockView& blocks, std::int64_t q_head, std::int64_t i, std::int64_t j) {
  if (!blocks) return true;
  const std::int64_t head = blocks.heads == 1 ? 0 : q_head;
  const std::int64_t row = head * blocks.q_blocks + i / blocks.block_q;
  std::int64_t low = blocks.row_offsets[row], high = blocks.row_offsets[row + 1];
  const std::int64_t wanted = j / blocks.block_k;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (blocks.columns[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low < blocks.row_offsets[row + 1] && blocks.columns[low] == wanted;
}

// Cuts `length` into tiles of at most `tile`, none of which crosses a multiple of `block` (0: no blocks).
// Tile t is [tile_begin, tile_end).
struct Tiling {
  std::int64_t length = 0;
  std::int64_t tile = 1;
  std::int64_t block = 0;

  TESSERA_HD constexpr std::int64_t per_block() const { return (block + tile - 1) / tile; }

  TESSERA_HD constexpr std::int64_t count() const {
    if (block == 0) return (length + tile - 1) / tile;
    return length / block * per_block() + (length % block + tile - 1) / tile;
  }

  // The tile that a row lies in.
  TESSERA_HD constexpr std::int64_t index_of(std::int64_t row) const {
    return block == 0 ? row / tile : row / block * per_block() + row % block / tile;
  }

  TESSERA_HD constexpr Tile operator[](std::int64_t t) const {
    if (block == 0) return {t * tile, t * tile + tile < length ? t * tile + tile : length};
    const std::int64_t block_begin = t / per_block() * block;
    const std::int64_t begin = block_begin + t % per_block() * tile;
    std::int64_t end = begin + tile;
    end = end < block_begin + block ? end : block_begin + block;
    return {begin, end < length ? end : length};
  }
};

}  // namespace tessera::core
