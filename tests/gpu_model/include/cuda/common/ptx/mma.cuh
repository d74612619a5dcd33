// The twin of src/cuda/common/ptx/mma.cuh for the model of a GPU. m16n8k8 twice is m16n8k16.
#pragma once

#include <cstdint>

#include "cuda/common/ptx/math.cuh"

namespace tessera::cuda::ptx {

TWIN void load_matrix(std::uint32_t (&r)[4], std::uint32_t from) {
  gpu_model::load_matrix(r, from, false, gpu_model::here());
}
TWIN void load_matrix_transposed(std::uint32_t (&r)[4], std::uint32_t from) {
  gpu_model::load_matrix(r, from, true, gpu_model::here());
}
template <Mma Shape, Half16 Type>
TWIN void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  static_assert(Shape == Mma::k16 || Type == Half16::fp16);
  gpu_model::mma(d, a, b0, b1, Type == Half16::bf16, false, gpu_model::here());
}
template <Mma Shape, Half16 Type>
TWIN void mma_first(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  static_assert(Shape == Mma::k16 || Type == Half16::fp16);
  gpu_model::mma(d, a, b0, b1, Type == Half16::bf16, true, gpu_model::here());
}

}  // namespace tessera::cuda::ptx
