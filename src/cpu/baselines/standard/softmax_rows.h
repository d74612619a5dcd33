// What cpu.standard does to the rows of its N x N matrices between the products: one function per pass, each on
// contiguous columns of one row, in plain C++ and for every vector instruction set.
#pragma once

#include <cstdint>

#include "cpu/head.h"
#include "cpu/machine/target.h"

namespace tessera::cpu {

template <typename A>
struct SoftmaxRows {
  // Scaled scores of row i, columns [begin, end), become what the softmax takes: softcap, bias, ALiBi. Returns
  // the largest of them and of `maximum`. With `derivative`, also d(capped score) / d(scaled score).
  A(*finish)
  (const Head& head, std::int64_t i, std::int64_t begin, std::int64_t end, A* score, A* derivative,
   A maximum);
  // Scores become exp(score - maximum), 0 where the score is -inf. Returns their sum.
  A (*exponentiate)(A* score, std::int64_t count, A maximum);
  // Scores become P = exp(score - LSE), dP becomes dS = P o (dP - delta), 0 where P is 0.
  void (*differentiate)(A* score, A* grad, std::int64_t count, A lse, A delta);
  // values *= factor, and values *= factors one by one, where a value of 0 stays 0 whatever its factor is.
  void (*scale)(A* values, std::int64_t count, A factor);
  void (*multiply)(A* values, const A* factors, std::int64_t count);
  // Multiplies row i, columns [begin, end), by 0 or p.keep_scale.
  void (*dropout)(const Head& head, std::int64_t i, std::int64_t begin, std::int64_t end, A* values);
  bool (*finite)(const A* values, std::int64_t count);
};

struct SoftmaxRowsEngine {
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

// Never null.
const SoftmaxRowsEngine* softmax_rows_engine(Target target);

namespace portable {
const SoftmaxRowsEngine* softmax_rows_engine();
}

}  // namespace tessera::cpu
