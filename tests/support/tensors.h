// Tensors in other memory layouts, between guard bands, and their comparison bit by bit.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reference/cases/case.h"
#include "support/guarded.h"
#include "tessera/attention.h"

namespace tessera::test {

// The part [begin, begin + length) of a tensor along one dimension. What is not
// given, or broadcast along that dimension, is returned as it is.
Tensor slice(Tensor tensor, int dimension, std::int64_t begin, std::int64_t length);

// How a tensor lies in memory.
struct MemoryLayout {
  std::array<int, 4> order = {0, 1, 2, 3};  // dimensions from the outermost to the innermost in memory
  std::int64_t gap = 0;                     // unused elements after each run of the innermost but one
  std::int64_t offset = 0;                  // elements between an aligned address and the first element
  bool reversed = false;                    // negative strides on all but the last dimension, of inputs
  bool garbage_strides = false;             // meaningless strides on dimensions of size 1
};

// A tensor with its memory, which lies between guard bands.
class OwnedTensor {
 public:
  OwnedTensor() = default;  // a tensor that is not given
  OwnedTensor(DType dtype, const Extents& shape, const MemoryLayout& layout, Fill how = Fill::nan);
  // The same elements as `source`, in another layout; what lies in gaps is NaN.
  OwnedTensor(const Tensor& source, const MemoryLayout& layout);

  [[nodiscard]] const Tensor& view() const { return tensor_; }
  // Nothing was written outside the tensor's own elements, gaps included.
  [[nodiscard]] bool intact() const;

 private:
  Tensor tensor_{};
  std::unique_ptr<GuardedBuffer> buffer_;
};

// All tensors of a case, copied into another layout; outputs are filled as told.
class RelaidCase {
 public:
  RelaidCase(const reference::Case& source, const MemoryLayout& layout, Fill outputs = Fill::nan);

  Attention attention;
  ForwardTensors forward;
  BackwardTensors backward;

  // The names of tensors whose surroundings were written to; empty: none.
  [[nodiscard]] std::string damage() const;

 private:
  Tensor keep(const char* name, OwnedTensor tensor);
  std::vector<std::pair<std::string, OwnedTensor>> tensors_;
};

// Where two tensors of one shape and type first differ in their bits, in words; empty: nowhere.
std::string first_difference(const Tensor& a, const Tensor& b);

// The same over all results of two calls, each named.
std::string first_difference(const ForwardTensors& a, const ForwardTensors& b);
std::string first_difference(const BackwardTensors& a, const BackwardTensors& b);

}  // namespace tessera::test
