// The shared memory of a thread block. Everything above this folder gets it here, so that the model
// of a GPU (tests/gpu_model) can put memory of its own in its place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/common/ptx/copy.cuh"

// Declares `name`: the memory that the launch asks for, as an array of `type` that begins on a
// multiple of `alignment` bytes. A macro, because behind a function nvcc 13 orders the instructions
// of some kernels in another way.
#define TESSERA_DYNAMIC_SHARED(type, alignment, name) \
  extern __shared__ __align__(alignment)              \
  type name[]

namespace tessera::cuda::ptx {

// The address of the same memory, for kernels that need nothing else.
template <int Alignment>
__device__ __forceinline__ std::uint32_t dynamic_shared_address() {
  TESSERA_DYNAMIC_SHARED(unsigned char, Alignment, memory);
  return shared_address(memory);
}

// A variable of the thread block. Each Tag has one of its own. It is not initialised, and T's
// constructor does not run.
template <typename T, typename Tag, std::size_t Alignment = alignof(T)>
__device__ __forceinline__ T& static_shared() {
  __shared__ __align__(Alignment) unsigned char memory[sizeof(T)];
  return *reinterpret_cast<T*>(memory);
}

// Stores what other threads may be storing in the same place at the same time: the same value. Says
// that this is meant.
template <typename T>
__device__ __forceinline__ void store_same(T& to, const T& value) {
  to = value;
}

// The same by address, and a read of what such a store may be replacing: the reader gets the old or
// the new value and makes the same of both.
__device__ __forceinline__ void store_shared_same(std::uint32_t to, uint4 x) { store_shared(to, x); }
__device__ __forceinline__ uint4 load_shared_same(std::uint32_t from) { return load_shared(from); }

// Reads what nobody may have written. Says that the caller hides whatever follows from it.
template <typename T>
__device__ __forceinline__ T load_any(const T& from) {
  return from;
}

}  // namespace tessera::cuda::ptx
