// Scores between Q K^T and the softmax, and dropout after it. The first part is the one definition
// of a score for all vector kernels; the second applies it to blocks with rows in lanes. Included
// once per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/flash2/vector/tanh-inl.h"
#include "cpu/flash2/vector/vector-inl.h"
#include "cpu/head_view.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_SCORES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_SCORES_INL_H
#undef TESSERA_CPU_SIMD_SCORES_INL_H
#else
#define TESSERA_CPU_SIMD_SCORES_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// ---- the definition of a score ------------------------------------------------------------------

// Whether scores need more than the band's mask.
inline bool has_features(const core::Problem& p) {
  return p.softcap != 0 || p.has_bias || p.alibi_slopes != nullptr;
}

// score + bias. A bias of -inf hides the key like a mask, also where the score is NaN or +inf.
template <typename A>
HWY_INLINE Vector<A> add_bias(Vector<A> score, Vector<A> bias) {
  const Vector<A> minus_infinity = hn::Set(Tag<A>(), core::kMinusInfinity<A>);
  return hn::IfThenElse(hn::Eq(bias, minus_infinity), minus_infinity, hn::Add(score, bias));
}

// The features of the scores of one head.
template <typename A>
struct ScoreFeatures {
  bool softcap, bias, alibi;
  A cap, inverse_cap, slope;

  explicit ScoreFeatures(const HeadView& head)
      : softcap(head.p.softcap != 0),
        bias(head.p.has_bias),
        alibi(head.p.alibi_slopes != nullptr),
        cap(static_cast<A>(head.p.softcap)),
        inverse_cap(softcap ? static_cast<A>(1 / head.p.softcap) : A{0}),
        slope(alibi ? static_cast<A>(
                          head.p.alibi_slopes[head.s.index * head.p.alibi_batch_stride + head.q_head])
                    : A{0}) {}
};

// The score that the softmax takes, but for the band: softcap, bias and ALiBi on a scaled product.
// `distance` is that of the key from the diagonal. With a softcap `tanh_value` becomes tanh(product
// / cap).
template <typename A>
HWY_INLINE Vector<A> score_of(const ScoreFeatures<A>& features, Vector<A> product, Vector<A> bias,
                              Vector<A> distance, Vector<A>& tanh_value) {
  const Tag<A> d;
  Vector<A> x = product;
  if (features.softcap) {
    tanh_value = tanh_of<A>(hn::Mul(x, hn::Set(d, features.inverse_cap)));
    x = hn::Mul(tanh_value, hn::Set(d, features.cap));
  }
  if (features.bias) x = add_bias<A>(x, bias);
  if (features.alibi) x = hn::NegMulAdd(hn::Set(d, features.slope), hn::Abs(distance), x);
  return x;
}

// d(capped score) / d(scaled product).
template <typename A>
HWY_INLINE Vector<A> cap_derivative(Vector<A> tanh_value) {
  return hn::NegMulAdd(tanh_value, tanh_value, hn::Set(Tag<A>(), A{1}));
}

// ---- blocks with rows in lanes ------------------------------------------------------------------

// A block of scores: one line of `vectors` vectors per key, whose lanes are the rows from `row` on
// of a head.
template <typename A>
struct ScoreBlock {
  A* s;
  std::int64_t stride;  // between the lines of two keys
  std::int64_t vectors;
  std::int64_t row;  // of lane 0
  core::Interval keys;
};

// Elements that load_bias needs beside its result, for blocks of `keys` keys.
template <typename A>
constexpr std::int64_t bias_row_size(std::int64_t keys) {
  return keys * kTransposeSide<A>;
}

