// Scores of one row with keys in the lanes: the features of scores-inl.h, and dropout. What is left
// beside whole vectors goes through a buffer of one vector, filled up with values that change
// nothing. Included once per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/flash2/vector/scores-inl.h"
#include "cpu/flash2/vector/vector-inl.h"
#include "cpu/head_view.h"

// clang-format off
#if defined(TESSERA_CPU_ROW_SCORES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_ROW_SCORES_INL_H
#undef TESSERA_CPU_ROW_SCORES_INL_H
#else
#define TESSERA_CPU_ROW_SCORES_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// body(x, count) for the vectors that cover [0, count): whole ones, then the rest.
template <typename A, typename Body>
HWY_INLINE void for_each_vector(std::int64_t count, const Body& body) {
  std::int64_t x = 0;
  for (; x + lanes<A>() <= count; x += lanes<A>()) body(x, lanes<A>());
  if (x < count) body(x, count - x);
}

// `count` values, then `fill`.
template <typename A>
HWY_INLINE Vector<A> load_some(const A* from, std::int64_t count, A fill) {
  const Tag<A> d;
  if (HWY_LIKELY(count == lanes<A>())) return hn::LoadU(d, from);
  alignas(64) A buffer[hn::MaxLanes(Tag<A>())];
  hn::Store(hn::Set(d, fill), d, buffer);
  std::memcpy(buffer, from, static_cast<std::size_t>(count) * sizeof(A));
  return hn::Load(d, buffer);
}

template <typename A>
HWY_INLINE void store_some(Vector<A> x, A* to, std::int64_t count) {
  const Tag<A> d;
  if (HWY_LIKELY(count == lanes<A>())) return hn::StoreU(x, d, to);
  alignas(64) A buffer[hn::MaxLanes(Tag<A>())];
  hn::Store(x, d, buffer);
  std::memcpy(to, buffer, static_cast<std::size_t>(count) * sizeof(A));
}

// `count` values of a bias of any type.
template <typename A, typename B>
HWY_INLINE Vector<A> load_bias_row(const B* from, std::int64_t count) {
  if constexpr (std::is_same_v<core::Accumulator<B>, A>) {
    if (HWY_LIKELY(count == lanes<A>())) return load_elements(from);
  }
  alignas(64) A buffer[hn::MaxLanes(Tag<A>())] = {};
  for (std::int64_t x = 0; x < count; ++x) buffer[x] = static_cast<A>(core::Element<B>::load(from[x]));
  return hn::Load(Tag<A>(), buffer);
}

template <typename A, typename B>
HWY_INLINE A score_row_of(const HeadView& head, std::int64_t i, const core::Interval& keys, A* score,
                          A* derivative, A maximum, const B* bias) {
  const Tag<A> d;
  const ScoreFeatures<A> features(head);
  const bool changed = has_features(head.p);
  const std::int64_t to_diagonal = keys.begin - (i + head.s.band.diagonal);
  Vector<A> largest = hn::Set(d, maximum);
  for_each_vector<A>(keys.length(), [&](std::int64_t x, std::int64_t count) HWY_ATTR {
    const Vector<A> distance = hn::Iota(d, static_cast<A>(to_diagonal + x));
    const Vector<A> own_bias = bias == nullptr ? hn::Zero(d) : load_bias_row<A>(bias + x, count);
    Vector<A> tanh_value = hn::Zero(d);
    Vector<A> s = score_of(features, load_some(score + x, count, core::kMinusInfinity<A>), own_bias, distance,
                           tanh_value);
    if (derivative != nullptr) store_some(cap_derivative<A>(tanh_value), derivative + x, count);
    if (changed) store_some(s, score + x, count);
    if (HWY_UNLIKELY(count < lanes<A>())) {  // a capped -inf would count
      s = hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(count)), s,
                         hn::Set(d, core::kMinusInfinity<A>));
    }
    largest = hn::Max(s, largest);
  });
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// Turns the scaled products of row i and some keys into scores, but for the band. Returns the
// largest of them and of `maximum`. Writes the softcap's `derivative` unless null.
template <typename A>
A score_row(const HeadView& head, std::int64_t i, const core::Interval& keys, A* score, A* derivative,
            A maximum) {
  if (!head.p.has_bias) {
    return score_row_of<A, A>(head, i, keys, score, derivative, maximum, nullptr);
  }
  return core::with_type(head.p.bias_dtype, [&]<typename B>() HWY_ATTR {
    return score_row_of<A, B>(head, i, keys, score, derivative, maximum,
                              head.p.bias.template row<const B>(head.s.index, head.q_head, i) + keys.begin);
  });
}

