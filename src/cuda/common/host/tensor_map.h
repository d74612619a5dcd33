// Tensor maps: how the copy engine of Hopper (TMA) is told where a tensor's rows are.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/reason.h"
#include "core/problem.h"

#if TESSERA_HAVE_CUDA
#include <cuda.h>
#endif

namespace tessera::cuda {

// The sizes of a tensor's rows, heads and batch entries; packed sequences are one batch entry.
struct RowExtents {
  std::int64_t columns = 0, rows = 0, heads = 0, batch = 0;
};

// What a tensor map says, innermost first: head_dim, sequence, heads, batch. Strides are bytes
// between neighbours of the last three. A box has `box_rows` rows of 128 bytes, which is what a
// swizzle spans. `promotion`: bytes that L2 fetches for a load, 256 where all rows begin on 32
// bytes, else 128.
struct TensorMapSpec {
  DType dtype = DType::bf16;
  void* address = nullptr;
  std::uint64_t sizes[4] = {};
  std::uint64_t strides[3] = {};
  std::uint32_t box[4] = {};
  int promotion = 256;
};

// The spec for a tensor of `dtype`. The stride of a dimension of size 1 is never used; it is
// replaced by a valid one.
TensorMapSpec tensor_map_spec(const core::View& view, DType dtype, const RowExtents& extents, int box_rows);

// Whether, and why, there is no tensor map for a tensor of `dtype`. Addresses and strides must be
// multiples of 16 bytes, strides positive and below 2^40.
bool tensor_map_obstacle(const char* name, const core::View& view, DType dtype, const RowExtents& extents,
                         core::Reason reason);

#if TESSERA_HAVE_CUDA

// Encodes a map; numbers outside the tensor are read as 0. Throws Error (device_failure): the
// driver has no such function or refuses.
CUtensorMap encode_tensor_map(const TensorMapSpec& spec);

#endif

}  // namespace tessera::cuda
