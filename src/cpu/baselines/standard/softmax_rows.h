// What cpu.standard does to the rows of its N x N matrices between the products: one function per
// pass, each on contiguous columns of one row, in plain C++ and for every vector instruction set.
#pragma once

#include <cstdint>

#include "core/band.h"
#include "cpu/head_view.h"

namespace tessera::cpu {

template <typename A>
struct SoftmaxRows {
  // Applies softcap, bias and ALiBi to the scaled scores of row i, columns `keys`. Returns the
  // largest of them and of `maximum`. Writes d(capped score) / d(scaled score) to `derivative`,
  // unless null.
  A(*finish)
  (const HeadView& head, std::int64_t i, const core::Interval& keys, A* score, A* derivative, A maximum);
  // Scores become exp(score - maximum), 0 where the score is -inf. Returns their sum.
  A (*exponentiate)(A* score, std::int64_t count, A maximum);
  // Scores become P = exp(score - LSE) and dP becomes dS = P o (dP - delta), which is 0 where P is
  // 0.
  void (*differentiate)(A* score, A* grad, std::int64_t count, A lse, A delta);
  // values *= factor, and values *= factors one by one: a value of 0 stays 0, whatever its factor
  // is.
  void (*scale)(A* values, std::int64_t count, A factor);
  void (*multiply)(A* values, const A* factors, std::int64_t count);
  // Multiplies row i, columns `keys`, by 0 or p.keep_scale.
  void (*dropout)(const HeadView& head, std::int64_t i, const core::Interval& keys, A* values);
  // Whether all values are finite.
  bool (*finite)(const A* values, std::int64_t count);
};

struct SoftmaxRowsOps {
  SoftmaxRows<float> fp32;
  SoftmaxRows<double> fp64;

  template <typename A>
  [[nodiscard]] const SoftmaxRows<A>& rows() const {
    if constexpr (sizeof(A) == sizeof(float)) {
      return fp32;
    } else {
      return fp64;
    }
  }
};

}  // namespace tessera::cpu
