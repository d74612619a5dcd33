// Visibility around the diagonal: causal masks and windows, per element and per tile.
//
// Coordinates here are local: row i and column j count from the first query and key of one
// sequence.
#pragma once

#include <cstdint>

#include "core/base/host_device.h"

namespace tessera::core {

inline constexpr std::int64_t kUnbounded = -1;

// Rows or columns [begin, end).
struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  TESSERA_HD constexpr bool empty() const { return begin >= end; }
  TESSERA_HD constexpr std::int64_t length() const { return end - begin; }

  // The nearest position within the interval, its end included.
  TESSERA_HD constexpr std::int64_t clamp(std::int64_t x) const {
    return x < begin ? begin : x > end ? end : x;
  }
};

// Row i sees column j when i + diagonal - left <= j <= i + diagonal + right.
struct Band {
  std::int64_t left = kUnbounded;
  std::int64_t right = kUnbounded;
  std::int64_t diagonal = 0;

  TESSERA_HD constexpr bool bounded() const { return left != kUnbounded || right != kUnbounded; }

  TESSERA_HD constexpr bool visible(std::int64_t i, std::int64_t j) const {
    const std::int64_t distance = j - (i + diagonal);
    return (left == kUnbounded || -distance <= left) && (right == kUnbounded || distance <= right);
  }

  // The band with rows and columns exchanged: column j sees row i exactly when row i sees column j.
  TESSERA_HD constexpr Band transposed() const { return {right, left, -diagonal}; }
};

// How a tile of scores is treated.
enum class TileKind : std::uint8_t {
  skip,     // nothing is visible
  partial,  // some elements are visible: the kernel masks each
  full,     // everything is visible
};

// The columns that a block of rows sees: none outside [begin, end), all inside [full_begin,
// full_end), some in between. begin <= full_begin <= full_end <= end always; without full columns
// full_begin == end.
struct VisibleRange {
  std::int64_t begin = 0;
  std::int64_t full_begin = 0;
  std::int64_t full_end = 0;
  std::int64_t end = 0;

  TESSERA_HD constexpr bool empty() const { return begin >= end; }
  // Whether every row sees all of [begin, end).
  TESSERA_HD constexpr bool full() const { return full_begin <= begin && end <= full_end; }

  // How a tile of these columns is treated.
  TESSERA_HD constexpr TileKind kind(std::int64_t tile_begin, std::int64_t tile_end) const {
    if (tile_begin >= tile_end || tile_end <= begin || tile_begin >= end) return TileKind::skip;
    return tile_begin >= full_begin && tile_end <= full_end ? TileKind::full : TileKind::partial;
  }

  // The part that lies in `columns`.
  TESSERA_HD constexpr VisibleRange within(const Interval& columns) const {
    VisibleRange part{columns.clamp(begin), columns.clamp(full_begin), columns.clamp(full_end),
                      columns.clamp(end)};
    if (part.full_begin >= part.full_end) part.full_begin = part.full_end = part.end;
    return part;
  }
};

// The columns, out of `columns`, that rows [row_begin, row_end) may attend to. For the rows that
// columns are visible to, pass band.transposed().
TESSERA_HD constexpr VisibleRange visible_range(const Band& band, std::int64_t row_begin,
                                                std::int64_t row_end, std::int64_t columns) {
  auto clamp = [columns](std::int64_t x) { return x < 0 ? 0 : x > columns ? columns : x; };
  if (row_begin >= row_end || columns <= 0) return {};
  VisibleRange range{0, 0, columns, columns};
  if (band.left != kUnbounded) {
    range.begin = clamp(row_begin + band.diagonal - band.left);
    range.full_begin = clamp(row_end - 1 + band.diagonal - band.left);
  }
  if (band.right != kUnbounded) {
    range.end = clamp(row_end - 1 + band.diagonal + band.right + 1);
    range.full_end = clamp(row_begin + band.diagonal + band.right + 1);
  }
  if (range.begin >= range.end) return {};
  if (range.full_begin >= range.full_end) range.full_begin = range.full_end = range.end;
  return range;
}

// The part of `columns` that `rows` may attend to: what a strip of a tile sees of the tile's
// columns. Columns count from 0 of the sequence, and `columns` ends within it.
TESSERA_HD constexpr VisibleRange visible_part(const Band& band, const Interval& rows,
                                               const Interval& columns) {
  return visible_range(band, rows.begin, rows.end, columns.end).within(columns);
}

// Sum over rows i in [0, rows) of i + shift, each clamped to [0, columns], in closed form.
TESSERA_HD constexpr double sum_of_clamped(std::int64_t rows, std::int64_t shift, std::int64_t columns) {
  if (shift >= columns) return static_cast<double>(rows) * static_cast<double>(columns);
  if (shift <= -rows) return 0;
  // Sum of the clamped integers below x.
  auto below = [columns](std::int64_t x) {
    const auto n = static_cast<double>(columns), value = static_cast<double>(x);
    if (x <= 0) return 0.0;
    return x <= columns ? value * (value - 1) / 2 : n * (n + 1) / 2 + (value - n - 1) * n;
  };
  return below(shift + rows) - below(shift);
}

// The number of visible (row, column) pairs in a rows x columns rectangle, in closed form; exact
// below 2^53.
TESSERA_HD constexpr double visible_pairs(const Band& band, std::int64_t rows, std::int64_t columns) {
  if (rows <= 0 || columns <= 0) return 0;
  const auto n = static_cast<double>(columns);
  double pairs = static_cast<double>(rows) * n;
  if (band.right != kUnbounded) {
    pairs = sum_of_clamped(rows, band.diagonal + band.right + 1, columns);
  }
  if (band.left != kUnbounded) pairs -= sum_of_clamped(rows, band.diagonal - band.left, columns);
  return pairs;
}

}  // namespace tessera::core
