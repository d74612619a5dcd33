// The element type, the product that takes it and how rows are copied: what the backward kernels of
// a family have in common.
#pragma once

#include "cuda/common/ptx/types.h"

namespace tessera::cuda {

enum class Engine : int { sm75_fp16, sm80_fp16, sm80_bf16 };

constexpr ptx::Half16 type_of(Engine e) {
  return e == Engine::sm80_bf16 ? ptx::Half16::bf16 : ptx::Half16::fp16;
}
constexpr ptx::Mma mma_of(Engine e) { return e == Engine::sm75_fp16 ? ptx::Mma::k8 : ptx::Mma::k16; }
constexpr bool copies_async(Engine e) { return e != Engine::sm75_fp16; }

}  // namespace tessera::cuda
