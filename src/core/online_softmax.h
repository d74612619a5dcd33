// The online softmax: a row's running maximum and sum, and how two parts of a row become one.
#pragma once

#include <cmath>
#include <limits>

#include "core/base/host_device.h"

namespace tessera::core {

template <typename T>
inline constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();

// exp(x - reference) where a row that has seen nothing has the reference -inf: gives 0, never NaN.
template <typename T>
TESSERA_HD inline T exp_relative(T x, T reference) {
  return x == kMinusInfinity<T> ? T{0} : std::exp(x - reference);
}

// What is known of a row so far: the largest score and the sum of exp(score - maximum).
template <typename T>
struct RowStatistics {
  T maximum = kMinusInfinity<T>;
  T sum = 0;

  // Raises the maximum to at least `candidate` and returns the factor by which what was accumulated against
  // the old maximum must be multiplied.
  TESSERA_HD T raise(T candidate) {
    // Written so that a NaN candidate is taken over: NaN scores must reach the result.
    if (candidate <= maximum) return T{1};
    const T factor = maximum == kMinusInfinity<T> ? T{0} : std::exp(maximum - candidate);
    maximum = candidate;
    sum *= factor;
    return factor;
  }

  // log(sum of exp(scores)); -inf for a row that saw nothing.
  TESSERA_HD T lse() const { return sum == 0 ? kMinusInfinity<T> : maximum + std::log(sum); }

  // By what the accumulated values are multiplied at the end: 1 / sum, or 0 for a row that saw nothing.
  TESSERA_HD T normaliser() const { return sum == 0 ? T{0} : T{1} / sum; }
};

// How two normalised parts of a row, known by their LSE, combine: the weights of their outputs and the LSE
// of the whole. Two empty parts give weights 0 and LSE -inf, never NaN.
template <typename T>
struct MergeWeights {
  T first = 0;
  T second = 0;
  T lse = kMinusInfinity<T>;
};

template <typename T>
TESSERA_HD inline MergeWeights<T> merge(T first_lse, T second_lse) {
  // Both are tested, not their maximum: a NaN next to -inf must reach the result.
  if (first_lse == kMinusInfinity<T> && second_lse == kMinusInfinity<T>) return {};
  const T maximum = first_lse > second_lse ? first_lse : second_lse;
  const T first = std::exp(first_lse - maximum), second = std::exp(second_lse - maximum);
  const T sum = first + second;
  return {first / sum, second / sum, maximum + std::log(sum)};
}

}  // namespace tessera::core
