// The tiles of a call, the order in which thread blocks take them, and the steps of keys that each
// tile needs. Pure functions for host and device: the kernel calls them, the tests enumerate them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/host_device.h"
#include "core/task_order.h"
#include "cuda/common/grid_order.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda::sm90::forward {

// A tile of queries of one head of one sequence.
struct TileIndex {
  std::uint32_t sequence = 0, head = 0, tile = 0;
};

// The order in which thread blocks take tiles as they become free: a bijection between [0, count())
// and the tiles.
//
// The order is head by head, and under a causal mask the longest tiles of a head come first. Some
// thread blocks then load keys that others find in L2 a little later. (The alternative, as many
// heads side by side as fill the GPU once, is slower at head_dim 256: 6 % at N = 512 and 2 % at
// 2048 on an H200; otherwise equal.) At the end of the call no more tiles follow that could fill
// gaps, so the last heads, about three waves of tiles, are interleaved, longest tiles first.
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
    last_ = Divider(static_cast<std::uint32_t>(std::max<std::int64_t>(last, 1)));
    one_by_one_ = static_cast<std::uint32_t>(all - last);
  }

  // Packed sequences: PackedTiles finds the tiles; there are at most `most`.
  static Schedule packed(std::int64_t most) {
    Schedule schedule;
    schedule.count_ = static_cast<std::uint32_t>(most);
    schedule.order_ = core::TileOrder::descending;
    return schedule;
  }

  TESSERA_HD std::uint32_t count() const { return count_; }
  TESSERA_HD bool equal_tiles() const { return order_ == core::TileOrder::plain; }
  // The heads at the end whose tiles are interleaved.
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

  Divider heads_, tiles_, last_;
  std::uint32_t count_ = 0, one_by_one_ = 0;
  core::TileOrder order_ = core::TileOrder::plain;
};

// What packed sequences are ordered by.
enum class PackedOrder : int {
  sequences,  // long sequences first, each with all of its tiles
  tiles,      // tiles with many keys first: ends more evenly, but tiles take longer to find
};

// What PackedTiles needs to know of a sequence: its queries and keys, and that row i sees no key
// beyond i + high.
struct PackedLengths {
  int q = 0, k = 0, high = 0;
};

// An upper bound of the number of tiles.
constexpr std::int64_t most_packed_tiles(std::int64_t sequences, std::int64_t heads, std::int64_t tokens,
                                         int block_q) {
  return heads * (tokens / block_q + sequences);
}

// The tiles of packed sequences, roughly from the longest to the shortest. It makes passes over the
// sequences; each pass takes what has at least half as many keys as the pass before required:
// sequences, or tiles (PackedOrder). Within a pass the order is sequence by sequence and head by
// head, with the longest tiles of a causal mask first. Indices may only grow from call to call.
template <PackedOrder Order>
class PackedTiles {
 public:
  // `longest`: no sequence has more keys.
  TESSERA_HD PackedTiles(int sequences, int heads, int block_q, int longest)
      : sequences_(sequences), heads_(heads), block_q_(block_q), more_(longest), sequence_(sequences - 1) {}

  // Finds tile `index`; false if there are no more than `index` tiles. lengths(s) returns the
  // PackedLengths of sequence s; PackedOrder::sequences does not read `high`.
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
  // In keys. Whatever is shorter keeps the order of the batch.
  static constexpr int kShort = Order == PackedOrder::tiles ? 256 : 512;

  // The first tile that may see more than `keys` keys; the number of tiles if none may.
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

// Steps of keys, from `top` down to `bottom`. There is always at least one, even where no key is
// visible.
struct Steps {
  int top = 0, bottom = 0;
};

// The steps in which rows [first, last] may see a key; row i sees keys [i + low, i + high] of
// `keys`.
TESSERA_HD constexpr Steps visible_steps(int first, int last, const Diagonals& d, int keys, int width) {
  const int begin = first + d.low > 0 ? first + d.low : 0;
  const int end = last + d.high + 1 < keys ? last + d.high + 1 : keys;
  if (begin >= end) return {0, 0};
  return {(end - 1) / width, begin / width};
}

// The steps [begin, end) in which all of the rows see all keys; may be empty.
struct WholeSteps {
  int begin = 0, end = 0;
};

TESSERA_HD constexpr WholeSteps whole_steps(int first, int last, const Diagonals& d, int keys, int width) {
  const int begin = last + d.low > 0 ? last + d.low : 0;
  const int end = first + d.high + 1 < keys ? first + d.high + 1 : keys;
  return {(begin + width - 1) / width, end > 0 ? end / width : 0};
}

// The steps of a tile that one of its warp groups computes, given that its own rows may see `own`
// of them. As few as possible, but at least one; the group skips at most `above` steps at the top
// and `below` at the bottom.
TESSERA_HD constexpr Steps own_steps(const Steps& tile, const Steps& own, int above, int below) {
  int top = own.top < tile.top ? own.top : tile.top;
  if (top < tile.top - above) top = tile.top - above;
  if (top < tile.bottom) top = tile.bottom;
  int bottom = own.bottom > tile.bottom ? own.bottom : tile.bottom;
  if (bottom > tile.bottom + below) bottom = tile.bottom + below;
  if (bottom > top) bottom = top;
  return {top, bottom};
}

// What one warp group does in a tile: it computes steps `top` down to `bottom` and skips the
// `above` steps before them and the `below` steps after them. In steps [whole_begin, whole_end) all
// of its rows see all keys.
struct alignas(16) GroupSteps {
  int top = 0, bottom = 0, whole_begin = 0, whole_end = 0;
  int above = 0, below = 0;
};

// For the group that owns rows [first, last] of a tile; row 0 of the tile sees keys [d.low,
// d.high].
TESSERA_HD constexpr GroupSteps group_steps(const Steps& tile, int first, int last, const Diagonals& d,
                                            int keys, int width, int above, int below) {
  const Steps own = own_steps(tile, visible_steps(first, last, d, keys, width), above, below);
  const WholeSteps whole = whole_steps(first, last, d, keys, width);
  return {own.top, own.bottom, whole.begin, whole.end, tile.top - own.top, own.bottom - tile.bottom};
}

}  // namespace tessera::cuda::sm90::forward
