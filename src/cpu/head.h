// One head of one sequence: its rows in memory, and everything that happens to a score between Q K^T and the
// softmax. Shared by all CPU algorithms, so that a score has one definition here.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/base/float16.h"
#include "core/online_softmax.h"
#include "core/problem.h"
#include "core/visibility.h"

namespace tessera::cpu {

using core::Accumulator;
using core::Element;

struct Head {
  const core::Problem& p;
  core::Sequence s;
  std::int64_t q_head;
  std::int64_t kv_head;
  core::DropoutStream stream;

  Head(const core::Problem& problem, std::int64_t sequence, std::int64_t head)
      : p(problem),
        s(core::sequence(problem, sequence)),
        q_head(head),
        kv_head(problem.kv_head(head)),
        stream(problem.dropout ? core::dropout_stream(problem, sequence, head) : core::DropoutStream{}) {}

  // Row i of the queries (or of what has their shape), row j of the keys or values, of this head.
  template <typename T>
  T* query_row(const core::View& view, std::int64_t i) const {
    return view.row<T>(s.tensor_batch, q_head, s.q_begin + i);
  }
  template <typename T>
  T* key_row(const core::View& view, std::int64_t j) const {
    return view.row<T>(s.tensor_batch, kv_head, s.k_begin + j);
  }

  // The columns of [begin, end) that row i sees around the diagonal.
  [[nodiscard]] core::Tile visible(std::int64_t i, std::int64_t begin, std::int64_t end) const {
    const core::VisibleRange range = core::visible_range(s.band, i, i + 1, s.k_length);
    const std::int64_t first = std::clamp(range.begin, begin, end);
    return {first, std::clamp(range.end, first, end)};
  }
};

// dst[r][0 .. columns) = scale * rows [begin, end) of a tensor; `row_of(r)` gives their addresses.
template <typename T, typename RowOf>
void load_rows(std::int64_t begin, std::int64_t end, std::int64_t columns, Accumulator<T> scale,
               const RowOf& row_of, Accumulator<T>* dst) {
  for (std::int64_t r = begin; r < end; ++r, dst += columns) {
    const T* src = row_of(r);
    for (std::int64_t c = 0; c < columns; ++c) dst[c] = Element<T>::load(src[c]) * scale;
  }
}

// dst[c][0 .. end - begin) (row stride `stride`) = the rows [begin, end) transposed.
template <typename T, typename RowOf>
void load_transposed(std::int64_t begin, std::int64_t end, std::int64_t columns, const RowOf& row_of,
                     Accumulator<T>* dst, std::int64_t stride) {
  for (std::int64_t r = begin; r < end; ++r) {
    const T* src = row_of(r);
    for (std::int64_t c = 0; c < columns; ++c) dst[c * stride + r - begin] = Element<T>::load(src[c]);
  }
}

// rows [begin, end) of a tensor = scale * src.
template <typename T, typename RowOf>
void store_rows(std::int64_t begin, std::int64_t end, std::int64_t columns, Accumulator<T> scale,
                const Accumulator<T>* src, const RowOf& row_of) {
  for (std::int64_t r = begin; r < end; ++r, src += columns) {
    T* dst = row_of(r);
    for (std::int64_t c = 0; c < columns; ++c) dst[c] = Element<T>::store(src[c] * scale);
  }
}

// score + bias; a bias of -inf hides the key like a mask, also where the score is NaN or +inf.
template <typename A>
A add_bias(A score, A bias) {
  return bias == core::kMinusInfinity<A> ? bias : score + bias;
}

// Scaled scores of row i, columns [begin, end), become what the softmax takes: softcap, bias, ALiBi. With
// `derivative`, also d(capped score) / d(scaled score).
template <typename A>
void finish_scores(const Head& head, std::int64_t i, std::int64_t begin, std::int64_t end, A* score,
                   A* derivative = nullptr) {
  const core::Problem& p = head.p;
  const std::int64_t count = end - begin;
  if (p.softcap != 0) {
    const A cap = static_cast<A>(p.softcap);
    for (std::int64_t x = 0; x < count; ++x) {
      const A slope = std::tanh(score[x] / cap);
      score[x] = cap * slope;
      if (derivative != nullptr) derivative[x] = 1 - slope * slope;
    }
  }
  if (p.has_bias) {
    core::with_type(p.bias_dtype, [&]<typename B>() {
      const B* bias = p.bias.row<const B>(head.s.index, head.q_head, i) + begin;
      for (std::int64_t x = 0; x < count; ++x) {
        score[x] = add_bias(score[x], static_cast<A>(Element<B>::load(bias[x])));
      }
    });
  }
  if (p.alibi_slopes != nullptr) {
    const A slope = p.alibi_slopes[head.s.index * p.alibi_batch_stride + head.q_head];
    const std::int64_t diagonal = i + head.s.band.diagonal;
    for (std::int64_t x = 0; x < count; ++x) {
      score[x] -= slope * static_cast<A>(std::abs(diagonal - (begin + x)));
    }
  }
}

// Multiplies the probabilities of row i, columns [begin, end), by 0 or p.keep_scale.
template <typename A>
void apply_dropout(const Head& head, std::int64_t i, std::int64_t begin, std::int64_t end, A* probability) {
  const core::Problem& p = head.p;
  const A keep = static_cast<A>(p.keep_scale);
  const std::int64_t row = p.origin.row + i, first = p.origin.column + begin;
  const std::int64_t last = p.origin.column + end;
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

}  // namespace tessera::cpu
