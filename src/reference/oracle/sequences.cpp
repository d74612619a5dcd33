#include "reference/oracle/sequences.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "reference/oracle/elements.h"

namespace tessera::reference {
namespace {

core::Band band_of(const Attention& attention, std::int64_t q_length, std::int64_t k_length) {
  const Mask& mask = attention.mask;
  core::Band band{mask.left, mask.right, 0};
  if (!mask.diagonal && mask.align == Align::bottom_right) {
    band.diagonal = k_length - q_length;  // the last query meets the last key of what is here
    return band;
  }
  // The row with global index r = origin.row + i meets the column with global index origin.column +
  // j = r + d; top_left is d = 0.
  const std::int64_t global = mask.diagonal.value_or(0);
  band.diagonal = attention.origin.row + global - attention.origin.column;
  return band;
}

}  // namespace

std::vector<SequenceSpan> sequences(const Attention& attention, const Tensor& q, const Tensor& k) {
  const Lengths& lengths = attention.mask.lengths;
  std::vector<SequenceSpan> all;
  const std::int64_t count = lengths.count > 0 ? lengths.count : q.shape[0];
  for (std::int64_t s = 0; s < count; ++s) {
    SequenceSpan span{.index = s, .tensor_batch = s, .q_length = q.shape[1], .k_length = k.shape[1]};
    if (lengths.count > 0) {
      span.tensor_batch = 0;
      span.q_begin = lengths.q[s];
      span.q_length = lengths.q[s + 1] - lengths.q[s];
      span.k_begin = lengths.k[s];
      span.k_length = lengths.k[s + 1] - lengths.k[s];
    }
    span.band = band_of(attention, span.q_length, span.k_length);
    all.push_back(span);
  }
  return all;
}

bool visible(const Attention& attention, const SequenceSpan& sequence, std::int64_t head, std::int64_t i,
             std::int64_t j) {
  if (!sequence.band.visible(i, j)) return false;
  const BlockMask& blocks = attention.mask.blocks;
  if (!blocks) return true;
  const BlockLayout& layout = blocks.layout();
  const auto kept = blocks.row(layout.heads == 1 ? 0 : head, i / layout.block_q);
  return std::find(kept.begin(), kept.end(), j / layout.block_k) != kept.end();
}

bool shows(const Tensor& mask, const SequenceSpan& sequence, std::int64_t head, std::int64_t i,
           std::int64_t j) {
  if (!mask.given()) return true;
  const Extents at = bias_index(mask, sequence, head, i, j);
  return read(mask, at[0], at[1], at[2], at[3]) != 0;
}

double alibi_bias(const Attention& attention, const SequenceSpan& sequence, std::int64_t head, std::int64_t i,
                  std::int64_t j) {
  const Alibi& alibi = attention.alibi;
  if (alibi.slopes == nullptr) return 0;
  const double slope = alibi.slopes[sequence.index * alibi.batch_stride + head];
  return -slope * static_cast<double>(std::abs(i + sequence.band.diagonal - j));
}

DropoutFactors::DropoutFactors(const Attention& attention, const SequenceSpan& sequence, std::int64_t head)
    : probability_(attention.dropout.probability),
      first_row_(attention.origin.row),
      first_column_(attention.origin.column) {
  const Dropout& dropout = attention.dropout;
  const std::uint64_t seed = dropout.state != nullptr ? dropout.state[0] : dropout.seed;
  const std::uint64_t offset = dropout.state != nullptr ? dropout.state[1] : dropout.offset;
  const Origin& origin = attention.origin;
  stream_ = core::dropout_stream(seed, offset, origin.batch + sequence.index, origin.head + head);
}

double DropoutFactors::operator()(std::int64_t i, std::int64_t j) const {
  if (probability_ == 0) return 1;
  const std::uint32_t bits = core::dropout_bits(stream_, first_row_ + i, first_column_ + j);
  // The probability in steps of 2^-15, by the header's definition rather than by the library's
  // functions.
  const double steps = std::floor(probability_ * 32768 + 0.5);
  return bits >= steps ? 32768 / (32768 - steps) : 0;
}

Extents bias_index(const Tensor& bias, const SequenceSpan& sequence, std::int64_t head, std::int64_t i,
                   std::int64_t j) {
  return {bias.shape[0] == 1 ? 0 : sequence.index, bias.shape[1] == 1 ? 0 : head, bias.shape[2] == 1 ? 0 : i,
          j};
}

double score_scale(const Attention& attention, const Tensor& q) {
  return attention.scale.value_or(1 / std::sqrt(static_cast<double>(q.shape[3])));
}

}  // namespace tessera::reference
