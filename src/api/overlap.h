// Whether two strided tensors share memory: exactly, not by their extents, so that interleaved
// views of one buffer (packed QKV gradients) pass and real aliasing does not.
#pragma once

#include <cstddef>

#include "tessera/tensor.h"

namespace tessera::api {

// True when some byte belongs to both. Both must have a non-negative number of elements and byte
// offsets that fit 64 bits (validated before). A search that would take too long counts as an
// overlap.
bool overlap(const Tensor& a, const Tensor& b);

// True when some byte of the tensor lies in `bytes` bytes from `memory`.
bool overlap(const Tensor& tensor, const void* memory, std::size_t bytes);

// True when two different indices address the same element: exact, for every layout that the search
// decides within its bound. One that it cannot decide, such as four large sizes whose strides
// nearly divide each other, counts as true.
bool addresses_twice(const Tensor& tensor);

}  // namespace tessera::api
