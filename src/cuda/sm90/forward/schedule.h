// Which tiles there are, in which order thread blocks take them, and which keys they walk over. Pure functions for host and
// device: the kernel asks, the tests enumerate.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/host_device.h"
#include "core/task_order.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda::sm90::forward {

// A tile of queries of one head of one sequence.
struct TileIndex {
  std::uint32_t sequence = 0, head = 0, tile = 0;
};

// A bijection between [0, count()) and the tiles. Thread blocks take them in this order as they become free.
//
// Head by head. Under a causal mask a head's longest tiles come first: some thread blocks then load keys that no other has
// loaded yet while others find them in L2 (measured on an H200 against heads that fill the GPU once, tile by tile: head_dim
// 256 +6 % at N = 512 and +2 % at 2048, else equal). At the end there is nothing to fill the gaps with, so the last heads,
// about three waves of tiles, go together, longest first.
class Schedule {
 public:
  Schedule() = default;
  Schedule(std::int64_t sequences, std::int64_t heads, std::int64_t tiles, core::TileOrder order, int workers)
      : heads_(static_cast<std::uint32_t>(std::max<std::int64_t>(heads, 1))),
        tiles_(static_cast<std::uint32_t>(std::max<std::int64_t>(tiles, 1))),
        order_(order) {
    constexpr std::int64_t kLastWaves = 3;
    const std::int64_t all = sequences * heads;
    count_ = static_cast<std::uint32_t>(all * tiles);
    if (count_ == 0) return;
    const std::int64_t waves = std::min((kLastWaves * workers + tiles - 1) / tiles, all);
    const std::int64_t last = equal_tiles() ? 0 : waves;
    last_ = core::Divider(static_cast<std::uint32_t>(std::max<std::int64_t>(last, 1)));
    one_by_one_ = static_cast<std::uint32_t>(all - last);
  }

  // Packed sequences: PackedTiles gives the tiles, `most` is how many there may be.
  static Schedule packed(std::int64_t most) {
    Schedule schedule;
    schedule.count_ = static_cast<std::uint32_t>(most);
    schedule.order_ = core::TileOrder::descending;
    return schedule;
  }

  TESSERA_HD std::uint32_t count() const { return count_; }
  TESSERA_HD bool equal_tiles() const { return order_ == core::TileOrder::plain; }
  // Heads that go together at the end.
  TESSERA_HD std::uint32_t last_heads() const { return last_.divisor; }

  TESSERA_HD TileIndex operator[](std::uint32_t index) const {
    const std::uint32_t together = one_by_one_ * tiles_.divisor;
    if (index < together) return at(tiles_.quotient(index), tiles_.remainder(index));
    const std::uint32_t within = index - together;
    return at(one_by_one_ + last_.remainder(within), last_.quotient(within));
  }

 private:
  TESSERA_HD TileIndex at(std::uint32_t head, std::uint32_t step) const {
    const std::uint32_t tile = order_ == core::TileOrder::descending ? tiles_.divisor - 1 - step : step;
    return {heads_.quotient(head), heads_.remainder(head), tile};
  }

  core::Divider heads_, tiles_, last_;
  std::uint32_t count_ = 0, one_by_one_ = 0;
  core::TileOrder order_ = core::TileOrder::plain;
};

// What comes first of packed sequences.
enum class PackedOrder : int {
  sequences,  // long ones, with all of their tiles
  tiles,  // tiles that see many keys, of whichever sequence: ends more evenly, and takes more time to find them
};

// What PackedTiles asks about a sequence: how many queries and keys it has, and that row i sees no key beyond i + high.
struct PackedLengths {
  int q = 0, k = 0, high = 0;
};

// How many tiles there are at most.
constexpr std::int64_t most_packed_tiles(std::int64_t sequences, std::int64_t heads, std::int64_t tokens,
                                         int block_q) {
  return heads * (tokens / block_q + sequences);
}

// The tiles of packed sequences, of which short ones have few. Pass after pass over the sequences, each of which takes half as
// many keys as the one before: those of the sequence, or those that a tile sees. In a pass sequence by sequence and head by
// head, the longest tiles of a causal mask first. Indices may only grow from call to call.
template <PackedOrder Order>
class PackedTiles {
 public:
  // `longest`: no sequence has more keys.
  TESSERA_HD PackedTiles(int sequences, int heads, int block_q, int longest)
      : sequences_(sequences), heads_(heads), block_q_(block_q), more_(longest), sequence_(sequences - 1) {}

