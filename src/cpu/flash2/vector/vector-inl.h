// Vectors of accumulators for one Highway target: exp2, conversions from and to the element types,
// and transposes between rows in memory and rows in lanes. Included once per target.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/base/float16.h"
#include "cpu/flash2/vector/exp2_constants.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_VECTOR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_VECTOR_INL_H
#undef TESSERA_CPU_SIMD_VECTOR_INL_H
#else
#define TESSERA_CPU_SIMD_VECTOR_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename A>
using Tag = hn::ScalableTag<A>;
template <typename A>
using Vector = hn::Vec<Tag<A>>;

// The lanes of one vector. With SVE only the running CPU knows how many. (svcntw() would save six
// of 70 instructions of a loop, but GCC 12 crashes on comparisons with it.)
#if HWY_HAVE_SCALABLE
template <typename A>
HWY_INLINE std::int64_t lanes() {
  return static_cast<std::int64_t>(hn::Lanes(Tag<A>()));
}
#else
template <typename A>
HWY_INLINE constexpr std::int64_t lanes() {
  return static_cast<std::int64_t>(hn::MaxLanes(Tag<A>()));
}
#endif

// ---- arrays of vectors --------------------------------------------------------------------------

// TESSERA_BLOCK(A, sum, Rows, Vectors) declares an array sum[Rows][Vectors] of Vector<A>, of type
// Block<A, Rows, Vectors>; TESSERA_LINE(A, line, Vectors) declares line[Vectors], of type Line<A,
// Vectors>. Every index must be a constant once loops are unrolled, for the vectors to stay in
// registers.
#undef TESSERA_BLOCK
#undef TESSERA_LINE
#if HWY_HAVE_SCALABLE
// SVE's vectors have no size and cannot be elements of an array. Here the elements are variables of
// the function, and the block holds their addresses. The machine code contains none of it (GCC 12).
template <typename A, int Vectors>
struct Line {
  HWY_INLINE Vector<A>& operator[](int v) const { return *at[v]; }
  Vector<A>* const* at;
};
template <typename A, int Rows, int Vectors>
struct Block {
  static_assert(Rows * Vectors <= 24, "more than TESSERA_BLOCK declares");
  HWY_INLINE Line<A, Vectors> operator[](int r) const { return {at + r * Vectors}; }
  Vector<A>* at[24];
};
// clang-format off
#define TESSERA_EIGHT_VECTORS(A, x)                                                                          \
  Vector<A> x##0 = hn::Zero(Tag<A>()), x##1 = x##0, x##2 = x##0, x##3 = x##0, x##4 = x##0, x##5 = x##0,      \
            x##6 = x##0, x##7 = x##0
