// Whether methods agree: their results are compared number by number.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lab/measure/rows.h"
#include "lab/problem/tensors.h"

namespace tessera::lab {

// Compares the results of several methods on the same tensors with those of the first.
class Agreement {
 public:
  explicit Agreement(double atol) : atol_(atol) {}

  // What the tensors hold after a call of the row's method: the output, the gradients or both. The
  // first method is compared with fp64, if the row has sampled errors; its results are kept in host
  // memory.
  Comparison compare(const Row& row, const Tensors& tensors);

 private:
  struct Result {
    DType dtype;
    std::vector<std::byte> data;
  };

  double atol_;
  std::string first_{};  // the method that the others are compared with
  std::vector<Result> results_{};
};

}  // namespace tessera::lab