// ---- dropout ------------------------------------------------------------------------------------

// Groups of columns whose random bits one set of vectors holds: a group takes four calls, one per
// lane.
inline constexpr std::int64_t kMaxGroups = static_cast<std::int64_t>(hn::MaxLanes(Tag<float>())) / 4;
HWY_INLINE std::int64_t row_groups() { return lanes<float>() / 4; }

// The bits of every column of row_groups() groups of one row. Word m of call t gives columns 8m +
// 2t and 8m + 2t + 1: four words of one group are 16 bytes in the order of the columns.
HWY_INLINE void row_bits(const core::DropoutStream& stream, std::uint32_t row, std::int64_t group,
                         std::uint16_t* bits) {
  const WordTag<float> d;
  alignas(64) std::uint32_t words[4][4 * kMaxGroups];
  Words<float> c0 = hn::Iota(d, static_cast<std::uint32_t>(group * 4)), c1 = hn::Set(d, row);
  Words<float> c2 = hn::Set(d, stream.high0), c3 = hn::Set(d, stream.high1);
  philox_rounds<float>(stream, c0, c1, c2, c3);
  const Words<float> both = hn::Set(d, ((1U << core::kDropoutBits) - 1) * 0x10001U);
  hn::Store(hn::And(c0, both), d, words[0]);
  hn::Store(hn::And(c1, both), d, words[1]);
  hn::Store(hn::And(c2, both), d, words[2]);
  hn::Store(hn::And(c3, both), d, words[3]);
  for (std::int64_t g = 0; g < row_groups(); ++g) {
    for (std::int64_t m = 0; m < 4; ++m) std::memcpy(bits + (4 * g + m) * 8, words[m] + 4 * g, 16);
  }
}

// Multiplies the probabilities of row i and some keys by 0 or p.keep_scale.
template <typename A>
void dropout_row(const HeadView& head, std::int64_t i, const core::Interval& keys, A* values) {
  const Tag<A> d;
  const WordTag<A> dw;
  const hn::Rebind<std::uint16_t, Tag<A>> d16;
  const core::Problem& p = head.p;
  const std::int64_t columns = row_groups() * core::kDropoutGroup;
  const auto row = static_cast<std::uint32_t>(p.origin.row + i);
  const std::int64_t first = p.origin.column + keys.begin, last = p.origin.column + keys.end;
  const Vector<A> keep = hn::Set(d, static_cast<A>(p.keep_scale));
  alignas(64) std::uint16_t bits[kMaxGroups * core::kDropoutGroup];
  for (std::int64_t group = first / core::kDropoutGroup; group * core::kDropoutGroup < last;
       group += row_groups()) {
    row_bits(head.stream, row, group, bits);
    const std::int64_t base = group * core::kDropoutGroup;
    const std::int64_t to = std::min(last, base + columns);
    std::int64_t c = std::max(first, base);
    for (; c + lanes<A>() <= to; c += lanes<A>()) {
      const auto kept = reaches<A>(hn::PromoteTo(dw, hn::LoadU(d16, bits + (c - base))), p.dropout_threshold);
      A* at = values + (c - first);
      hn::StoreU(hn::IfThenElseZero(kept, hn::Mul(hn::LoadU(d, at), keep)), d, at);
    }
    for (; c < to; ++c) {
      A& value = values[c - first];
      value = bits[c - base] >= p.dropout_threshold ? value * static_cast<A>(p.keep_scale) : A{0};
    }
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