#define TESSERA_EIGHT_ADDRESSES(x) &x##0, &x##1, &x##2, &x##3, &x##4, &x##5, &x##6, &x##7
#define TESSERA_BLOCK(A, name, Rows, Vectors)                                                                \
  TESSERA_EIGHT_VECTORS(A, name##_a);                                                                        \
  TESSERA_EIGHT_VECTORS(A, name##_b);                                                                        \
  TESSERA_EIGHT_VECTORS(A, name##_c);                                                                        \
  Block<A, Rows, Vectors> name {{TESSERA_EIGHT_ADDRESSES(name##_a), TESSERA_EIGHT_ADDRESSES(name##_b),       \
                                 TESSERA_EIGHT_ADDRESSES(name##_c)}}
#define TESSERA_LINE(A, name, Vectors)                                                                       \
  static_assert((Vectors) <= 16, "more than TESSERA_LINE declares");                                         \
  TESSERA_EIGHT_VECTORS(A, name##_a);                                                                        \
  TESSERA_EIGHT_VECTORS(A, name##_b);                                                                        \
  Vector<A>* const name##_at[] = {TESSERA_EIGHT_ADDRESSES(name##_a), TESSERA_EIGHT_ADDRESSES(name##_b)};     \
  const Line<A, Vectors> name {name##_at}
// clang-format on
#else
template <typename A, int Vectors>
using Line = Vector<A>[Vectors];
template <typename A, int Rows, int Vectors>
using Block = Vector<A>[Rows][Vectors];
#define TESSERA_BLOCK(A, name, Rows, Vectors) Vector<A> name[Rows][Vectors]
#define TESSERA_LINE(A, name, Vectors) Vector<A> name[Vectors]
#endif

// 2^x for x <= 0: x = n + f with |f| <= 1/2, a polynomial for 2^f, and 2^n built from the bits of a
// sum whose last place is 1. The degree is 5 in fp32 (2.04 ULP with FMA, 2.3 without) and 13 in
// fp64 (0.8 and 1.1); see exp2_test.cpp. The result is exactly 1 at 0 and never above, and exactly
// 0 from the smallest normal power down. NaN stays NaN, whatever its payload, because the product
// with 2^n keeps it.
template <typename A>
HWY_INLINE Vector<A> exp2_nonpositive(Vector<A> x) {
  const Tag<A> d;
  const hn::RebindToSigned<Tag<A>> di;
  if constexpr (std::is_same_v<A, float>) {
    const Vector<A> magic = hn::Set(d, 12582912.0F + 127.0F);
    const Vector<A> shifted = hn::Add(x, magic);
    const Vector<A> f = hn::Sub(x, hn::Sub(shifted, magic));
    Vector<A> y = hn::Set(d, kExp2Polynomial[5]);
    y = hn::MulAdd(y, f, hn::Set(d, kExp2Polynomial[4]));
    y = hn::MulAdd(y, f, hn::Set(d, kExp2Polynomial[3]));
    y = hn::MulAdd(y, f, hn::Set(d, kExp2Polynomial[2]));
    y = hn::MulAdd(y, f, hn::Set(d, kExp2Polynomial[1]));
    y = hn::MulAdd(y, f, hn::Set(d, kExp2Polynomial[0]));
    const Vector<A> power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
    return hn::IfThenZeroElse(hn::Le(x, hn::Set(d, -126.0F)), hn::Mul(y, power));
  } else {
    const Vector<A> magic = hn::Set(d, 6755399441055744.0 + 1023.0);
    const Vector<A> shifted = hn::Add(x, magic);
    const Vector<A> f = hn::Sub(x, hn::Sub(shifted, magic));
    constexpr double kLn2 = 0.693147180559945309417;
    constexpr int kDegree = 13;
    double coefficient[kDegree + 1] = {1};
    for (int i = 1; i <= kDegree; ++i) coefficient[i] = coefficient[i - 1] * kLn2 / i;
    Vector<A> y = hn::Set(d, coefficient[kDegree]);
    for (int i = kDegree - 1; i >= 0; --i) y = hn::MulAdd(y, f, hn::Set(d, coefficient[i]));
    const Vector<A> power = hn::BitCast(d, hn::ShiftLeft<52>(hn::BitCast(di, shifted)));
    return hn::IfThenZeroElse(hn::Le(x, hn::Set(d, -1022.0)), hn::Mul(y, power));
  }
}

// exp(x - reference) for x <= reference. Exactly 1 where they are equal.
template <typename A>
HWY_INLINE Vector<A> exp_difference(Vector<A> x, Vector<A> reference) {
  const Vector<A> log2_e = hn::Set(Tag<A>(), static_cast<A>(1.44269504088896340736));
  return exp2_nonpositive<A>(hn::Mul(hn::Sub(x, reference), log2_e));
}

// ---- element types ------------------------------------------------------------------------------

// One vector of elements as accumulators.
HWY_INLINE Vector<double> load_elements(const double* from) { return hn::LoadU(Tag<double>(), from); }
HWY_INLINE Vector<float> load_elements(const float* from) { return hn::LoadU(Tag<float>(), from); }
HWY_INLINE Vector<float> load_elements(const core::BFloat16* from) {
  const Tag<float> d;
  const hn::RebindToUnsigned<Tag<float>> du;
  const hn::Rebind<std::uint16_t, Tag<float>> d16;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}
#if HWY_TARGET == HWY_SSE4
// There is no instruction for it, and Highway 1.0 would make infinities and NaN finite.
HWY_INLINE Vector<float> load_elements(const core::Half* from) {
  const Tag<float> d;
  const hn::RebindToUnsigned<Tag<float>> du;
  const hn::RebindToSigned<Tag<float>> di;
  const hn::Rebind<std::uint16_t, Tag<float>> d16;
  const auto bits = hn::PromoteTo(du, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFU));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const Vector<float> tiny = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)), hn::Set(d, 0x1p-24F));
  auto value = hn::Add(shifted, hn::Set(du, 0x38000000U));
  value = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7BFFU)), hn::Add(shifted, hn::Set(du, 0x70000000U)),
                         value);
  value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x0400U)), hn::BitCast(du, tiny), value);
  return hn::BitCast(d, hn::Or(value, hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000U)))));
}
#else
HWY_INLINE Vector<float> load_elements(const core::Half* from) {
  const Tag<float> d;
  const hn::Rebind<hwy::float16_t, Tag<float>> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
}
#endif

