#include "cpu/baselines/standard/softmax_rows.h"

#include <algorithm>
#include <cmath>

namespace tessera::cpu::portable {
namespace {

template <typename A>
A finish(const Head& head, std::int64_t i, std::int64_t begin, std::int64_t end, A* score, A* derivative,
         A maximum) {
  finish_scores(head, i, begin, end, score, derivative);
  for (std::int64_t x = 0; x < end - begin; ++x) maximum = score[x] <= maximum ? maximum : score[x];
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

constexpr SoftmaxRowsEngine kEngine{kRows<float>, kRows<double>};

}  // namespace

const SoftmaxRowsEngine* softmax_rows_engine() { return &kEngine; }

}  // namespace tessera::cpu::portable
