// Global memory that thread blocks share while a kernel runs: ordered accesses and reductions.
#pragma once

#include <cstdint>

namespace tessera::cuda::ptx {

// A number that other thread blocks may be changing. PTX ISA: ld.relaxed.
__device__ __forceinline__ std::uint32_t load_relaxed(const std::uint32_t* from) {
  std::uint32_t x;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}

// Orders this thread's accesses before it, and those of other threads that a barrier has put before
// it, with those after it, as the whole GPU sees them. PTX ISA: fence.acq_rel.
__device__ __forceinline__ void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// *to += 1. PTX ISA: red.relaxed.
__device__ __forceinline__ void increment(std::uint32_t* to) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(to) : "memory");
}

// Adds four neighbouring numbers at once; `to` is a multiple of 16 bytes. PTX ISA:
// red.global.add.v4.f32. sm_90 and newer.
__device__ __forceinline__ void add_four(float* to, const float (&x)[4]) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3])
               : "memory");
}

// Adds two neighbouring numbers at once; `to` is a multiple of 8 bytes. PTX ISA:
// red.global.add.v2.f32. sm_90 and newer.
__device__ __forceinline__ void add_two(float* to, float x, float y) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}

}  // namespace tessera::cuda::ptx