// One vector of accumulators as elements, rounded to nearest even: the same arithmetic as
// core/base/float16.h.
HWY_INLINE void store_elements(Vector<double> x, double* to) { hn::StoreU(x, Tag<double>(), to); }
HWY_INLINE void store_elements(Vector<float> x, float* to) { hn::StoreU(x, Tag<float>(), to); }
HWY_INLINE void store_elements(Vector<float> x, core::BFloat16* to) {
  const hn::RebindToUnsigned<Tag<float>> du;
  const hn::Rebind<std::uint16_t, Tag<float>> d16;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFU))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40U));
  const auto nan = hn::Gt(hn::And(bits, hn::Set(du, 0x7FFFFFFFU)), hn::Set(du, 0x7F800000U));
  hn::StoreU(hn::TruncateTo(d16, hn::IfThenElse(nan, quiet, rounded)), d16,
             reinterpret_cast<std::uint16_t*>(to));
}
HWY_INLINE void store_elements(Vector<float> x, core::Half* to) {
  const Tag<float> d;
  const hn::RebindToUnsigned<Tag<float>> du;
  const hn::Rebind<std::uint16_t, Tag<float>> d16;
  const auto bits = hn::BitCast(du, x);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFU));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1U));
  const auto normal = hn::ShiftRight<13>(
      hn::Sub(hn::Add(magnitude, hn::Add(odd, hn::Set(du, 0xFFFU))), hn::Set(du, 0x38000000U)));
  const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F));
  const auto subnormal = hn::Sub(hn::BitCast(du, shifted), hn::Set(du, 0x3F000000U));
  auto half = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x38800000U)), subnormal, normal);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x477FEFFFU)), hn::Set(du, 0x7C00U), half);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7F800000U)), hn::Set(du, 0x7E00U), half);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000U));
  hn::StoreU(hn::TruncateTo(d16, hn::Or(half, sign)), d16, reinterpret_cast<std::uint16_t*>(to));
}

template <typename T>
HWY_INLINE void prefetch_row(const T* row, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t c = 0; c < count; c += kLine) hwy::Prefetch(row + c);
}

// Prefetches rows that will be needed later, one at a time while something else is computed: many
// at once would stall what comes next.
class RowPrefetcher {
 public:
  RowPrefetcher() = default;
  template <typename T>
  RowPrefetcher(const T* first, std::int64_t stride, std::int64_t count, std::int64_t dim)
      : row_(reinterpret_cast<const char*>(first)),
        stride_(stride * static_cast<std::int64_t>(sizeof(T))),
        count_(count),
        bytes_(dim * static_cast<std::int64_t>(sizeof(T))) {}

  HWY_INLINE void next() {
    if (count_ <= 0) return;
    prefetch_row(row_, bytes_);
    row_ += stride_;
    --count_;
  }

 private:
  const char* row_ = nullptr;
  std::int64_t stride_ = 0;
  std::int64_t count_ = 0;
  std::int64_t bytes_ = 0;
};

// Calls body(r) for r in [0, count), and prefetch(r), which prefetches what row r needs, some rows
// earlier: the hardware does not foresee rows that lie far apart.
template <typename PrefetchRow, typename Body>
HWY_INLINE void for_each_row(std::int64_t count, const PrefetchRow& prefetch, const Body& body) {
  constexpr std::int64_t kAhead = 12;
  for (std::int64_t r = 0; r < std::min(kAhead, count); ++r) prefetch(r);
  for (std::int64_t r = 0; r < count; ++r) {
    if (r + kAhead < count) prefetch(r + kAhead);
    body(r);
  }
}

// A sum of x * 0, which is 0 for finite x and else NaN: check_finite adds the values of a vector,
// is_finite asks whether all were finite.
template <typename A>
HWY_INLINE Vector<A> check_finite(Vector<A> check, Vector<A> x) {
  return hn::MulAdd(x, hn::Zero(Tag<A>()), check);
}
template <typename A>
HWY_INLINE bool is_finite(Vector<A> check) {
  const Tag<A> d;
  return hn::AllTrue(d, hn::Eq(check, hn::Zero(d)));
}

// to[0 .. count) = scale * from[0 .. count), as accumulators.
template <typename T, typename A = core::Accumulator<T>>
HWY_INLINE void load_row(const T* HWY_RESTRICT from, std::int64_t count, A scale, A* HWY_RESTRICT to) {
  const Tag<A> d;
  const Vector<A> factor = hn::Set(d, scale);
  std::int64_t c = 0;
  for (; c + lanes<A>() <= count; c += lanes<A>()) {
    hn::StoreU(hn::Mul(load_elements(from + c), factor), d, to + c);
  }
  for (; c < count; ++c) to[c] = core::Element<T>::load(from[c]) * scale;
}

