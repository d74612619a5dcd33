// The pieces of cpu.decode: rows of any length as whole vectors, prefetches, the two products and
// the softmax between them. The products have head_dim in the lanes, the softmax has keys. Included
// once per target.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/online_softmax.h"
#include "cpu/flash2/vector/vector-inl.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_DECODE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_DECODE_INL_H
#undef TESSERA_CPU_SIMD_DECODE_INL_H
#else
#define TESSERA_CPU_SIMD_DECODE_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // cpu.decode requires vectors
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// ---- rows in memory -----------------------------------------------------------------------------

// Keys or values of one head in their own type: row j is at data + j * stride.
template <typename T>
struct Keys {
  const T* data;
  std::int64_t stride;
  std::int64_t count;

  HWY_INLINE const T* row(std::int64_t j) const { return data + j * stride; }
};

// A row of `dim` elements as whole vectors ("slots"). The last slot of a row that is no multiple of
// a vector ends with the row and overlaps the slot before it, so that nothing outside the row is
// read; a row shorter than a vector is copied first.
template <typename A>
class Slots {
 public:
  explicit Slots(std::int64_t dim) : dim_(dim), count_((dim + lanes<A>() - 1) / lanes<A>()) {}

  std::int64_t count() const { return count_; }
  std::int64_t padded() const { return count_ * lanes<A>(); }
  std::int64_t whole() const { return dim_ / lanes<A>(); }
  bool tail() const { return dim_ % lanes<A>() != 0; }
  bool shorter_than_a_vector() const { return dim_ < lanes<A>(); }

  // Where slot x begins in the row.
  HWY_INLINE std::int64_t begin(std::int64_t x) const {
    return shorter_than_a_vector() ? 0 : std::min(x * lanes<A>(), dim_ - lanes<A>());
  }

  // The row of a matrix whose slots are in `to`: scaled, and 0 in the lanes that another slot has.
  template <typename T>
  void load(const T* from, A scale, A* to) const {
    std::memset(to, 0, static_cast<std::size_t>(padded()) * sizeof(A));
    const std::int64_t last = whole() * lanes<A>();
    for (std::int64_t c = 0; c < last; ++c) to[c] = core::Element<T>::load(from[c]) * scale;
    const std::int64_t shift = tail() ? last - begin(whole()) : 0;
    for (std::int64_t c = last; c < dim_; ++c) to[c + shift] = core::Element<T>::load(from[c]) * scale;
  }

  // The last slot of a row with a tail, 0 in the lanes that another slot has.
  template <typename T>
  HWY_INLINE Vector<A> load_tail(const T* row) const {
    if (shorter_than_a_vector()) return load_short(row);
    const auto seen = hn::FirstN(Tag<A>(), static_cast<std::size_t>(padded() - dim_));
    return hn::IfThenZeroElse(seen, load_elements(row + dim_ - lanes<A>()));
  }

  // A row shorter than a vector, followed by zeros.
  template <typename T>
  HWY_INLINE Vector<A> load_short(const T* row) const {
    T copy[hn::MaxLanes(Tag<A>())] = {};
    std::memcpy(copy, row, static_cast<std::size_t>(dim_) * sizeof(T));
    return load_elements(copy);
  }

  // Slots, overlapping ones computed alike, become a row without gaps, in place.
  void compact(A* slots) const {
    if (!tail() || shorter_than_a_vector()) return;
    std::memmove(slots + begin(whole()), slots + whole() * lanes<A>(),
                 static_cast<std::size_t>(lanes<A>()) * sizeof(A));
  }

 private:
  std::int64_t dim_;
  std::int64_t count_;
};

// Fetches `Lines` lines to the second-level cache. Fetching to the first one is much slower: there
// a line waits in one of few miss buffers. `Passing` lines are the first to leave the caches again
// (Reading, cpu/machine/reading.h).
template <int Lines, bool Passing>
HWY_INLINE void fetch_lines(const char* address) {
#pragma GCC unroll 16
  for (int i = 0; i < Lines; ++i) __builtin_prefetch(address + i * 64, 0, Passing ? 0 : 2);
}

// The lines of rows that are needed soon, fetched a few at a time in the order of their addresses.
class Prefetch {
 public:
  Prefetch() = default;

