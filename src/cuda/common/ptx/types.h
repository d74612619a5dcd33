// Names of what the instructions distinguish, for host and device.
#pragma once

#include <cstdint>

#include "core/base/host_device.h"

namespace tessera::cuda::ptx {

// 16-bit element types of the tensor cores.
enum class Half16 : int { fp16, bf16 };

// How an element of a type is stored, and how many bytes it takes. A type of another size adds a
// case to both.
using HalfBits = std::uint16_t;
template <Half16 Type>
struct StorageOf {
  using Bits = HalfBits;
};
template <Half16 Type>
using Storage = typename StorageOf<Type>::Bits;
constexpr int element_bytes(Half16 type) {
  switch (type) {
    case Half16::fp16: return sizeof(Storage<Half16::fp16>);
    case Half16::bf16: break;
  }
  return sizeof(Storage<Half16::bf16>);
}

// How a 16-wide contraction is done. Turing's m16n8k8 takes two steps and knows fp16 only.
enum class Mma : int { k8, k16 };

// Whether this code is being compiled for a GPU before compute capability 9.0. Such GPUs have at
// most 163 KB of shared memory for a thread block and no reductions of four numbers at once.
inline constexpr bool kBefore90 = TESSERA_CUDA_ARCH > 0 && TESSERA_CUDA_ARCH < 900;

}  // namespace tessera::cuda::ptx