  // False: there are no more than `index` tiles. lengths(s): PackedLengths of sequence s, without `high` where sequences come
  // in order.
  template <typename Lengths>
  TESSERA_HD bool find(std::uint32_t index, const Lengths& lengths, TileIndex& at) {
    while (index - base_ >= static_cast<std::uint32_t>(tiles_ * heads_)) {
      base_ += static_cast<std::uint32_t>(tiles_ * heads_);
      tiles_ = 0;
      if (++sequence_ == sequences_) {  // the next pass: at least half as many keys
        if (more_ < 0) return --sequence_, false;
        less_ = more_, more_ = more_ < kShort ? -1 : more_ / 2;
        sequence_ = -1;
        continue;
      }
      const PackedLengths sequence = lengths(sequence_);
      if constexpr (Order == PackedOrder::tiles) {
        first_ = first_beyond(more_, sequence);
        tiles_ = first_beyond(less_, sequence) - first_;
      } else if (sequence.k > more_ && sequence.k <= less_) {
        tiles_ = (sequence.q + block_q_ - 1) / block_q_;
      }
    }
    const int within = static_cast<int>(index - base_);
    at = {static_cast<std::uint32_t>(sequence_), static_cast<std::uint32_t>(within / tiles_),
          static_cast<std::uint32_t>(first_ + tiles_ - 1 - within % tiles_)};
    return true;
  }

 private:
  // Keys: what is shorter comes in the order in which it stands.
  static constexpr int kShort = Order == PackedOrder::tiles ? 256 : 512;

  // The first tile that may see more than `keys` keys; how many tiles there are if none does.
  TESSERA_HD int first_beyond(int keys, const PackedLengths& sequence) const {
    const int tiles = (sequence.q + block_q_ - 1) / block_q_, before = keys - sequence.high;
    if (keys < 0) return 0;
    if (sequence.k <= keys) return tiles;
    return before < 0 ? 0 : before / block_q_ < tiles ? before / block_q_ : tiles;
  }

  int sequences_, heads_, block_q_;
  int more_, less_ = 0;        // this pass takes (more_, less_] keys
  int sequence_;               // of this pass; before the first one, the end of one
  int first_ = 0, tiles_ = 0;  // of the sequence that this pass takes
  std::uint32_t base_ = 0;     // the index of the first
};

// Steps of keys [bottom, top], walked over from the top. There is always one, if only to find that nothing is visible.
struct Steps {
  int top = 0, bottom = 0;
};

// Those of which rows [first, last] may see something; row i sees keys [i + low, i + high] of `keys`.
TESSERA_HD constexpr Steps visible_steps(int first, int last, const core::Diagonals& d, int keys, int width) {
  const int begin = first + d.low > 0 ? first + d.low : 0;
  const int end = last + d.high + 1 < keys ? last + d.high + 1 : keys;
  if (begin >= end) return {0, 0};
  return {(end - 1) / width, begin / width};
}

// Those that all of the rows see whole: [begin, end), which may be empty.
struct WholeSteps {
  int begin = 0, end = 0;
};

TESSERA_HD constexpr WholeSteps whole_steps(int first, int last, const core::Diagonals& d, int keys,
                                            int width) {
  const int begin = last + d.low > 0 ? last + d.low : 0;
  const int end = first + d.high + 1 < keys ? first + d.high + 1 : keys;
  return {(begin + width - 1) / width, end > 0 ? end / width : 0};
}

// The steps of a tile that one of its warp groups takes part in, whose own rows may see `own` of them: as few as it may, but
// at least one, and passing over no more than `above` at the top and `below` at the bottom.
TESSERA_HD constexpr Steps own_steps(const Steps& tile, const Steps& own, int above, int below) {
  int top = own.top < tile.top ? own.top : tile.top;
  if (top < tile.top - above) top = tile.top - above;
  if (top < tile.bottom) top = tile.bottom;
  int bottom = own.bottom > tile.bottom ? own.bottom : tile.bottom;
  if (bottom > tile.bottom + below) bottom = tile.bottom + below;
  if (bottom > top) bottom = top;
  return {top, bottom};
}

// What one warp group does in a tile: the steps it takes part in, and [whole_begin, whole_end), which all of its rows see whole;
// how many of the tile's steps it passes over, above and below.
struct alignas(16) GroupSteps {
  int top = 0, bottom = 0, whole_begin = 0, whole_end = 0;
  int above = 0, below = 0;
};

// Rows [first, last] of a tile are the group's; row 0 of the tile sees keys [d.low, d.high].
TESSERA_HD constexpr GroupSteps group_steps(const Steps& tile, int first, int last, const core::Diagonals& d,
                                            int keys, int width, int above, int below) {
  const Steps own = own_steps(tile, visible_steps(first, last, d, keys, width), above, below);
  const WholeSteps whole = whole_steps(first, last, d, keys, width);
  return {own.top, own.bottom, whole.begin, whole.end, tile.top - own.top, own.bottom - tile.bottom};
}

}  // namespace tessera::cuda::sm90::forward
