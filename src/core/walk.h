// The same tiles of scores as in tiles.h, as a cursor: a GPU thread block asks for the next step while it copies
// the one after.
//
// A step is `width` columns wide and begins on a fixed grid, whatever is visible of it; a kernel copies the whole step and
// masks what is not visible. Steps that the masks hide completely do not occur. Numbers are 32 bits wide:
// sequences on GPUs are shorter than kLongestWalk.
#pragma once

#include <cstdint>

#include "core/band.h"
#include "core/host_device.h"
#include "core/problem.h"

namespace tessera::core {

inline constexpr std::int64_t kLongestWalk = std::int64_t{1} << 29;

// Row i sees column j of the band when i + low <= j <= i + high: the band in 32 bits, for sequences up to kLongestWalk.
struct Diagonals {
  int low = 0, high = 0;
};

TESSERA_HD constexpr Diagonals diagonals(const Band& band) {
  auto clamp = [](std::int64_t x) {
    return static_cast<int>(x < -kLongestWalk - 1  ? -kLongestWalk - 1
                            : x > kLongestWalk + 1 ? kLongestWalk + 1
                                                   : x);
  };
  return {band.left == kUnbounded ? static_cast<int>(-kLongestWalk - 1) : clamp(band.diagonal - band.left),
          band.right == kUnbounded ? static_cast<int>(kLongestWalk + 1) : clamp(band.diagonal + band.right)};
}

enum class WalkOrder : std::uint8_t { ascending, descending };

template <WalkOrder Order>
class StepWalk {
 public:
  // Over the visible columns [begin, end), or those of them that lie in the `count` kept blocks (ascending; null: no
  // blocks) of `block` columns each. Steps begin where column + shift is a multiple of `width`; 0 <= shift.
  TESSERA_HD StepWalk(int begin, int end, int width, int shift = 0, const std::int32_t* kept = nullptr,
                      int count = 0, int block = 0)
      : kept_(kept),
        left_(kept == nullptr ? 1 : count),
        block_(block),
        begin_(begin),
        end_(end),
        width_(width),
        shift_(shift) {
    if (begin >= end) left_ = 0;
    enter_run();
  }

  [[nodiscard]] TESSERA_HD bool done() const { return first_ >= last_; }

  // The first column of the step: on the grid, perhaps before the first visible one and even below 0.
  [[nodiscard]] TESSERA_HD int begin() const { return at_; }

  // What is visible of the step is [first, last), as far as one row of the thread block may see it.
  [[nodiscard]] TESSERA_HD int first() const { return first_ > at_ ? first_ : at_; }
  [[nodiscard]] TESSERA_HD int last() const { return last_ < at_ + width_ ? last_ : at_ + width_; }

  TESSERA_HD void next() {
    if constexpr (Order == WalkOrder::ascending) {
      at_ += width_;
      if (at_ >= last_) enter_run();
    } else {
      at_ -= width_;
      if (at_ + width_ <= first_) enter_run();
    }
  }

 private:
  // Goes to the next run of neighbouring kept blocks of which something is visible, [first_, last_).
  TESSERA_HD void enter_run() {
    first_ = last_ = 0;
    while (left_ > 0 && first_ >= last_) {
      if (kept_ == nullptr) {
        left_ = 0;
        first_ = begin_, last_ = end_;
      } else {
        int length = 1;
        std::int32_t lowest;
        if constexpr (Order == WalkOrder::ascending) {
          while (length < left_ && kept_[length] == kept_[length - 1] + 1) ++length;
          lowest = kept_[0];
          kept_ += length;
        } else {
          while (length < left_ && kept_[left_ - length - 1] == kept_[left_ - length] - 1) ++length;
          lowest = kept_[left_ - length];
        }
        left_ -= length;
        // In 64 bits: the blocks of a mask may be as large as its maker likes.
        const std::int64_t from = std::int64_t{lowest} * block_, to = from + std::int64_t{length} * block_;
        first_ = from > begin_ ? (from < end_ ? static_cast<int>(from) : end_) : begin_;
        last_ = to < end_ ? static_cast<int>(to) : end_;
      }
    }
    if (first_ >= last_) return;
    const int column = Order == WalkOrder::ascending ? first_ : last_ - 1;
    at_ = (column + shift_) / width_ * width_ - shift_;
  }

  const std::int32_t* kept_;
  int left_;  // kept blocks, or the one range, still to come
  std::int64_t block_;
  int begin_, end_, width_, shift_;
  int first_ = 0, last_ = 0;  // the run
  int at_ = 0;
};

using KeyWalk = StepWalk<WalkOrder::descending>;
using QueryWalk = StepWalk<WalkOrder::ascending>;

// The keys that queries [begin, end) of a sequence see, from the last to the first: under a causal mask the step on the
// diagonal comes first. The queries must lie in one block of the block mask, if there is one (Tiling).
TESSERA_HD inline KeyWalk key_walk(const Problem& p, const Sequence& s, std::int64_t q_head, int begin,
                                   int end, int width, int shift = 0) {
  const VisibleRange range = visible_range(s.band, begin, end, s.k_length);
  const int from = static_cast<int>(range.begin), to = static_cast<int>(range.end);
  if (!p.blocks) return KeyWalk(from, to, width, shift);
  const std::int64_t row = (p.blocks.heads == 1 ? 0 : q_head * p.blocks.q_blocks) + begin / p.blocks.block_q;
  const std::int64_t first = p.blocks.row_offsets[row];
  return KeyWalk(from, to, width, shift, p.blocks.columns + first,
                 static_cast<int>(p.blocks.row_offsets[row + 1] - first), static_cast<int>(p.blocks.block_k));
}

// The queries that see keys [begin, end) of a sequence, from the first to the last. The keys must lie in one block.
TESSERA_HD inline QueryWalk query_walk(const Problem& p, const Sequence& s, std::int64_t q_head, int begin,
                                       int end, int width, int shift = 0) {
  const VisibleRange range = visible_range(s.band.transposed(), begin, end, s.q_length);
  const int from = static_cast<int>(range.begin), to = static_cast<int>(range.end);
  if (!p.blocks) return QueryWalk(from, to, width, shift);
  const std::int64_t column =
      (p.blocks.heads == 1 ? 0 : q_head * p.blocks.k_blocks) + begin / p.blocks.block_k;
  const std::int64_t first = p.blocks.column_offsets[column];
  return QueryWalk(from, to, width, shift, p.blocks.rows + first,
                   static_cast<int>(p.blocks.column_offsets[column + 1] - first),
                   static_cast<int>(p.blocks.block_q));
}

}  // namespace tessera::core