  // `rows` rows of `dim` elements.
  template <typename T>
  Prefetch(const T* first, std::int64_t dim, std::int64_t stride, std::int64_t rows, bool passing)
      : at_(reinterpret_cast<const char*>(first)),
        row_lines_((dim * static_cast<std::int64_t>(sizeof(T)) + kLine - 1) / kLine),
        gap_(stride * static_cast<std::int64_t>(sizeof(T)) - row_lines_ * kLine),
        row_left_(row_lines_),
        rows_left_(rows),
        passing_(passing) {}

  // Fetches one line of every page of the rows: when their lines are needed, the translation is
  // known and no prefetch waits for it.
  HWY_INLINE void touch_pages() const {
    constexpr std::int64_t kPage = 4096;
    const std::int64_t stride = gap_ + row_lines_ * kLine;
    const std::int64_t rows_per_page = stride > 0 ? std::max<std::int64_t>(kPage / stride, 1) : 1;
    for (std::int64_t r = 0; r < rows_left_; r += rows_per_page) {
      for (std::int64_t at = 0; at < row_lines_ * kLine; at += kPage) fetch<1>(at_ + r * stride + at);
    }
  }

  // Fetches as many lines, or what is left of the row. In a loop call it on a local copy, which
  // lives in registers: through memory, counting takes longer than the products.
  template <int Lines>
  HWY_INLINE void lines() {
    if (rows_left_ == 0) return;
    if (HWY_LIKELY(row_left_ >= Lines)) {
      fetch<Lines>(at_);
      at_ += Lines * kLine;
      row_left_ -= Lines;
    } else {
      for (; row_left_ > 0; --row_left_, at_ += kLine) fetch<1>(at_);
    }
    if (row_left_ > 0) return;
    row_left_ = row_lines_;
    at_ += gap_;
    --rows_left_;
  }

 private:
  template <int Lines>
  HWY_INLINE void fetch(const char* address) const {
    if (passing_) fetch_lines<Lines, true>(address);
    else fetch_lines<Lines, false>(address);
  }

  static constexpr std::int64_t kLine = 64;
  const char* at_ = nullptr;
  std::int64_t row_lines_ = 1;
  std::int64_t gap_ = 0;
  std::int64_t row_left_ = 1;
  std::int64_t rows_left_ = 0;
  bool passing_ = false;
};

// Makes the compiler read again what lies behind the pointer. Products then take one operand from
// the first-level cache each time, although a register would hold it. With busy load pipes fp32
// reads memory faster in (batch, sequence, heads, head_dim), by a third on Zen 4 and a sixth on
// Zen 5, probably because prefetches do not come in bursts (docs/notebook/cpu.md). Where K and V
// lie in the caches it costs up to a fifth: DecodePlan::reread.
template <typename T>
HWY_INLINE void read_again([[maybe_unused]] const T*& from) {
#if HWY_TARGET == HWY_AVX3 && (HWY_COMPILER_GCC || HWY_COMPILER_CLANG)
  asm volatile("" : "+r"(from));
#endif
}

// Whether there is code that reads operands again: only where they need no conversion.
template <typename T>
inline constexpr bool kCanReread = (HWY_TARGET == HWY_AVX3) && std::is_same_v<T, core::Accumulator<T>>;

// Cache lines of `count` elements: as many are fetched for the next step where as many are used.
template <typename T>
constexpr int lines_of(std::int64_t count) {
  return std::max(1, static_cast<int>(count * static_cast<std::int64_t>(sizeof(T)) / 64));
}

// Lanes of a vector, to count lines with. SVE's are taken for 256 bits: longer ones then fetch less
// ahead.
template <typename A>
inline constexpr int kFetchLanes =
    HWY_HAVE_SCALABLE ? 32 / static_cast<int>(sizeof(A)) : static_cast<int>(hn::MaxLanes(Tag<A>()));

// ---- blocks of rows -----------------------------------------------------------------------------

// Sums of the register block of score_rows. Arm's vectors are short for their 32 registers;
// elsewhere one vector takes the sums.
template <typename A>
inline constexpr int kScores = HWY_ARCH_ARM ? 16 : static_cast<int>(hn::MaxLanes(Tag<A>()));

// body(integral_constant<int, R>, row) for blocks of at most 4 rows that cover [0, count).
template <typename A, typename Body>
HWY_INLINE void for_each_block_of_rows(std::int64_t count, const Body& body) {
  std::int64_t row = 0;
  if constexpr (kScores<A> >= 4) {
    for (; row + 4 <= count; row += 4) body(std::integral_constant<int, 4>(), row);
    if (count - row == 3) return body(std::integral_constant<int, 3>(), row);
  }
  for (; row + 2 <= count; row += 2) body(std::integral_constant<int, 2>(), row);
  if (row < count) body(std::integral_constant<int, 1>(), row);
}

