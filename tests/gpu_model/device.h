// What nvcc knows without an #include, for kernels that clang compiles as functions of this
// machine. Compiled before every kernel file (-include).
#pragma once

#include <vector_types.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gpu_model/machine/machine.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

// The lint of warp sizes and masks is the machine's.
static const uint3& threadIdx = gpu_model::now.thread_index;
static const uint3& blockIdx = gpu_model::now.block_index;
static const dim3& blockDim = gpu_model::now.block_size;
static const dim3& gridDim = gpu_model::now.grid_size;

// --- synchronisation ---

TWIN void __syncthreads() {
  gpu_model::barrier(0, static_cast<int>(blockDim.x), true, nullptr, gpu_model::here());
}
TWIN int __syncthreads_or(int x) {
  bool any = x != 0;
  gpu_model::barrier(0, static_cast<int>(blockDim.x), true, &any, gpu_model::here());
  return any;
}
TWIN int __syncthreads_and(int x) { return __syncthreads_or(x == 0) == 0; }
TWIN void __syncwarp(unsigned mask = ~0U) { gpu_model::sync_warp(mask, gpu_model::here()); }
TWIN int __any_sync(unsigned mask, int x) { return gpu_model::ballot(mask, x != 0, gpu_model::here()) != 0; }
TWIN int __all_sync(unsigned mask, int x) { return gpu_model::ballot(mask, x == 0, gpu_model::here()) == 0; }
TWIN unsigned __ballot_sync(unsigned mask, int x) {
  return gpu_model::ballot(mask, x != 0, gpu_model::here());
}
TWIN void __threadfence() { gpu_model::poll(gpu_model::here()); }
TWIN void __trap() { gpu_model::fail("trap", gpu_model::here()); }

// --- shuffles ---

template <typename T>
TWIN T shuffle(unsigned mask, T value, int source, gpu_model::Place at) {
  T result;
  gpu_model::shuffle(mask, &value, &result, sizeof(T), source, at);
  return result;
}
template <typename T>
TWIN T __shfl_sync(unsigned mask, T x, int lane) {
  return shuffle(mask, x, lane, gpu_model::here());
}
template <typename T>
TWIN T __shfl_xor_sync(unsigned mask, T x, int lanes) {
  return shuffle(mask, x, gpu_model::now.lane ^ lanes, gpu_model::here());
}
template <typename T>
TWIN T __shfl_down_sync(unsigned mask, T x, unsigned lanes) {
  const int source = gpu_model::now.lane + static_cast<int>(lanes);
  return shuffle(mask, x, source < 32 ? source : gpu_model::now.lane, gpu_model::here());
}
TWIN unsigned __reduce_max_sync(unsigned mask, unsigned x) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const unsigned other = __shfl_xor_sync(mask, x, lanes);
    x = x > other ? x : other;
  }
  return x;
}

// --- memory ---

template <typename T>
TWIN T __ldg(const T* from) {
  return *from;
}
template <typename T>
TWIN T __ldcg(const T* from) {
  return *from;
}
template <typename T>
TWIN T atomicAdd(T* to, std::type_identity_t<T> x) {
  gpu_model::yield();
  const T before = *to;
  *to = before + x;
  return before;
}
template <typename T>
TWIN T atomicExch(T* to, std::type_identity_t<T> x) {
  gpu_model::yield();
  const T before = *to;
  *to = x;
  return before;
}

// --- arithmetic ---

TWIN float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
TWIN unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
TWIN float __int_as_float(int x) { return std::bit_cast<float>(x); }
TWIN int __float_as_int(float x) { return std::bit_cast<int>(x); }
TWIN float __fmul_rn(float x, float y) { return x * y; }
TWIN float __fadd_rn(float x, float y) { return x + y; }
TWIN float __fdividef(float x, float y) { return x / y; }
TWIN int __popc(unsigned x) { return std::popcount(x); }
TWIN unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((std::uint64_t{a} * b) >> 32); }
using std::isfinite;
template <typename A, typename B>
TWIN std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <typename A, typename B>
TWIN std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}
