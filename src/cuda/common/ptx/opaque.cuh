// Values that the compiler cannot trace, so that it computes what follows from them where that is
// needed.
//
// The compiler moves whatever does not change out of a loop: dozens of addresses, each the sum of a
// lane's part and a constant. They would occupy registers through the whole loop that the products
// need. A value that passes through one of these functions could be any number, and what depends on
// it stays behind it.
#pragma once

#include <cstdint>

namespace tessera::cuda::ptx {

// The same number, of unknown origin.
__device__ __forceinline__ std::uint32_t opaque(std::uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// The lane of the calling thread, read again at every call. PTX ISA: %laneid.
__device__ __forceinline__ int lane_index() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// The index of the thread block, read again at every call. PTX ISA: %ctaid.
__device__ __forceinline__ unsigned block_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}

// Keeps the assembler from mixing what comes before with what comes after: for places where the
// registers do not suffice for both.
__device__ __forceinline__ void keep_apart() { __syncwarp(); }

}  // namespace tessera::cuda::ptx
