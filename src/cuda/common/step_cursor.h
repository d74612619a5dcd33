// The same tiles of scores as in core/visibility.h, as a cursor: a GPU thread block asks for the
// next step while it copies the one after.
//
// A step is `width` columns wide and begins on a fixed grid, whatever is visible of it; a kernel
// copies the whole step and masks what is not visible. Steps that the masks hide completely do not
// occur. Numbers are 32 bits wide: sequences on GPUs are shorter than kLongestWalk.
#pragma once

#include <cstdint>

#include "core/band.h"
#include "core/base/host_device.h"
#include "core/problem.h"

namespace tessera::cuda {

inline constexpr std::int64_t kLongestWalk = std::int64_t{1} << 29;
static_assert(core::kFarthestAlibi <= kLongestWalk);

// A sequence shorter than kLongestWalk, in 32 bits: 64-bit arithmetic is slow on GPUs, and a thread
// block computes this before it can begin to work.
struct ShortSequence {
  int tensor_batch = 0;  // batch index into the tensors (0 when packed)
  int q_begin = 0, q_length = 0;
  int k_begin = 0, k_length = 0;
};

TESSERA_HD inline ShortSequence short_sequence(const core::Problem& p, int index) {
  if (!p.packed) return {index, 0, static_cast<int>(p.q_length), 0, static_cast<int>(p.k_length)};
  const int q_begin = p.cumulative_q[index], k_begin = p.cumulative_k[index];
  return {0, q_begin, p.cumulative_q[index + 1] - q_begin, k_begin, p.cumulative_k[index + 1] - k_begin};
}

// Row i sees column j of the band when i + low <= j <= i + high.
struct Diagonals {
  int low = 0, high = 0;
};

// The band in 32 bits.
TESSERA_HD constexpr Diagonals diagonals(const core::Band& band) {
  auto clamp = [](std::int64_t x) {
    return static_cast<int>(x < -kLongestWalk - 1  ? -kLongestWalk - 1
                            : x > kLongestWalk + 1 ? kLongestWalk + 1
                                                   : x);
  };
  return {
      band.left == core::kUnbounded ? static_cast<int>(-kLongestWalk - 1) : clamp(band.diagonal - band.left),
      band.right == core::kUnbounded ? static_cast<int>(kLongestWalk + 1)
                                     : clamp(band.diagonal + band.right)};
}

// How the diagonals of a sequence follow from its lengths. The host computes what all sequences of
// a problem have in common.
struct DiagonalRule {
  int low = 0, high = 0, diagonal = 0;
  bool follows_lengths = false;  // add k_length - q_length

  TESSERA_HD constexpr Diagonals operator()(const ShortSequence& s) const {
    const int moved = follows_lengths ? s.k_length - s.q_length : 0;
    return {low + moved, high + moved};
  }
  // ALiBi counts the distance of column j from i + this.
  TESSERA_HD constexpr int alibi_diagonal(const ShortSequence& s) const {
    return diagonal + (follows_lengths ? s.k_length - s.q_length : 0);
  }
};

inline DiagonalRule diagonal_rule(const core::Problem& p) {
  DiagonalRule rule;
  rule.follows_lengths = !p.explicit_diagonal && p.align == Align::bottom_right;
  const std::int64_t diagonal =
      rule.follows_lengths ? 0 : p.origin.row - p.origin.column + (p.explicit_diagonal ? p.diagonal : 0);
  // A diagonal beyond the longest sequence masks nothing. Unbounded sides are twice as far away, so
  // that they stay there when a difference of lengths is added.
  auto clamp = [](std::int64_t x) {
    return static_cast<int>(x < -kLongestWalk ? -kLongestWalk : x > kLongestWalk ? kLongestWalk : x);
  };
  constexpr int kFar = static_cast<int>(2 * kLongestWalk - 1);
  rule.diagonal = clamp(diagonal);
  rule.low = p.left == core::kUnbounded ? -kFar : clamp(diagonal - p.left);
  rule.high = p.right == core::kUnbounded ? kFar : clamp(diagonal + p.right);
  return rule;
}

enum class WalkOrder : std::uint8_t { ascending, descending };

// The columns that a walk visits: [begin, end), or those of them that lie in the `count` kept
// blocks (ascending) of `block` columns each.
struct VisibleColumns {
  int begin = 0, end = 0;
  const std::int32_t* kept = nullptr;
  // Number of kept blocks. Below 0: there is no block mask; a null pointer does not say so, since a
  // mask that keeps nothing has one too.
  int count = -1;
  int block = 0;
};

// Walks over steps. Source: VisibleColumns or, to save registers on a GPU, a reference to them.
template <WalkOrder Order, typename Source = VisibleColumns>
class StepWalk {
 public:
  // Steps begin where column + shift is a multiple of `width`; 0 <= shift.
  TESSERA_HD explicit StepWalk(const VisibleColumns& columns, int width, int shift = 0)
      : source_(columns), left_(columns.count < 0 ? 1 : columns.count), width_(width), shift_(shift) {
    if (columns.begin >= columns.end) left_ = 0;
    enter_run();
  }

  [[nodiscard]] TESSERA_HD bool done() const { return at_ == kNowhere; }

