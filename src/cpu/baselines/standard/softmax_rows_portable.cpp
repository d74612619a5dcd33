// The passes of cpu.standard over rows (softmax_rows.h) in plain C++, for CPUs without vectors that
// we use.
#include <algorithm>
#include <cmath>

#include "cpu/baselines/standard/softmax_rows.h"
#include "cpu/flash2/portable/scores.h"

namespace tessera::cpu::portable {
namespace {

template <typename A>
A finish(const HeadView& head, std::int64_t i, const core::Interval& keys, A* score, A* derivative,
         A maximum) {
  apply_score_features(head, i, keys, score, derivative);
  for (std::int64_t x = 0; x < keys.length(); ++x) maximum = score[x] <= maximum ? maximum : score[x];
  return maximum;
}

template <typename A>
A exponentiate(A* score, std::int64_t count, A maximum) {
  A sum = 0;
  for (std::int64_t x = 0; x < count; ++x) {
    score[x] = core::exp_relative(score[x], maximum);
    sum += score[x];
  }
  return sum;
}

template <typename A>
void differentiate(A* score, A* grad, std::int64_t count, A lse, A delta) {
  for (std::int64_t x = 0; x < count; ++x) {
    score[x] = core::exp_relative(score[x], lse);
    grad[x] = score[x] == 0 ? A{0} : score[x] * (grad[x] - delta);
  }
}

template <typename A>
void scale(A* values, std::int64_t count, A factor) {
  for (std::int64_t x = 0; x < count; ++x) values[x] *= factor;
}

template <typename A>
void multiply(A* values, const A* factors, std::int64_t count) {
  for (std::int64_t x = 0; x < count; ++x) values[x] = values[x] == 0 ? A{0} : values[x] * factors[x];
}

template <typename A>
bool finite(const A* values, std::int64_t count) {
  return std::all_of(values, values + count, [](A x) { return std::isfinite(x); });
}

template <typename A>
constexpr SoftmaxRows<A> kRows{finish<A>,   exponentiate<A>,  differentiate<A>, scale<A>,
                               multiply<A>, apply_dropout<A>, finite<A>};

}  // namespace

extern const SoftmaxRowsOps kSoftmaxRowsOps;
constinit const SoftmaxRowsOps kSoftmaxRowsOps{kRows<float>, kRows<double>};

}  // namespace tessera::cpu::portable
