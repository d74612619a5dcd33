// The online softmax: a row's running maximum and sum, and how two parts of a row become one.
#pragma once

#include <cmath>
#include <limits>

#include "core/base/host_device.h"

namespace tessera::core {

template <typename T>
inline constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();

// exp(x - reference). A row that sees nothing has x = reference = -inf: the result is 0, never NaN.
template <typename T>
TESSERA_HD inline T exp_relative(T x, T reference) {
  return x == kMinusInfinity<T> ? T{0} : std::exp(x - reference);
}

// The state of a row: the largest score so far and the sum of exp(score - maximum).
template <typename T>
struct RowStatistics {
  T maximum = kMinusInfinity<T>;
  T sum = 0;

  // Raises the maximum to at least `candidate`. Returns the factor for everything that was
  // accumulated against the old maximum.
  TESSERA_HD T raise(T candidate) {
    // The comparison is false for NaN, which then becomes the maximum: NaN scores must reach the
    // result.
    if (candidate <= maximum) return T{1};
    const T factor = maximum == kMinusInfinity<T> ? T{0} : std::exp(maximum - candidate);
    maximum = candidate;
    sum *= factor;
    return factor;
  }

  // log(sum of exp(scores)); -inf for a row that sees nothing.
  TESSERA_HD T lse() const { return sum == 0 ? kMinusInfinity<T> : maximum + std::log(sum); }

  // The factor for the accumulated values at the end: 1 / sum, or 0 for a row that sees nothing.
  TESSERA_HD T normaliser() const { return sum == 0 ? T{0} : T{1} / sum; }
};

// Merges two normalised parts of a row by their LSE: the weights of their outputs, and the LSE of
// the whole. Two empty parts have weights 0 and LSE -inf, never NaN.
template <typename T>
struct MergeWeights {
  T first = 0;
  T second = 0;
  T lse = kMinusInfinity<T>;
};

template <typename T>
TESSERA_HD inline MergeWeights<T> merge(T first_lse, T second_lse) {
  // Tests both, not their maximum: a NaN next to -inf must reach the result.
  if (first_lse == kMinusInfinity<T> && second_lse == kMinusInfinity<T>) return {};
  const T maximum = first_lse > second_lse ? first_lse : second_lse;
  const T first = std::exp(first_lse - maximum), second = std::exp(second_lse - maximum);
  const T sum = first + second;
  return {first / sum, second / sum, maximum + std::log(sum)};
}

}  // namespace tessera::core
