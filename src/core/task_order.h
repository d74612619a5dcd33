// The order in which tasks are handed out: a task is one tile of one head of one sequence.
//
// Workers take tasks as they become free, so they finish together when the longest tasks come first
// and the shortest last. Under a causal mask the tiles of a head have unequal work: the order is
// then by tiles, from the end that sees more to the end that sees less. Where all tiles are equal,
// the plain order stays within a head as long as possible. Either way heads that share keys and
// values are neighbours.
//
// The order is arithmetic on a few integers, without tables, so that a GPU thread block can compute
// its own task. With packed sequences the tiles are those of the longest: tasks past the end of a
// shorter one are empty.
#pragma once

#include <cstdint>

#include "core/band.h"
#include "core/base/host_device.h"

namespace tessera::core {

template <typename Index>
struct BasicTask {
  Index sequence = 0;
  Index head = 0;
  Index tile = 0;
};

using Task = BasicTask<std::int64_t>;

// How the tiles of a head are taken.
enum class TileOrder : std::uint8_t {
  plain,       // all equal: head by head
  ascending,   // the first tiles have most to do: tile by tile, from the first
  descending,  // the last tiles have most to do: tile by tile, from the last
};

// The order that ends with the end of a band over `rows` x `columns` that sees less. For tiles of
// keys pass band.transposed(), and the lengths exchanged.
TESSERA_HD constexpr TileOrder tile_order(const Band& band, std::int64_t rows, std::int64_t columns) {
  if (!band.bounded() || rows <= 1 || columns <= 0) return TileOrder::plain;
  auto width = [&](std::int64_t row) {
    const VisibleRange range = visible_range(band, row, row + 1, columns);
    return range.end - range.begin;
  };
  // Widths rise, stay and fall. When the first and the last row have the largest possible
  // width, all rows have it.
  std::int64_t largest = columns;
  if (band.left != kUnbounded && band.right != kUnbounded && band.left < columns - band.right) {
    largest = band.left + band.right + 1 < columns ? band.left + band.right + 1 : columns;
  }
  const std::int64_t first = width(0), last = width(rows - 1);
  if (first == largest && last == largest) return TileOrder::plain;
  return first > last ? TileOrder::ascending : TileOrder::descending;
}

// A bijection between [0, count()) and the tasks. On GPUs, where a 64-bit division is a hundred
// instructions, the index is 32 bits wide.
template <typename Index>
struct BasicTaskOrder {
  Index sequences = 0;
  Index heads = 0;
  Index tiles = 0;
  TileOrder order = TileOrder::plain;
  // Tile by tile, how many heads (over all sequences) advance together before the next ones start:
  // as many as fit their keys and values into a cache that the workers share. 0: all. Must be at
  // least the number of workers: otherwise the tasks at the end of a section are not short compared
  // with the work that is left.
  Index together = 0;

  TESSERA_HD constexpr Index count() const { return sequences * heads * tiles; }

  TESSERA_HD constexpr BasicTask<Index> operator[](Index index) const {
    if (order == TileOrder::plain) {
      const Index head = index / tiles;  // over all sequences
      return {head / heads, head % heads, index % tiles};
    }
    const Index all = sequences * heads;
    const Index section = together > 0 && together < all ? together : all;
    const Index begin = index / (section * tiles) * section;  // first head of this section
    const Index size = begin + section < all ? section : all - begin;
    const Index within = index - begin * tiles;
    const Index head = begin + within % size, step = within / size;
    return {head / heads, head % heads, order == TileOrder::descending ? tiles - 1 - step : step};
  }
};

using TaskOrder = BasicTaskOrder<std::int64_t>;

}  // namespace tessera::core
