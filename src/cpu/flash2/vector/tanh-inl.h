// tanh on vectors of accumulators. Included once per target.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <type_traits>

#include "cpu/flash2/vector/vector-inl.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_TANH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_TANH_INL_H
#undef TESSERA_CPU_SIMD_TANH_INL_H
#else
#define TESSERA_CPU_SIMD_TANH_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// tanh(x). In fp32 tanh|x| = m / (2 - m) with m = 1 - 2^z and z = -2 log2(e) |x| = n + f,
// |f| <= 1/2: m = (1 - 2^n) - 2^n (2^f - 1) has no cancellation, so small results are as exact as
// large ones. At most 3.3 ULP, 3.4 without FMA (exp2_test.cpp), never above 1, and odd to the last
// bit. NaN stays NaN.
template <typename A>
HWY_INLINE Vector<A> tanh_of(Vector<A> x) {
  const Tag<A> d;
  if constexpr (std::is_same_v<A, float>) {
    const hn::RebindToSigned<Tag<A>> di;
    // 2^-30 does not change a 1 any more. Not Max, which loses a NaN on Arm.
    const Vector<A> least = hn::Set(d, -30.0F), all = hn::Mul(hn::Abs(x), hn::Set(d, -2 * kLog2E));
    const Vector<A> z = hn::IfThenElse(hn::Lt(all, least), least, all);
    const Vector<A> magic = hn::Set(d, 12582912.0F + 127.0F);
    const Vector<A> shifted = hn::Add(z, magic);
    const Vector<A> f = hn::Sub(z, hn::Sub(shifted, magic));
    Vector<A> y = hn::Set(d, kExp2MinusOnePolynomial[5]);
    y = hn::MulAdd(y, f, hn::Set(d, kExp2MinusOnePolynomial[4]));
    y = hn::MulAdd(y, f, hn::Set(d, kExp2MinusOnePolynomial[3]));
    y = hn::MulAdd(y, f, hn::Set(d, kExp2MinusOnePolynomial[2]));
    y = hn::MulAdd(y, f, hn::Set(d, kExp2MinusOnePolynomial[1]));
    y = hn::MulAdd(y, f, hn::Set(d, kExp2MinusOnePolynomial[0]));
    const Vector<A> power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
    const Vector<A> m = hn::NegMulAdd(power, hn::Mul(y, f), hn::Sub(hn::Set(d, 1.0F), power));
    return hn::CopySignToAbs(hn::Div(m, hn::Sub(hn::Set(d, 2.0F), m)), x);
  } else {
    return hn::Tanh(d, x);
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