// to[0 .. count) = scale * from[0 .. count), as elements. Returns whether all values are finite.
template <typename T, typename A = core::Accumulator<T>>
HWY_INLINE bool store_row(const A* HWY_RESTRICT from, std::int64_t count, A scale, T* HWY_RESTRICT to) {
  const Tag<A> d;
  const Vector<A> factor = hn::Set(d, scale);
  Vector<A> check = hn::Zero(d);
  A scalar_check = 0;
  std::int64_t c = 0;
  for (; c + lanes<A>() <= count; c += lanes<A>()) {
    const Vector<A> x = hn::Mul(hn::LoadU(d, from + c), factor);
    check = check_finite<A>(check, x);
    store_elements(x, to + c);
  }
  for (; c < count; ++c) {
    const A x = from[c] * scale;
    scalar_check += x * 0;
    to[c] = core::Element<T>::store(x);
  }
  return is_finite<A>(check) && scalar_check == 0;
}

// The sum of a[c] * b[c] over [0, count).
template <typename T, typename A = core::Accumulator<T>>
HWY_INLINE A dot(const T* HWY_RESTRICT a, const A* HWY_RESTRICT b, std::int64_t count) {
  const Tag<A> d;
  Vector<A> sum = hn::Zero(d);
  std::int64_t c = 0;
  for (; c + lanes<A>() <= count; c += lanes<A>()) {
    sum = hn::MulAdd(load_elements(a + c), hn::LoadU(d, b + c), sum);
  }
  A rest = 0;
  for (; c < count; ++c) rest += core::Element<T>::load(a[c]) * b[c];
  return hn::GetLane(hn::SumOfLanes(d, sum)) + rest;
}

// Whether all of x[0 .. count) are finite.
template <typename A>
HWY_INLINE bool all_finite(const A* x, std::int64_t count) {
  const Tag<A> d;
  Vector<A> check = hn::Zero(d);
  A rest = 0;
  std::int64_t c = 0;
  for (; c + lanes<A>() <= count; c += lanes<A>()) check = check_finite<A>(check, hn::LoadU(d, x + c));
  for (; c < count; ++c) rest += x[c] * 0;
  return rest == 0 && is_finite<A>(check);
}

// ---- transposes ---------------------------------------------------------------------------------

// The distance of two lines of `count` elements, in elements: a cache line more where they would
// lie a multiple of 512 bytes apart. A column of such lines falls into few sets of the first-level
// cache, which cannot hold it.
template <typename A>
constexpr std::int64_t line_stride(std::int64_t count) {
  constexpr std::int64_t kSize = sizeof(A);
  return count * kSize % 512 == 0 ? count + 64 / kSize : count;
}

// A square of 128-bit vectors: kSquare x kSquare elements.
template <typename A>
inline constexpr std::int64_t kSquare = 16 / sizeof(A);

template <typename A>
HWY_INLINE void transpose_square(const A* HWY_RESTRICT from, std::int64_t from_row, A* HWY_RESTRICT to,
                                 std::int64_t to_row) {
  if constexpr (std::is_same_v<A, float>) {
    const hn::FixedTag<float, 4> d;
    const hn::FixedTag<double, 2> dd;
    const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + from_row);
    const auto r2 = hn::LoadU(d, from + 2 * from_row), r3 = hn::LoadU(d, from + 3 * from_row);
    const auto low01 = hn::BitCast(dd, hn::InterleaveLower(d, r0, r1));
    const auto low23 = hn::BitCast(dd, hn::InterleaveLower(d, r2, r3));
    const auto high01 = hn::BitCast(dd, hn::InterleaveUpper(d, r0, r1));
    const auto high23 = hn::BitCast(dd, hn::InterleaveUpper(d, r2, r3));
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, low01, low23)), d, to);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, low01, low23)), d, to + to_row);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, high01, high23)), d, to + 2 * to_row);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, high01, high23)), d, to + 3 * to_row);
  } else {
    const hn::FixedTag<double, 2> d;
    const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + from_row);
    hn::StoreU(hn::InterleaveLower(d, r0, r1), d, to);
    hn::StoreU(hn::InterleaveUpper(d, r0, r1), d, to + to_row);
  }
}

