// A tensor map as the model encodes it, in place of the hardware's 128 bytes.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace gpu_model {

inline constexpr std::uint32_t kBoxRowBytes = 128;  // of a row in shared memory: what the swizzle spans

struct TensorMap {
  unsigned char* address;
  std::uint64_t sizes[4], strides[3];
  std::uint32_t box[4];
  std::uint32_t element_bytes;
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

}  // namespace gpu_model
