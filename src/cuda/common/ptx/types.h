// Names of what the instructions distinguish, for host and device.
#pragma once

#include <cstdint>

namespace tessera::cuda::ptx {

// 16-bit element types in the tensor cores.
enum class Half16 : int { fp16, bf16 };

// How an element is stored, and how many bytes it takes.
using HalfBits = std::uint16_t;
constexpr int element_bytes(Half16 /*type*/) { return sizeof(HalfBits); }

// How a 16-wide contraction is done. Turing's m16n8k8 takes two steps and knows fp16 only.
enum class Mma : int { k8, k16 };

}  // namespace tessera::cuda::ptx