#if HWY_TARGET == HWY_AVX3
// The same for 16 x 16, with a third of the instructions: Highway has no shuffle of 128-bit blocks
// of two vectors.
HWY_INLINE void transpose_square_16(const float* HWY_RESTRICT from, std::int64_t from_row,
                                    float* HWY_RESTRICT to, std::int64_t to_row) {
  __m512 a[16], b[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) a[r] = _mm512_loadu_ps(from + r * from_row);
#pragma GCC unroll 8
  for (int r = 0; r < 16; r += 2) {
    b[r] = _mm512_unpacklo_ps(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_ps(a[r], a[r + 1]);
  }
  auto pairs = [](__m512 x, __m512 y, auto unpack)
                   HWY_ATTR { return _mm512_castpd_ps(unpack(_mm512_castps_pd(x), _mm512_castps_pd(y))); };
  auto low = [](__m512d x, __m512d y) HWY_ATTR { return _mm512_unpacklo_pd(x, y); };
  auto high = [](__m512d x, __m512d y) HWY_ATTR { return _mm512_unpackhi_pd(x, y); };
#pragma GCC unroll 4
  for (int r = 0; r < 16; r += 4) {  // then a[r + c]: columns c, c + 4, c + 8, c + 12 of rows r to r + 3
    a[r] = pairs(b[r], b[r + 2], low);
    a[r + 1] = pairs(b[r], b[r + 2], high);
    a[r + 2] = pairs(b[r + 1], b[r + 3], low);
    a[r + 3] = pairs(b[r + 1], b[r + 3], high);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512 even_low = _mm512_shuffle_f32x4(a[c], a[c + 4], 0x88);  // columns c, c + 8 of rows 0 to 7
    const __m512 odd_low = _mm512_shuffle_f32x4(a[c], a[c + 4], 0xDD);
    const __m512 even_high = _mm512_shuffle_f32x4(a[c + 8], a[c + 12], 0x88);  // of rows 8 to 15
    const __m512 odd_high = _mm512_shuffle_f32x4(a[c + 8], a[c + 12], 0xDD);
    _mm512_storeu_ps(to + c * to_row, _mm512_shuffle_f32x4(even_low, even_high, 0x88));
    _mm512_storeu_ps(to + (c + 4) * to_row, _mm512_shuffle_f32x4(odd_low, odd_high, 0x88));
    _mm512_storeu_ps(to + (c + 8) * to_row, _mm512_shuffle_f32x4(even_low, even_high, 0xDD));
    _mm512_storeu_ps(to + (c + 12) * to_row, _mm512_shuffle_f32x4(odd_low, odd_high, 0xDD));
  }
}
#endif

// The side of the squares that `transpose` is fastest with.
template <typename A>
inline constexpr std::int64_t kTransposeSide =
    HWY_TARGET == HWY_AVX3 && std::is_same_v<A, float> ? 16 : kSquare<A>;

// to[c][r] = from[r][c] for `rows` x `columns` in squares of `Side`. Returns how many rows and
// columns the squares cover.
template <std::int64_t Side, typename A, typename Square>
HWY_INLINE std::pair<std::int64_t, std::int64_t> transpose_squares(const A* HWY_RESTRICT from,
                                                                   std::int64_t from_row, std::int64_t rows,
                                                                   std::int64_t columns, A* HWY_RESTRICT to,
                                                                   std::int64_t to_row,
                                                                   const Square& square) {
  const std::int64_t full_rows = rows / Side * Side, full_columns = columns / Side * Side;
  // The shorter side inside: its lines stay in the cache until they are full.
  const bool wide = full_columns > full_rows;
  for (std::int64_t x = 0; x < std::max(full_rows, full_columns); x += Side) {
    for (std::int64_t y = 0; y < std::min(full_rows, full_columns); y += Side) {
      const std::int64_t r = wide ? y : x, c = wide ? x : y;
      square(from + r * from_row + c, from_row, to + c * to_row + r, to_row);
    }
  }
  return {full_rows, full_columns};
}

// to[c][r] = from[r][c] for `rows` x `columns`; elements beside the squares go one by one.
template <typename A>
HWY_INLINE void transpose(const A* HWY_RESTRICT from, std::int64_t from_row, std::int64_t rows,
                          std::int64_t columns, A* HWY_RESTRICT to, std::int64_t to_row) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<A, float>) {
    if (rows % 16 == 0 && columns % 16 == 0) {
      transpose_squares<16>(from, from_row, rows, columns, to, to_row, transpose_square_16);
      return;
    }
  }
#endif
  const auto [full_rows, full_columns] =
      transpose_squares<kSquare<A>>(from, from_row, rows, columns, to, to_row, transpose_square<A>);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = r < full_rows ? full_columns : 0; c < columns; ++c) {
      to[c * to_row + r] = from[r * from_row + c];
    }
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
