// The elements of a strided tensor as doubles: how the reference reads the caller's memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/tensor.h"

namespace tessera::reference {

// One element as a double; 0 or 1 of a boolean one. As in the contract, the stride of the last
// dimension is 1 whatever the tensor says.
double read(const Tensor& tensor, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d);

// Stores one element, rounded to the tensor's type.
void write(const Tensor& tensor, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d,
           double value);

// The last dimension at (a, b, c), one double per element.
void read_row(const Tensor& tensor, std::int64_t a, std::int64_t b, std::int64_t c, std::span<double> row);

// All elements, the last dimension innermost, without gaps.
std::vector<double> values(const Tensor& tensor);

// Number of elements.
std::int64_t count(const Extents& shape);

// The index of element (a, b, c, d) of a tensor of this shape in `values`.
inline std::int64_t dense_index(const Extents& shape, std::int64_t a, std::int64_t b, std::int64_t c,
                                std::int64_t d) {
  return ((a * shape[1] + b) * shape[2] + c) * shape[3] + d;
}

// `value` rounded to the nearest value of a type, ties to even.
double round_to(DType dtype, double value);

// The distance from 1 to the next larger value of a type.
double epsilon(DType dtype);

}  // namespace tessera::reference