// to[0 .. count) = from[0 .. count), as accumulators. Returns whether one is not -inf.
template <typename A, typename B>
HWY_INLINE bool copy_bias(const B* HWY_RESTRICT from, std::int64_t count, A* HWY_RESTRICT to) {
  const Tag<A> d;
  const Vector<A> minus_infinity = hn::Set(d, core::kMinusInfinity<A>);
  std::int64_t c = 0;
  bool visible = false;
  if constexpr (std::is_same_v<core::Accumulator<B>, A>) {
    for (; c + lanes<A>() <= count; c += lanes<A>()) {
      const Vector<A> x = load_elements(from + c);
      visible |= !hn::AllTrue(d, hn::Eq(x, minus_infinity));
      hn::StoreU(x, d, to + c);
    }
  }
  for (; c < count; ++c) {
    to[c] = static_cast<A>(core::Element<B>::load(from[c]));
    visible |= to[c] != core::kMinusInfinity<A>;
  }
  return visible;
}

// Loads the bias of the block, transposed like the scores. Returns whether it leaves anything
// visible. Rows at or past `row_end` repeat the last one; `rows` has room for bias_row_size. The
// rows lie far apart, where the hardware does not foresee them: each is prefetched some rows
// earlier, the first of them with the keys before.
template <typename A>
HWY_INLINE bool load_bias(const HeadView& head, const ScoreBlock<A>& block, std::int64_t row_end, A* rows,
                          A* bias) {
  const Tag<A> d;
  constexpr std::int64_t kSide = kTransposeSide<A>, kAhead = 12;
  const std::int64_t width = block.vectors * lanes<A>(), count = block.keys.length();
  return core::with_type(head.p.bias_dtype, [&]<typename B>() HWY_ATTR {
    auto row = [&](std::int64_t r) HWY_ATTR {
      const std::int64_t i = std::min(block.row + r, row_end - 1);
      return head.p.bias.template row<const B>(head.s.index, head.q_head, i) + block.keys.begin;
    };
    if (head.p.bias_rows == 1) {
      const bool visible = copy_bias(row(0), count, rows);
      for (std::int64_t x = 0; x < count; ++x) {
        for (std::int64_t v = 0; v < width; v += lanes<A>()) {
          hn::StoreU(hn::Set(d, rows[x]), d, bias + x * block.stride + v);
        }
      }
      return visible;
    }
    bool visible = false;
    for (std::int64_t lane = 0; lane < width; lane += kSide) {
      for (std::int64_t r = 0; r < kSide; ++r) {
        const std::int64_t ahead = lane + r + kAhead;
        prefetch_row(ahead < width ? row(ahead) : row(ahead - width) + count, count);
        visible |= copy_bias(row(lane + r), count, rows + r * count);
      }
      transpose(rows, count, kSide, count, bias + lane, block.stride);
    }
    return visible;
  });
}

// The steps from scaled products to scores, each over the whole block. Together they are score_of()
// and the band.

// Softcap. `derivative`, laid out as the scores, gets that of a capped score, unless null.
template <typename A>
HWY_NOINLINE void cap_scores(const ScoreFeatures<A>& features, const ScoreBlock<A>& block, A* derivative) {
  const Tag<A> d;
  const Vector<A> cap = hn::Set(d, features.cap), inverse_cap = hn::Set(d, features.inverse_cap);
  const std::int64_t width = block.vectors * lanes<A>();
  for (std::int64_t line = 0; line < block.keys.length() * block.stride; line += block.stride) {
    for (std::int64_t at = line; at < line + width; at += lanes<A>()) {
      const Vector<A> tanh_value = tanh_of<A>(hn::Mul(hn::LoadU(d, block.s + at), inverse_cap));
      hn::StoreU(hn::Mul(tanh_value, cap), d, block.s + at);
      if (derivative != nullptr) hn::StoreU(cap_derivative<A>(tanh_value), d, derivative + at);
    }
  }
}