#if HWY_ARCH_ARM
// to[i] = the sum of the lanes of x[i], of which `width` are left to be added: neighbours in every
// vector, then neighbours of what that gave, so that half as many vectors hold twice as many sums.
// Every sum is added up in the same order, whatever its place.
template <typename A, int Count>
HWY_INLINE void store_sums_of_lanes(const Line<A, Count>& x, A* HWY_RESTRICT to,
                                    std::int64_t width = lanes<A>()) {
  const Tag<A> d;
  if constexpr (Count == 1) {
    Vector<A> sum = x[0];
    for (; width > 1; width /= 2) sum = hn::Add(hn::ConcatEven(d, sum, sum), hn::ConcatOdd(d, sum, sum));
    hn::StoreU(sum, d, to);
  } else if (width == 1) {
#pragma GCC unroll 16
    for (int i = 0; i < Count; ++i) hn::StoreU(x[i], d, to + i * lanes<A>());
  } else {
    TESSERA_LINE(A, pair, Count / 2);
#pragma GCC unroll 8
    for (int i = 0; i < Count / 2; ++i) {
      const Vector<A> low = x[2 * i], high = x[2 * i + 1];
      pair[i] = hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low));
    }
    store_sums_of_lanes<A, Count / 2>(pair, to, width / 2);
  }
}
#else
// Lane i of the result is the sum of the lanes of x[i], for as many vectors as a vector has lanes.
// Every sum is added up in the same order, whatever its place.
template <typename A>
HWY_INLINE Vector<A> sums_of_lanes(const Vector<A> (&x)[hn::MaxLanes(Tag<A>())]) {
  const Tag<A> d;
  const hn::Repartition<double, Tag<A>> dd;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(Tag<A>())), kBlocks = kLanes * sizeof(A) / 16;
  Vector<A> pair[kLanes / 2];
#pragma GCC unroll 8
  for (int i = 0; i < kLanes / 2; ++i) {
    pair[i] = hn::Add(hn::InterleaveLower(d, x[2 * i], x[2 * i + 1]),
                      hn::InterleaveUpper(d, x[2 * i], x[2 * i + 1]));
  }
  Vector<A> block[kBlocks];  // each 128-bit block: partial sums of as many vectors as it has lanes
#pragma GCC unroll 4
  for (int i = 0; i < kBlocks; ++i) {
    if constexpr (sizeof(A) == 8) {
      block[i] = pair[i];
    } else {
      const auto first = hn::BitCast(dd, pair[2 * i]), second = hn::BitCast(dd, pair[2 * i + 1]);
      block[i] = hn::Add(hn::BitCast(d, hn::InterleaveLower(dd, first, second)),
                         hn::BitCast(d, hn::InterleaveUpper(dd, first, second)));
    }
  }
  if constexpr (kBlocks == 1) {
    return block[0];
  } else if constexpr (kBlocks == 2) {
    return hn::Add(hn::ConcatLowerLower(d, block[1], block[0]), hn::ConcatUpperUpper(d, block[1], block[0]));
  } else {
    const Vector<A> even =
        hn::Add(hn::ConcatLowerLower(d, block[2], block[0]), hn::ConcatUpperUpper(d, block[2], block[0]));
    const Vector<A> odd =
        hn::Add(hn::ConcatLowerLower(d, block[3], block[1]), hn::ConcatUpperUpper(d, block[3], block[1]));
    return hn::Add(hn::OddEvenBlocks(odd, even), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(even, odd)));
  }
}

template <typename A, int Count>
HWY_INLINE void store_sums_of_lanes(const Line<A, Count>& x, A* to) {
  hn::Store(sums_of_lanes<A>(x), Tag<A>(), to);
}
#endif

