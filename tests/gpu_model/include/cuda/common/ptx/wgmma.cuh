// The twin of src/cuda/common/ptx/wgmma.cuh for the model of a GPU.
#pragma once

#include <cstdint>

#include "cuda/common/ptx/types.h"
#include "gpu_model/machine/machine.h"

namespace tessera::cuda::ptx {

TWIN void wgmma_fence() { gpu_model::wgmma_fence(); }
TWIN void wgmma_commit() { gpu_model::wgmma_commit(); }
template <int Pending>
TWIN void wgmma_wait() {
  gpu_model::wgmma_wait(Pending, gpu_model::here());
}
template <typename T, int Count>
TWIN void pin(T (&)[Count]) {}

TWIN std::uint64_t advance(std::uint64_t descriptor, std::uint32_t bytes) {
  return (descriptor & 0xFFFFFFFF00000000ULL) | (static_cast<std::uint32_t>(descriptor) + (bytes >> 4));
}

template <int Columns, Half16 Type>
struct Wgmma {
  template <bool ByRows = false>
  static TWIN void shared_first(float* d, std::uint64_t a, std::uint64_t b) {
    gpu_model::wgmma({d, nullptr, a, b, Columns, Type == Half16::bf16, ByRows, true}, gpu_model::here());
  }
  template <bool ByRows = false>
  static TWIN void shared(float* d, std::uint64_t a, std::uint64_t b) {
    gpu_model::wgmma({d, nullptr, a, b, Columns, Type == Half16::bf16, ByRows, false}, gpu_model::here());
  }
  static TWIN void registers_first(float* d, const std::uint32_t* a, std::uint64_t b) {
    gpu_model::wgmma({d, a, 0, b, Columns, Type == Half16::bf16, true, true}, gpu_model::here());
  }
  static TWIN void registers(float* d, const std::uint32_t* a, std::uint64_t b) {
    gpu_model::wgmma({d, a, 0, b, Columns, Type == Half16::bf16, true, false}, gpu_model::here());
  }
};

}  // namespace tessera::cuda::ptx