// Adds the bias, with Bias, and ALiBi, with Alibi; hides what lies outside the band, with Band; and
// raises `maximum` (one value per lane) unless null. A lane counts the keys of the block: it sees
// [first, last], and its diagonal may lie between two keys of any block.
template <bool Bias, bool Alibi, bool Band, typename A>
HWY_NOINLINE void shift_scores(const core::Band& band, const ScoreBlock<A>& block, const A* bias, A slope,
                               A* maximum) {
  const Tag<A> d;
  const Vector<A> minus_infinity = hn::Set(d, core::kMinusInfinity<A>), one = hn::Set(d, A{1});
  const Vector<A> negative_slope = hn::Set(d, -slope);
  const std::int64_t diagonal = block.row + band.diagonal - block.keys.begin;  // of lane 0
  // Keys far away are clamped: they stay far away, and they count in steps of 1 in any type.
  constexpr std::int64_t kFar = 1 << 22;
  auto bound = [&](std::int64_t key) { return static_cast<A>(std::clamp(key, -kFar, kFar)); };
  const A first_bound = bound(band.left == core::kUnbounded ? -kFar : diagonal - band.left);
  const A last_bound = bound(band.right == core::kUnbounded ? kFar : diagonal + band.right);
  for (std::int64_t v = 0; v < block.vectors; ++v) {
    const std::int64_t at = v * lanes<A>();
    const Vector<A> lane = hn::Iota(d, static_cast<A>(at));
    const Vector<A> own = hn::Add(lane, hn::Set(d, static_cast<A>(diagonal)));
    const Vector<A> first = hn::Add(lane, hn::Set(d, first_bound));
    const Vector<A> last = hn::Add(lane, hn::Set(d, last_bound));
    Vector<A> key = hn::Zero(d), largest = minus_infinity;
    for (std::int64_t line = at; line < at + block.keys.length() * block.stride; line += block.stride) {
      Vector<A> x = hn::LoadU(d, block.s + line);
      if constexpr (Bias) x = add_bias<A>(x, hn::LoadU(d, bias + line));
      if constexpr (Alibi) x = hn::MulAdd(negative_slope, hn::Abs(hn::Sub(own, key)), x);
      if constexpr (Band) {
        x = hn::IfThenElse(hn::And(hn::Ge(key, first), hn::Le(key, last)), x, minus_infinity);
      }
      key = hn::Add(key, one);
      if constexpr (Bias || Alibi || Band) hn::StoreU(x, d, block.s + line);
      largest = hn::Max(x, largest);
    }
    if (maximum != nullptr) hn::StoreU(hn::Max(hn::LoadU(d, maximum + at), largest), d, maximum + at);
  }
}

// Turns every scaled product of the block into a score: features and, where `masked`, the band.
// `bias` is what load_bias made, or null. Raises `maximum` (one value per lane) and writes the
// softcap's `derivative` (laid out as the scores), each unless null.
template <typename A>
HWY_INLINE void apply_score_features(const HeadView& head, const ScoreBlock<A>& block, bool masked,
                                     const A* bias, A* maximum, A* derivative) {
  const ScoreFeatures<A> features(head);
  if (features.softcap) cap_scores(features, block, derivative);
  auto with = [](bool flag, const auto& body)
                  HWY_ATTR { flag ? body(std::true_type()) : body(std::false_type()); };
  with(bias != nullptr, [&]<bool Bias>(std::bool_constant<Bias>) HWY_ATTR {
    with(features.alibi, [&]<bool Alibi>(std::bool_constant<Alibi>) HWY_ATTR {
      with(masked, [&]<bool Band>(std::bool_constant<Band>) HWY_ATTR {
        shift_scores<Bias, Alibi, Band>(head.s.band, block, bias, features.slope, maximum);
      });
    });
  });
}

// ---- dropout ------------------------------------------------------------------------------------

// One 32-bit word per lane of a vector of A.
template <typename A>
using WordTag = hn::Rebind<std::uint32_t, Tag<A>>;
template <typename A>
using Words = hn::Vec<WordTag<A>>;

// High and low halves of a * b, lane by lane.
template <typename A>
HWY_INLINE void multiply_words(Words<A> a, std::uint32_t b, Words<A>& high, Words<A>& low) {
  const WordTag<A> d;
  const Words<A> factor = hn::Set(d, b);
  const Words<A> even = hn::BitCast(d, hn::MulEven(a, factor));
  const Words<A> odd = hn::BitCast(d, hn::MulEven(hn::DupOdd(a), factor));
  low = hn::OddEven(hn::DupEven(odd), even);
  high = hn::OddEven(odd, hn::DupOdd(even));
}

