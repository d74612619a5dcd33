// Scores of one row between Q K^T and the softmax, and dropout after it, in plain C++: the
// definition that vector/scores-inl.h follows on vectors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/visibility.h"
#include "cpu/head_view.h"

namespace tessera::cpu::portable {

// The columns of a tile of keys that row i sees.
inline core::Interval visible_to_row(const HeadView& head, std::int64_t i, const core::TileRange& keys) {
  if (keys.kind == core::TileKind::full) return keys;
  const core::VisibleRange part = core::visible_part(head.s.band, {i, i + 1}, keys);
  return {part.begin, part.end};
}

// score + bias. A bias of -inf hides the key like a mask, also where the score is NaN or +inf.
template <typename A>
A add_bias(A score, A bias) {
  return bias == core::kMinusInfinity<A> ? bias : score + bias;
}

// Applies softcap, bias, ALiBi and the boolean mask to the scaled scores of row i, columns `keys`.
// Writes d(capped score) / d(scaled score) to `derivative`, unless null.
template <typename A>
void apply_score_features(const HeadView& head, std::int64_t i, const core::Interval& keys, A* score,
                          A* derivative = nullptr) {
  const core::Problem& p = head.p;
  const std::int64_t count = keys.length();
  if (p.softcap != 0) {
    const A cap = static_cast<A>(p.softcap);
    for (std::int64_t x = 0; x < count; ++x) {
      const A tanh_value = std::tanh(score[x] / cap);
      score[x] = cap * tanh_value;
      if (derivative != nullptr) derivative[x] = 1 - tanh_value * tanh_value;
    }
  }
  if (p.has_bias) {
    core::with_type(p.bias_dtype, [&]<typename B>() {
      const B* bias = p.bias.row<const B>(head.s.index, head.q_head, i) + keys.begin;
      for (std::int64_t x = 0; x < count; ++x) {
        score[x] = add_bias(score[x], static_cast<A>(core::Element<B>::load(bias[x])));
      }
    });
  }
  if (p.alibi_slopes != nullptr) {
    const A slope = p.alibi_slopes[head.s.index * p.alibi_batch_stride + head.q_head];
    const std::int64_t diagonal = i + head.s.band.diagonal;
    for (std::int64_t x = 0; x < count; ++x) {
      score[x] -= slope * static_cast<A>(std::abs(diagonal - (keys.begin + x)));
    }
  }
  if (p.has_visible) {
    const auto* visible = p.visible.row<const std::uint8_t>(head.s.index, head.q_head, i) + keys.begin;
    for (std::int64_t x = 0; x < count; ++x) {
      if (visible[x] == 0) score[x] = core::kMinusInfinity<A>;
    }
  }
}

// Multiplies the probabilities of row i, columns `keys`, by 0 or p.keep_scale.
template <typename A>
void apply_dropout(const HeadView& head, std::int64_t i, const core::Interval& keys, A* probability) {
  const core::Problem& p = head.p;
  const A keep = static_cast<A>(p.keep_scale);
  const std::int64_t row = p.origin.row + i, first = p.origin.column + keys.begin;
  const std::int64_t last = p.origin.column + keys.end;
  std::uint16_t bits[core::kDropoutGroup];
  for (std::int64_t group = first / core::kDropoutGroup; group * core::kDropoutGroup < last; ++group) {
    core::dropout_group_bits(head.stream, row, group, bits);
    const std::int64_t base = group * core::kDropoutGroup;
    const std::int64_t from = std::max(first, base), to = std::min(last, base + core::kDropoutGroup);
    for (std::int64_t c = from; c < to; ++c) {
      const bool kept = bits[c - base] >= p.dropout_threshold;
      probability[c - first] = kept ? probability[c - first] * keep : A{0};
    }
  }
}

}  // namespace tessera::cpu::portable
