// Whether two strided tensors share memory: exactly, not by their extents, so that interleaved views of one
// buffer (packed QKV gradients) pass and real aliasing does not.
#pragma once

#include "tessera/tensor.h"

namespace tessera::api {

// True when some byte belongs to both. Both must have a non-negative number of elements and byte offsets
// that fit 64 bits (validated before). A search that would take too long counts as an overlap.
bool overlap(const Tensor& a, const Tensor& b);

// True when two different indices may address the same element.
bool addresses_twice(const Tensor& tensor);

}  // namespace tessera::api