// Philox4x32 on the counters c0 ... c3, lane by lane.
template <typename A>
HWY_INLINE void philox_rounds(const core::DropoutStream& stream, Words<A>& c0, Words<A>& c1, Words<A>& c2,
                              Words<A>& c3) {
  const WordTag<A> d;
  std::uint32_t key0 = stream.key0, key1 = stream.key1;
  for (int round = 0; round < core::kPhiloxRounds; ++round) {
    Words<A> high0, low0, high1, low1;
    multiply_words<A>(c0, core::kPhiloxMultiplier0, high0, low0);
    multiply_words<A>(c2, core::kPhiloxMultiplier1, high1, low1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, key0));
    c1 = low1;
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, key1));
    c3 = low0;
    key0 += core::kPhiloxWeyl0;
    key1 += core::kPhiloxWeyl1;
  }
}

// Lanes whose bits reach the threshold, as a mask for A.
template <typename A>
HWY_INLINE hn::Mask<Tag<A>> reaches(Words<A> bits, std::uint32_t threshold) {
  const Tag<A> d;
  const hn::RebindToSigned<WordTag<A>> dw;
  const auto signed_bits = hn::BitCast(dw, bits);
  const auto limit = static_cast<std::int32_t>(threshold) - 1;
  if constexpr (sizeof(A) == 4) {
    return hn::RebindMask(d, hn::Gt(signed_bits, hn::Set(dw, limit)));
  } else {
    const hn::RebindToSigned<Tag<A>> dl;
    return hn::RebindMask(d, hn::Gt(hn::PromoteTo(dl, signed_bits), hn::Set(dl, limit)));
  }
}

// Multiplies the probabilities of the block by 0 or p.keep_scale, by the bits of core/philox.h, a
// vector of rows at a time.
template <typename A>
HWY_INLINE void apply_dropout(const HeadView& head, const ScoreBlock<A>& block) {
  const Tag<A> d;
  const WordTag<A> dw;
  const core::Problem& p = head.p;
  const core::DropoutStream& stream = head.stream;
  const std::int64_t first = p.origin.column + block.keys.begin, end = p.origin.column + block.keys.end;
  const Vector<A> keep = hn::Set(d, static_cast<A>(p.keep_scale));
  const Words<A> mask = hn::Set(dw, (1U << core::kDropoutBits) - 1);
  for (std::int64_t v = 0; v < block.vectors; ++v) {
    const auto row = static_cast<std::uint32_t>(p.origin.row + block.row + v * lanes<A>());
    for (std::int64_t group = first / core::kDropoutGroup; group * core::kDropoutGroup < end; ++group) {
      for (int pair = 0; pair < 4; ++pair) {
        Words<A> c0 = hn::Set(dw, static_cast<std::uint32_t>(group * 4 + pair));
        Words<A> c1 = hn::Iota(dw, row), c2 = hn::Set(dw, stream.high0), c3 = hn::Set(dw, stream.high1);
        philox_rounds<A>(stream, c0, c1, c2, c3);
        auto drop = [&](int word, Words<A> bits) HWY_ATTR {
          for (int half = 0; half < 2; ++half) {
            const std::int64_t column = group * core::kDropoutGroup + 8 * word + 2 * pair + half;
            if (column < first || column >= end) continue;
            const Words<A> own = hn::And(half == 0 ? bits : hn::ShiftRight<16>(bits), mask);
            A* at = block.s + (column - first) * block.stride + v * lanes<A>();
            const Vector<A> x = hn::Mul(hn::LoadU(d, at), keep);
            hn::StoreU(hn::IfThenElseZero(reaches<A>(own, p.dropout_threshold), x), d, at);
          }
        };
        drop(0, c0);
        drop(1, c1);
        drop(2, c2);
        drop(3, c3);
      }
    }
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