  // The first column of the step: on the grid, perhaps before the first visible one and even below
  // 0.
  [[nodiscard]] TESSERA_HD int begin() const { return at_; }

  // Some row of the thread block may see the columns [first, last) of the step.
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
  // Goes to the next run of neighbouring kept blocks that contains visible columns, [first_,
  // last_).
  TESSERA_HD void enter_run() {
    first_ = last_ = 0;
    while (left_ > 0 && first_ >= last_) {
      const std::int32_t* kept = source_.kept;
      if (source_.count < 0) {
        left_ = 0;
        first_ = source_.begin, last_ = source_.end;
        break;
      }
      int length = 1, lowest;  // of the run, in blocks
      if constexpr (Order == WalkOrder::ascending) {
        kept += source_.count - left_;
        while (length < left_ && kept[length] == kept[length - 1] + 1) ++length;
        lowest = kept[0];
      } else {
        while (length < left_ && kept[left_ - length - 1] == kept[left_ - length] - 1) ++length;
        lowest = kept[left_ - length];
      }
      left_ -= length;
      const std::int64_t from = std::int64_t{lowest} * source_.block;
      const std::int64_t to = from + std::int64_t{length} * source_.block;
      first_ =
          from > source_.begin ? (from < source_.end ? static_cast<int>(from) : source_.end) : source_.begin;
      last_ = to < source_.end ? static_cast<int>(to) : source_.end;
    }
    at_ = kNowhere;
    if (first_ >= last_) return;
    const int column = Order == WalkOrder::ascending ? first_ : last_ - 1;
    at_ = (column + shift_) / width_ * width_ - shift_;
  }

  static constexpr int kNowhere = -(1 << 30);  // no step begins here, nor does one follow

  Source source_;
  int left_;  // kept blocks, or the one range, still to come
  int width_, shift_;
  int first_ = 0, last_ = 0;  // the run
  int at_ = kNowhere;
};

// A block of a mask may be longer than any sequence.
TESSERA_HD constexpr int walk_block(std::int64_t block) {
  return static_cast<int>(block < kLongestWalk ? block : kLongestWalk);
}

using KeyWalk = StepWalk<WalkOrder::descending>;
using QueryWalk = StepWalk<WalkOrder::ascending>;

// `columns`, restricted to the blocks that the block mask, if there is one, keeps for the block of
// queries that contains query `begin`.
template <typename Head>
TESSERA_HD VisibleColumns with_kept_blocks(const core::Problem& p, VisibleColumns columns, Head q_head,
                                           int begin) {
  if (!p.blocks) return columns;
  const std::int64_t row = p.blocks.block_row(q_head, begin);
  const std::int64_t first = p.blocks.row_offsets[row];
  columns.kept = p.blocks.columns + first;
  columns.count = static_cast<int>(p.blocks.row_offsets[row + 1] - first);
  columns.block = walk_block(p.blocks.block_k);
  return columns;
}

// The keys that queries [begin, end) of a sequence with `keys` of them see. The queries must lie in
// one block of the block mask, if there is one (Tiling).
TESSERA_HD inline VisibleColumns visible_keys(const core::Problem& p, const Diagonals& diagonals, int keys,
                                              int q_head, int begin, int end) {
  const int first = begin + diagonals.low, last = end + diagonals.high;
  return with_kept_blocks(p, {first > 0 ? first : 0, last < keys ? last : keys}, q_head, begin);
}

TESSERA_HD inline VisibleColumns visible_keys(const core::Problem& p, const core::Sequence& s,
                                              std::int64_t q_head, int begin, int end) {
  const core::VisibleRange range = core::visible_range(s.band, begin, end, s.k_length);
  return with_kept_blocks(p, {static_cast<int>(range.begin), static_cast<int>(range.end)}, q_head, begin);
}

// The queries that see keys [begin, end) of a sequence. The keys must lie in one block.
TESSERA_HD inline VisibleColumns visible_queries(const core::Problem& p, const core::Sequence& s,
                                                 std::int64_t q_head, int begin, int end) {
  const core::VisibleRange range = core::visible_range(s.band.transposed(), begin, end, s.q_length);
  VisibleColumns rows{static_cast<int>(range.begin), static_cast<int>(range.end)};
  if (!p.blocks) return rows;
  const std::int64_t column = p.blocks.block_column(q_head, begin);
  const std::int64_t first = p.blocks.column_offsets[column];
  rows.kept = p.blocks.rows + first;
  rows.count = static_cast<int>(p.blocks.column_offsets[column + 1] - first);
  rows.block = walk_block(p.blocks.block_q);
  return rows;
}

// Keys from the last to the first: under a causal mask the step on the diagonal comes first.
TESSERA_HD inline KeyWalk key_walk(const core::Problem& p, const core::Sequence& s, std::int64_t q_head,
                                   int begin, int end, int width, int shift = 0) {
  return KeyWalk(visible_keys(p, s, q_head, begin, end), width, shift);
}

// Queries from the first to the last.
TESSERA_HD inline QueryWalk query_walk(const core::Problem& p, const core::Sequence& s, std::int64_t q_head,
                                       int begin, int end, int width, int shift = 0) {
  return QueryWalk(visible_queries(p, s, q_head, begin, end), width, shift);
}

}  // namespace tessera::cuda
