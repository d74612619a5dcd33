// The passes of cpu.standard over the rows of its matrices (softmax_rows.h), for every vector instruction set: keys
// in the lanes, since a row is contiguous in memory. What is left beside whole vectors goes through a buffer of
// one vector, filled up with what changes nothing.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/baselines/standard/softmax_rows.cpp"  // NOLINT(build/include)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/baselines/standard/softmax_rows.h"
#include "cpu/flash2/vector/key_block-inl.h"
#include "cpu/flash2/vector/scores-inl.h"
#include "cpu/head.h"

#if HWY_TARGET != HWY_SCALAR  // the portable rows serve there
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
HWY_INLINE A finish_row_with(const Head& head, std::int64_t i, std::int64_t begin, std::int64_t end, A* score,
                             A* derivative, A maximum, const B* bias) {
  const Tag<A> d;
  const core::Problem& p = head.p;
  const bool alibi = p.alibi_slopes != nullptr, features = has_features(p);
  const Vector<A> slope = hn::Set(
      d, alibi ? static_cast<A>(p.alibi_slopes[head.s.index * p.alibi_batch_stride + head.q_head]) : A{0});
  const Vector<A> cap = hn::Set(d, static_cast<A>(p.softcap));
  const Vector<A> inverse_cap = hn::Set(d, p.softcap != 0 ? static_cast<A>(1 / p.softcap) : A{0});
  const std::int64_t to_diagonal = begin - (i + head.s.band.diagonal);
  Vector<A> largest = hn::Set(d, maximum);
  for_each_vector<A>(end - begin, [&](std::int64_t x, std::int64_t count) HWY_ATTR {
    Vector<A> s = load_some(score + x, count, core::kMinusInfinity<A>);
    if (p.softcap != 0) {
      const Vector<A> tanh = hn::Tanh(d, hn::Mul(s, inverse_cap));
      s = hn::Mul(tanh, cap);
      if (derivative != nullptr) {
        store_some(hn::NegMulAdd(tanh, tanh, hn::Set(d, A{1})), derivative + x, count);
      }
    }
    if (p.has_bias) s = add_bias<A>(s, load_bias_row<A>(bias + x, count));
    if (alibi) {
      const Vector<A> distance = hn::Iota(d, static_cast<A>(to_diagonal + x));
      s = hn::NegMulAdd(slope, hn::Abs(distance), s);
    }
    if (features) store_some(s, score + x, count);
    if (HWY_UNLIKELY(count < lanes<A>())) {  // a capped -inf would count
      s = hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(count)), s,
                         hn::Set(d, core::kMinusInfinity<A>));
    }
    largest = hn::Max(s, largest);
  });
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

template <typename A>
A finish_row(const Head& head, std::int64_t i, std::int64_t begin, std::int64_t end, A* score, A* derivative,
             A maximum) {
  if (!head.p.has_bias) {
    return finish_row_with<A, A>(head, i, begin, end, score, derivative, maximum, nullptr);
  }
  return core::with_type(head.p.bias_dtype, [&]<typename B>() HWY_ATTR {
    return finish_row_with<A, B>(head, i, begin, end, score, derivative, maximum,
                                 head.p.bias.template row<const B>(head.s.index, head.q_head, i) + begin);
  });
}

template <typename A>
A exponentiate_row(A* score, std::int64_t count, A maximum) {
  const Tag<A> d;
  const Vector<A> largest = hn::Set(d, maximum);
  Vector<A> sum = hn::Zero(d);
  for_each_vector<A>(count, [&](std::int64_t x, std::int64_t some) HWY_ATTR {
    const Vector<A> p = exp_difference<A>(load_some(score + x, some, core::kMinusInfinity<A>), largest);
    store_some(p, score + x, some);
    sum = hn::Add(sum, p);
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Scores of -inf give 0 also where the LSE is NaN, and a P of 0 gives a dS of 0 whatever dP and delta are.
template <typename A>
void differentiate_row(A* score, A* grad, std::int64_t count, A lse, A delta) {
  const Tag<A> d;
  const Vector<A> reference = hn::Set(d, lse), shift = hn::Set(d, delta);
  const Vector<A> hidden = hn::Set(d, core::kMinusInfinity<A>);
  for_each_vector<A>(count, [&](std::int64_t x, std::int64_t some) HWY_ATTR {
    const Vector<A> s = load_some(score + x, some, A{0});
    const Vector<A> p = hn::IfThenZeroElse(hn::Eq(s, hidden), exp_difference<A>(s, reference));
    store_some(p, score + x, some);
    const Vector<A> gradient = hn::Mul(p, hn::Sub(load_some(grad + x, some, A{0}), shift));
    store_some(hn::IfThenZeroElse(hn::Eq(p, hn::Zero(d)), gradient), grad + x, some);
  });
}

template <typename A>
void scale_row(A* values, std::int64_t count, A factor) {
  const Vector<A> by = hn::Set(Tag<A>(), factor);
  for_each_vector<A>(count, [&](std::int64_t x, std::int64_t some) HWY_ATTR {
    store_some(hn::Mul(load_some(values + x, some, A{0}), by), values + x, some);
  });
}

// A value of 0 stays 0, also where its factor is NaN.
template <typename A>
void multiply_rows(A* values, const A* factors, std::int64_t count) {
  const Tag<A> d;
  for_each_vector<A>(count, [&](std::int64_t x, std::int64_t some) HWY_ATTR {
    const Vector<A> value = load_some(values + x, some, A{0});
    const Vector<A> product = hn::Mul(value, load_some(factors + x, some, A{0}));
    store_some(hn::IfThenZeroElse(hn::Eq(value, hn::Zero(d)), product), values + x, some);
  });
}

// Groups of columns whose random bits one set of vectors holds: a group takes four calls, one per lane.
inline constexpr std::int64_t kMaxGroups = static_cast<std::int64_t>(hn::MaxLanes(Tag<float>())) / 4;
HWY_INLINE std::int64_t row_groups() { return lanes<float>() / 4; }

// The bits of every column of row_groups() groups of one row. Word m of call t gives columns 8m + 2t and
// 8m + 2t + 1: four words of one group are 16 bytes in the order of the columns.
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

template <typename A>
void dropout_row(const Head& head, std::int64_t i, std::int64_t begin, std::int64_t end, A* values) {
  const Tag<A> d;
  const WordTag<A> dw;
  const hn::Rebind<std::uint16_t, Tag<A>> d16;
  const core::Problem& p = head.p;
  const std::int64_t columns = row_groups() * core::kDropoutGroup;
  const auto row = static_cast<std::uint32_t>(p.origin.row + i);
  const std::int64_t first = p.origin.column + begin, last = p.origin.column + end;
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

template <typename A>
bool finite_row(const A* values, std::int64_t count) {
  return all_finite(values, count);
}

template <typename A>
inline constexpr SoftmaxRows<A> kSoftmaxRows{finish_row<A>, exponentiate_row<A>, differentiate_row<A>,
                                             scale_row<A>,  multiply_rows<A>,    dropout_row<A>,
                                             finite_row<A>};

inline constexpr SoftmaxRowsEngine kSoftmaxRowsEngine{kSoftmaxRows<float>, kSoftmaxRows<double>};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
#include "cpu/engine_of.h"
namespace tessera::cpu {

const SoftmaxRowsEngine* softmax_rows_engine(Target target) {
  const SoftmaxRowsEngine* engine = TESSERA_ENGINE_OF(target, kSoftmaxRowsEngine);
  return engine != nullptr ? engine : portable::softmax_rows_engine();
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
