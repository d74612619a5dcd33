#include "lab/measure/row_sample.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "reference/oracle/elements.h"
#include "reference/oracle/oracle.h"

namespace tessera::lab {

RowSample::RowSample(const Attention& attention, const ForwardTensors& tensors, int rows,
                     std::uint64_t seed) {
  constexpr double kMostProducts = 1e8;  // a second or so
  const Extents& q = tensors.q.shape;
  const auto per_row =
      static_cast<double>(tensors.k.shape[1]) * static_cast<double>(tensors.k.shape[3] + tensors.v.shape[3]);
  const double affordable = std::clamp(kMostProducts / std::max(per_row, 1.0), 2.0, 1e6);
  const int count = std::min(rows, static_cast<int>(affordable));

  std::mt19937_64 random(seed);
  positions_ = {{0, 0, 0}, {q[0] - 1, q[2] - 1, q[1] - 1}};
  while (static_cast<int>(positions_.size()) < count) {
    auto below = [&](std::int64_t bound) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(bound));
    };
    positions_.push_back({below(q[0]), below(q[2]), below(q[1])});
  }
  positions_.resize(static_cast<std::size_t>(count));
  std::vector<reference::RowIndex> indices;
  for (const Position& p : positions_) indices.push_back({p.batch, p.head, p.row});
  exact_ = reference::forward_rows(attention, tensors, indices).out;
}

SampledError RowSample::compare(const ForwardTensors& tensors) const {
  const auto dim = static_cast<std::size_t>(tensors.out.shape[3]);
  SampledError result{.rows = static_cast<int>(positions_.size())};
  std::vector<double> actual(dim);
  double squares = 0, exact_squares = 0;
  for (std::size_t r = 0; r < positions_.size(); ++r) {
    const Position& p = positions_[r];
    reference::read_row(tensors.out, p.batch, p.row, p.head, actual);
    for (std::size_t d = 0; d < dim; ++d) {
      const double exact = exact_[r * dim + d];
      const double error = std::abs(actual[d] - exact);
      // A NaN becomes the largest error and stays it.
      if (std::isnan(error) || error > result.largest) result.largest = error;
      squares += error * error;
      exact_squares += exact * exact;
    }
  }
  const auto count = static_cast<double>(std::max<std::size_t>(exact_.size(), 1));
  result.root_mean_square = std::sqrt(squares / count);
  result.reference_magnitude = std::sqrt(exact_squares / count);
  return result;
}

}  // namespace tessera::lab