// s[r][j] = q[r] . k[j] for Rows rows of queries and all keys; s has room for whole vectors of
// keys.
template <int Rows, bool Reread, typename T, typename A>
HWY_NOINLINE void score_rows(const Keys<T>& k, const Slots<A>& slots, const A* HWY_RESTRICT q,
                             A* HWY_RESTRICT s, std::int64_t s_row, Prefetch& prefetch) {
  const Tag<A> d;
  Prefetch ahead = prefetch;
  constexpr int kPlaces = Rows == 3 ? 4 : Rows;  // of a row of the register block
  constexpr int kKeys = kScores<A> / kPlaces;
  const std::int64_t q_row = slots.padded();
  for (std::int64_t j = 0; j < k.count; j += kKeys) {
    const T* key[kKeys];
#pragma GCC unroll 16
    for (int x = 0; x < kKeys; ++x) key[x] = k.row(std::min(j + x, k.count - 1));
    TESSERA_LINE(A, sum, kScores<A>);
#pragma GCC unroll 16
    for (int x = 0; x < kScores<A>; ++x) sum[x] = hn::Zero(d);
    auto add = [&](std::int64_t slot, const auto& load) HWY_ATTR {
      const A* line = q + slot * lanes<A>();
#pragma GCC unroll 16
      for (int x = 0; x < kKeys; ++x) {
        const Vector<A> element = load(key[x]);
        if constexpr (Reread) read_again(line);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
          sum[r * kKeys + x] = hn::MulAdd(element, hn::Load(d, line + r * q_row), sum[r * kKeys + x]);
        }
      }
    };
    for (std::int64_t slot = 0; slot < slots.whole(); ++slot) {
      ahead.lines<lines_of<T>(kKeys * kFetchLanes<A>)>();
      add(slot, [slot](const T* row) HWY_ATTR { return load_elements(row + slot * lanes<A>()); });
    }
    if (slots.tail()) {
      ahead.lines<lines_of<T>(kKeys * kFetchLanes<A>)>();
      add(slots.whole(), [&slots](const T* row) HWY_ATTR { return slots.load_tail(row); });
    }
    alignas(64) A sums[HWY_MAX(static_cast<std::size_t>(kScores<A>), hn::MaxLanes(Tag<A>()))];
    store_sums_of_lanes<A, kScores<A>>(sum, sums);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) std::memcpy(s + r * s_row + j, sums + r * kKeys, kKeys * sizeof(A));
  }
  prefetch = ahead;
}

// ---- between the products -----------------------------------------------------------------------

// Scores outside [begin, end) become -inf, to the end of the last of the vectors that hold `count`
// scores.
template <typename A>
HWY_INLINE void hide_outside(A* s, std::int64_t count, std::int64_t begin, std::int64_t end) {
  const Tag<A> d;
  const Vector<A> first = hn::Set(d, static_cast<A>(begin)), last = hn::Set(d, static_cast<A>(end));
  const Vector<A> hidden = hn::Set(d, core::kMinusInfinity<A>);
  for (std::int64_t x = 0; x < count; x += lanes<A>()) {
    const Vector<A> index = hn::Iota(d, static_cast<A>(x));
    const auto seen = hn::And(hn::Ge(index, first), hn::Lt(index, last));
    hn::StoreU(hn::IfThenElse(seen, hn::LoadU(d, s + x), hidden), d, s + x);
  }
}

// Scores become exp(score - maximum), with the maximum raised to the largest of them; the sum
// grows. Returns the factor for what was accumulated before. Lanes past `count` must be -inf.
template <typename A>
HWY_INLINE A online_softmax(A* s, std::int64_t count, A& maximum, A& sum) {
  const Tag<A> d;
  Vector<A> largest = hn::Set(d, maximum);
  for (std::int64_t x = 0; x < count; x += lanes<A>()) largest = hn::Max(hn::LoadU(d, s + x), largest);
  largest = hn::MaxOfLanes(d, largest);
  const A now = hn::GetLane(largest);
  A alpha = 1;
  if (now > maximum) {  // exp(lowest() - now) is 0, but takes long to say so
    alpha = maximum == std::numeric_limits<A>::lowest() ? A{0} : std::exp(maximum - now);
  }
  maximum = now;
  Vector<A> total = hn::Zero(d);  // of this step, added to the whole afterwards: long rows keep short sums
  for (std::int64_t x = 0; x < count; x += lanes<A>()) {
    const Vector<A> p = exp_difference<A>(hn::LoadU(d, s + x), largest);
    total = hn::Add(total, p);
    hn::StoreU(p, d, s + x);
  }
  sum = sum * alpha + hn::GetLane(hn::SumOfLanes(d, total));
  return alpha;
}

// ---- P V ----------------------------------------------------------------------------------------

// Probabilities and outputs of a block of rows.
template <typename A>
struct ValueBlock {
  const A* p;  // a row of probabilities per row
  std::int64_t p_row;
  const A* alpha;  // per row
  A* out;          // a row of slots per row
  std::int64_t out_row;
};

