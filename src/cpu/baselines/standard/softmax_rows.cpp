// The passes of cpu.standard over the rows of its matrices (softmax_rows.h), for every vector
// instruction set: keys in the lanes, since a row is contiguous in memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/baselines/standard/softmax_rows.cpp"  // NOLINT(build/include)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "cpu/baselines/standard/softmax_rows.h"
#include "cpu/flash2/vector/row_scores-inl.h"
#include "cpu/head_view.h"

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

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

// A score of -inf gives 0, also where the LSE is NaN. A P of 0 gives a dS of 0, whatever dP and
// delta are.
template <typename A>
void differentiate_row(A* score, A* grad, std::int64_t count, A lse, A delta) {
  const Tag<A> d;
  const Vector<A> reference = hn::Set(d, lse), shift = hn::Set(d, delta);
  const Vector<A> minus_infinity = hn::Set(d, core::kMinusInfinity<A>);
  for_each_vector<A>(count, [&](std::int64_t x, std::int64_t some) HWY_ATTR {
    const Vector<A> s = load_some(score + x, some, A{0});
    const Vector<A> p = hn::IfThenZeroElse(hn::Eq(s, minus_infinity), exp_difference<A>(s, reference));
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

template <typename A>
bool finite_row(const A* values, std::int64_t count) {
  return all_finite(values, count);
}

template <typename A>
inline constexpr SoftmaxRows<A> kSoftmaxRows{score_row<A>, exponentiate_row<A>, differentiate_row<A>,
                                             scale_row<A>, multiply_rows<A>,    dropout_row<A>,
                                             finite_row<A>};

extern const SoftmaxRowsOps kSoftmaxRowsOps;
constinit const SoftmaxRowsOps kSoftmaxRowsOps{kSoftmaxRows<float>, kSoftmaxRows<double>};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
