// The twin of src/cuda/common/ptx/shared_memory.cuh for the model of a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/common/ptx/copy.cuh"

#define TESSERA_DYNAMIC_SHARED(type, alignment, name) \
  type* const name = reinterpret_cast<type*>(gpu_model::dynamic_shared(alignment))

namespace tessera::cuda::ptx {

template <int Alignment>
TWIN std::uint32_t dynamic_shared_address() {
  return shared_address(gpu_model::dynamic_shared(Alignment));
}

template <typename T, typename Tag, std::size_t Alignment = alignof(T)>
T& static_shared() {
  static const char key = 0;  // its address names the variable
  return *static_cast<T*>(gpu_model::static_shared(&key, sizeof(T), Alignment));
}

template <typename T>
TWIN void store_same(T& to, const T& value) {
  gpu_model::store_same(gpu_model::shared_address(&to), &value, sizeof value, gpu_model::here());
}

template <typename T>
TWIN T load_any(const T& from) {
  T x;
  gpu_model::load_any(&x, gpu_model::shared_address(&from), sizeof x, gpu_model::here());
  return x;
}

TWIN void store_shared_same(std::uint32_t to, uint4 x) {
  gpu_model::store_same(to, &x, sizeof x, gpu_model::here());
}
TWIN uint4 load_shared_same(std::uint32_t from) {
  uint4 x;
  gpu_model::load_same(&x, from, sizeof x, gpu_model::here());
  return x;
}

}  // namespace tessera::cuda::ptx