// Accumulators of the register block: half of the registers.
#if HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM
inline constexpr int kAccumulators = 16;
#else
inline constexpr int kAccumulators = 8;
#endif

// out = alpha out + p v for the slots [x, x + Vectors) of Rows rows.
template <int Rows, int Vectors, bool Short, bool Reread, typename T, typename A>
HWY_NOINLINE void add_columns(const Keys<T>& v, const Slots<A>& slots, std::int64_t x,
                              const ValueBlock<A>& block, Prefetch& prefetch) {
  const Tag<A> d;
  Prefetch ahead = prefetch;
  std::int64_t begin[Vectors];
#pragma GCC unroll 8
  for (int c = 0; c < Vectors; ++c) begin[c] = slots.begin(x + c);
  TESSERA_BLOCK(A, sum, Rows, Vectors);
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < Vectors; ++c) sum[r][c] = hn::Zero(d);
  }
  for (std::int64_t j = 0; j < v.count; ++j) {
    const T* row = v.row(j);
    ahead.lines<lines_of<T>(Vectors * kFetchLanes<A>)>();
    TESSERA_LINE(A, value, Vectors);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      if (r == 0 || Reread) {
        if constexpr (Reread) read_again(row);
#pragma GCC unroll 8
        for (int c = 0; c < Vectors; ++c) {
          if constexpr (Short) value[c] = slots.load_short(row);
          else value[c] = load_elements(row + begin[c]);
        }
      }
      const Vector<A> p = hn::Set(d, block.p[r * block.p_row + j]);
#pragma GCC unroll 8
      for (int c = 0; c < Vectors; ++c) sum[r][c] = hn::MulAdd(p, value[c], sum[r][c]);
    }
  }
  prefetch = ahead;
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    const Vector<A> alpha = hn::Set(d, block.alpha[r]);
#pragma GCC unroll 8
    for (int c = 0; c < Vectors; ++c) {
      A* to = block.out + r * block.out_row + (x + c) * lanes<A>();
      hn::StoreU(hn::MulAdd(hn::LoadU(d, to), alpha, sum[r][c]), d, to);
    }
  }
}

// out = alpha out + p v for Rows rows.
template <int Rows, bool Reread, typename T, typename A>
HWY_INLINE void add_values(const Keys<T>& v, const Slots<A>& slots, const ValueBlock<A>& block,
                           Prefetch& ahead) {
  constexpr int kVectors = std::min(8, kAccumulators / (Rows == 3 ? 4 : Rows));
  if (slots.shorter_than_a_vector()) return add_columns<Rows, 1, true, false>(v, slots, 0, block, ahead);
  std::int64_t x = 0;
  for (; x + kVectors <= slots.count(); x += kVectors) {
    add_columns<Rows, kVectors, false, Reread>(v, slots, x, block, ahead);
  }
  if constexpr (kVectors > 4) {
    for (; x + 4 <= slots.count(); x += 4) add_columns<Rows, 4, false, Reread>(v, slots, x, block, ahead);
  }
  if constexpr (kVectors > 2) {
    for (; x + 2 <= slots.count(); x += 2) add_columns<Rows, 2, false, Reread>(v, slots, x, block, ahead);
  }
  for (; x < slots.count(); ++x) add_columns<Rows, 1, false, Reread>(v, slots, x, block, ahead);
}

// As add_values without the terms in which p is 0, where the value may be NaN or infinite.
template <int Rows, typename T, typename A>
HWY_NOINLINE void add_values_skipping_zeros(const Keys<T>& v, const Slots<A>& slots,
                                            const ValueBlock<A>& block) {
  const Tag<A> d;
  for (int r = 0; r < Rows; ++r) {
    for (std::int64_t x = 0; x < slots.count(); ++x) {
      Vector<A> sum = hn::Zero(d);
      for (std::int64_t j = 0; j < v.count; ++j) {
        const A p = block.p[r * block.p_row + j];
        if (p == 0) continue;
        const Vector<A> value = slots.shorter_than_a_vector() ? slots.load_short(v.row(j))
                                                              : load_elements(v.row(j) + slots.begin(x));
        sum = hn::MulAdd(hn::Set(d, p), value, sum);
      }
      A* to = block.out + r * block.out_row + x * lanes<A>();
      hn::StoreU(hn::MulAdd(hn::LoadU(d, to), hn::Set(d, block.alpha[r]), sum), d, to);
    }
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
