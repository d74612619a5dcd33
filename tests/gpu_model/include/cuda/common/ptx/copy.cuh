// The twin of src/cuda/common/ptx/copy.cuh for the model of a GPU: the same functions, by the
// machine. The original says what they do.
#pragma once

#include <cstdint>
#include <cstring>

#include "gpu_model/machine/machine.h"

namespace tessera::cuda::ptx {

TWIN std::uint32_t shared_address(const void* pointer) { return gpu_model::shared_address(pointer); }

TWIN void copy_async(std::uint32_t to, const void* from, bool valid) {
  gpu_model::copy_async(to, from, 16, valid ? 16 : 0, gpu_model::here());
}
TWIN void copy_async_part(std::uint32_t to, const void* from, int bytes) {
  gpu_model::copy_async(to, from, 16, bytes, gpu_model::here());
}
TWIN void copy_async_word(std::uint32_t to, const void* from, bool valid) {
  gpu_model::copy_async(to, from, 4, valid ? 4 : 0, gpu_model::here());
}
TWIN void commit_copies() { gpu_model::commit_copies(); }
template <int Pending>
TWIN void wait_copies() {
  gpu_model::wait_copies(Pending, gpu_model::here());
}

// The machine's accesses to shared memory: of `T` at once, as one instruction does it.
template <typename T>
TWIN void put(std::uint32_t to, const T& x) {
  gpu_model::store(to, &x, sizeof x, gpu_model::here());
}
template <typename T>
TWIN T get(std::uint32_t from) {
  T x;
  gpu_model::load(&x, from, sizeof x, gpu_model::here());
  return x;
}

TWIN void store_shared(std::uint32_t to, uint4 x) { put(to, x); }
TWIN void store_shared(std::uint32_t to, std::uint32_t x) { put(to, x); }
TWIN void store_shared(std::uint32_t to, std::uint16_t x) { put(to, x); }
TWIN std::uint16_t load_shared_half(std::uint32_t from) { return get<std::uint16_t>(from); }
template <typename Bits>
TWIN Bits load_element(std::uint32_t from) {
  static_assert(sizeof(Bits) == sizeof(std::uint16_t));
  return load_shared_half(from);
}
TWIN std::uint32_t load_shared_word(std::uint32_t from) { return get<std::uint32_t>(from); }
TWIN uint4 load_shared(std::uint32_t from) { return get<uint4>(from); }
TWIN void store_pair(std::uint32_t to, uint2 x) { put(to, x); }
TWIN float load_float(std::uint32_t from) { return get<float>(from); }
TWIN float2 load_float2(std::uint32_t from) { return get<float2>(from); }

}  // namespace tessera::cuda::ptx
