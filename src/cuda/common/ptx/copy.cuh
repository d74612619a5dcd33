// Copies from global to shared memory, and accesses to shared memory by its address.
#pragma once

#include <cstdint>

namespace tessera::cuda::ptx {

// The address of a pointer to shared memory, in the form that the instructions take.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes asynchronously, past the first-level cache. Not valid: writes zeros and reads
// nothing. PTX ISA: cp.async. sm_80 and newer.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}

// As above, of which only the first `bytes` (0 to 16) are read; the rest arrives as zero.
__device__ __forceinline__ void copy_async_part(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// Copies 4 bytes asynchronously, for sources that are not on a 16-byte boundary.
__device__ __forceinline__ void copy_async_word(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0)
               : "memory");
}

// Closes the group of copies issued since the last group. An empty group is complete at once.
// PTX ISA: cp.async.commit_group.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `Pending` of this thread's groups are still under way. PTX ISA:
// cp.async.wait_group.
template <int Pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// PTX ISA: st.shared.v4.
__device__ __forceinline__ void store_shared(std::uint32_t to, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}

// PTX ISA: st.shared.
__device__ __forceinline__ void store_shared(std::uint32_t to, std::uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

// PTX ISA: st.shared.
__device__ __forceinline__ void store_shared(std::uint32_t to, std::uint16_t x) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(x) : "memory");
}

// PTX ISA: ld.shared.
__device__ __forceinline__ std::uint16_t load_shared_half(std::uint32_t from) {
  std::uint16_t x;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(x) : "r"(from) : "memory");
  return x;
}

// An element as it is stored.
template <typename Bits>
__device__ __forceinline__ Bits load_element(std::uint32_t from) {
  static_assert(sizeof(Bits) == sizeof(std::uint16_t), "another size takes another instruction");
  return load_shared_half(from);
}

// PTX ISA: ld.shared.
__device__ __forceinline__ std::uint32_t load_shared_word(std::uint32_t from) {
  std::uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}

// PTX ISA: ld.shared.v4.
__device__ __forceinline__ uint4 load_shared(std::uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}

// PTX ISA: st.shared.v2.
__device__ __forceinline__ void store_pair(std::uint32_t to, uint2 x) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(x.x), "r"(x.y) : "memory");
}

// PTX ISA: ld.shared.
__device__ __forceinline__ float load_float(std::uint32_t from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}

// PTX ISA: ld.shared.v2.
__device__ __forceinline__ float2 load_float2(std::uint32_t from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}

}  // namespace tessera::cuda::ptx
