// The order in which tasks are handed out: a task is one tile of one head of one sequence.
//
// Workers take tasks as they become free, so a call ends well when the longest tasks come first and the
// shortest last. Under a causal mask the tiles of a head are anything but equal; the order is then by tiles,
// from the end that sees more towards the end that sees less. Where all tiles are equal the plain order
// stays within a head as long as possible. Either way heads that share keys and values are neighbours.
//
// The order is arithmetic on a handful of integers, without tables, so that a GPU thread block can ask for
// its own task. With packed sequences the tiles are those of the longest: tasks past the end of a shorter
// one are empty.
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

// The order that ends with the smaller end of a band over `rows` x `columns`. For tiles of keys pass
// band.transposed() and the lengths the other way round.
TESSERA_HD constexpr TileOrder tile_order(const Band& band, std::int64_t rows, std::int64_t columns) {
  if (!band.bounded() || rows <= 1 || columns <= 0) return TileOrder::plain;
  auto width = [&](std::int64_t row) {
    const VisibleRange range = visible_range(band, row, row + 1, columns);
    return range.end - range.begin;
  };
  // Widths rise, stay and fall. When both ends have the largest width there can be, all rows have.
  std::int64_t largest = columns;
  if (band.left != kUnbounded && band.right != kUnbounded && band.left < columns - band.right) {
    largest = band.left + band.right + 1 < columns ? band.left + band.right + 1 : columns;
  }
  const std::int64_t first = width(0), last = width(rows - 1);
  if (first == largest && last == largest) return TileOrder::plain;
  return first > last ? TileOrder::ascending : TileOrder::descending;
}

// A bijection between [0, count()) and the tasks. On GPUs, where a 64-bit division is a hundred instructions, the
// index is 32 bits wide.
template <typename Index>
struct BasicTaskOrder {
  Index sequences = 0;
  Index heads = 0;
  Index tiles = 0;
  TileOrder order = TileOrder::plain;
  // Tile by tile, how many heads (over all sequences) advance together before the next ones start: as many
  // as fit their keys and values into a cache that the workers share. 0: all. At least as many as there are
  // workers, or the tasks at the end of a section are no longer short compared with what is left.
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

// n / d for 0 <= n < 2^31 by a multiplication: on a GPU a division is twenty instructions.
struct Divider {
  std::uint32_t divisor = 1, multiplier = 1U << 31, shift = 0;

  Divider() = default;
  explicit constexpr Divider(std::uint32_t d) : divisor(d) {
    while ((std::uint64_t{1} << shift) < d) ++shift;
    // ceil(2^(31 + shift) / d): between 2^31 and 2^32, and exact for 31-bit numbers.
    multiplier = static_cast<std::uint32_t>(((std::uint64_t{1} << (31 + shift)) + d - 1) / d);
  }

  TESSERA_HD constexpr std::uint32_t quotient(std::uint32_t n) const {
    return static_cast<std::uint32_t>((std::uint64_t{n} * multiplier) >> 31 >> shift);
  }
  TESSERA_HD constexpr std::uint32_t remainder(std::uint32_t n) const { return n - quotient(n) * divisor; }
};

// A TaskOrder, tile by tile, in the form in which a thread block finds its task quickly.
class GridOrder {
 public:
  GridOrder() = default;
  explicit constexpr GridOrder(const TaskOrder& order)
      : heads_(static_cast<std::uint32_t>(order.heads > 0 ? order.heads : 1)),
        tiles_(static_cast<std::uint32_t>(order.tiles)),
        descending_(order.order == TileOrder::descending) {
    const std::int64_t all = order.sequences * order.heads;
    const std::int64_t section = order.together > 0 && order.together < all ? order.together : all;
    if (all == 0 || order.tiles == 0) return;
    sections_ = Divider(static_cast<std::uint32_t>(section * order.tiles));
    section_ = Divider(static_cast<std::uint32_t>(section));
    full_sections_ = static_cast<std::uint32_t>(all / section);
    last_section_ = Divider(static_cast<std::uint32_t>(all % section == 0 ? section : all % section));
  }

  TESSERA_HD constexpr BasicTask<std::uint32_t> operator[](std::uint32_t index) const {
    const std::uint32_t section = sections_.quotient(index), within = sections_.remainder(index);
    const Divider& size = section < full_sections_ ? section_ : last_section_;
    const std::uint32_t head = section * section_.divisor + size.remainder(within),
                        step = size.quotient(within);
    return {heads_.quotient(head), heads_.remainder(head), descending_ ? tiles_ - 1 - step : step};
  }

 private:
  Divider sections_, section_, last_section_, heads_;
  std::uint32_t full_sections_ = 0, tiles_ = 0;
  bool descending_ = false;
};

}  // namespace tessera::core
