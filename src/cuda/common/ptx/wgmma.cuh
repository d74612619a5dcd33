// wgmma: matrix products of a warp group (four warps, 64 rows) that run asynchronously, and the
// descriptors of their operands in shared memory. sm_90a.
//
// Accumulators: 16 rows per warp; in each, lane l holds d[4j], d[4j + 1] at row l / 4, columns 8j +
// 2 (l % 4) + {0, 1}, and d[4j + 2], d[4j + 3] eight rows below: the layout of mma.cuh, so that
// packed pairs d[8k] ... d[8k + 7] are the A operand of the k-th sixteen columns.
//
// Rules (PTX ISA: wgmma). Call wgmma_fence before the first product and after any ordinary write to
// its registers; then the products, wgmma_commit and wgmma_wait. In between nothing may touch the
// registers and tiles in flight. `pin` after a wait keeps the compiler from moving uses of the
// registers above it.
#pragma once

#include <cstdint>

#include "cuda/common/ptx/types.h"

namespace tessera::cuda::ptx {

// PTX ISA: wgmma.fence.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes the group of products issued since the last one. PTX ISA: wgmma.commit_group.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `Pending` groups are in flight. PTX ISA: wgmma.wait_group.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Keeps uses of these registers below this point.
template <int Count>
__device__ __forceinline__ void pin(float (&registers)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int Count>
__device__ __forceinline__ void pin(std::uint32_t (&registers)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// The descriptor of an operand `bytes` further on in shared memory. Only its lower half holds the
// address.
__device__ __forceinline__ std::uint64_t advance(std::uint64_t descriptor, std::uint32_t bytes) {
  return (descriptor & 0xFFFFFFFF00000000ULL) | (static_cast<std::uint32_t>(descriptor) + (bytes >> 4));
}

// Products of A (64 x 16) and B (16 x Columns) of 16-bit numbers into d (64 x Columns, fp32).
template <int Columns, Half16 Type>
struct Wgmma;

// The register lists of the instructions, sixteen at a time.
// clang-format off
#define TESSERA_REGISTERS_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TESSERA_REGISTERS_16 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TESSERA_REGISTERS_32 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TESSERA_REGISTERS_48 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TESSERA_REGISTERS_64 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define TESSERA_REGISTERS_80 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TESSERA_REGISTERS_96 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define TESSERA_REGISTERS_112 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TESSERA_BIND_16(k, b) \
  k(d[b]), k(d[b + 1]), k(d[b + 2]), k(d[b + 3]), k(d[b + 4]), k(d[b + 5]), k(d[b + 6]), k(d[b + 7]), k(d[b + 8]), \
  k(d[b + 9]), k(d[b + 10]), k(d[b + 11]), k(d[b + 12]), k(d[b + 13]), k(d[b + 14]), k(d[b + 15])
#define TESSERA_LIST_32 TESSERA_REGISTERS_0 ", " TESSERA_REGISTERS_16
#define TESSERA_LIST_48 TESSERA_REGISTERS_0 ", " TESSERA_REGISTERS_16 ", " TESSERA_REGISTERS_32
#define TESSERA_LIST_64 TESSERA_REGISTERS_0 ", " TESSERA_REGISTERS_16 ", " TESSERA_REGISTERS_32 ", " TESSERA_REGISTERS_48
#define TESSERA_LIST_128 TESSERA_REGISTERS_0 ", " TESSERA_REGISTERS_16 ", " TESSERA_REGISTERS_32 ", " TESSERA_REGISTERS_48 ", " TESSERA_REGISTERS_64 ", " TESSERA_REGISTERS_80 ", " TESSERA_REGISTERS_96 ", " TESSERA_REGISTERS_112
#define TESSERA_BIND_32(k) TESSERA_BIND_16(k, 0), TESSERA_BIND_16(k, 16)
#define TESSERA_BIND_48(k) TESSERA_BIND_16(k, 0), TESSERA_BIND_16(k, 16), TESSERA_BIND_16(k, 32)
#define TESSERA_BIND_64(k) TESSERA_BIND_16(k, 0), TESSERA_BIND_16(k, 16), TESSERA_BIND_16(k, 32), TESSERA_BIND_16(k, 48)
#define TESSERA_BIND_128(k) TESSERA_BIND_16(k, 0), TESSERA_BIND_16(k, 16), TESSERA_BIND_16(k, 32), TESSERA_BIND_16(k, 48), TESSERA_BIND_16(k, 64), TESSERA_BIND_16(k, 80), TESSERA_BIND_16(k, 96), TESSERA_BIND_16(k, 112)

// shared_first: d = A B, shared: d += A B, both operands in shared memory. A is contiguous along
// the contraction; B too or, ByRows, along its columns. registers_first and registers: the same
// with A in registers, and B contiguous along its columns.
#define TESSERA_WGMMA(COLUMNS, TYPE, NAME, REGISTERS, R0, R1, R2, R3, R4)                                             \
  template <>                                                                                                         \
  struct Wgmma<COLUMNS, Half16::TYPE> {                                                                               \
    template <bool ByRows = false>                                                                                    \
    static __device__ __forceinline__ void shared_first(float* d, std::uint64_t a, std::uint64_t b) {                 \
      asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0;\n"                                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " {"                         \
                   TESSERA_LIST_##REGISTERS "}, %" #R0 ", %" #R1 ", p, 1, 1, 0, %" #R2 ";}"                           \
                   : TESSERA_BIND_##REGISTERS("=f")                                                                   \
                   : "l"(a), "l"(b), "n"(ByRows ? 1 : 0));                                                            \
    }                                                                                                                 \
    template <bool ByRows = false>                                                                                    \
    static __device__ __forceinline__ void shared(float* d, std::uint64_t a, std::uint64_t b) {                       \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " {"                         \
                   TESSERA_LIST_##REGISTERS "}, %" #R0 ", %" #R1 ", 1, 1, 1, 0, %" #R2 ";"                            \
                   : TESSERA_BIND_##REGISTERS("+f")                                                                   \
                   : "l"(a), "l"(b), "n"(ByRows ? 1 : 0));                                                            \
    }                                                                                                                 \
    static __device__ __forceinline__ void registers_first(float* d, const std::uint32_t* a, std::uint64_t b) {       \
      asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0;\n"                                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " {"                         \
                   TESSERA_LIST_##REGISTERS "}, {%" #R0 ", %" #R1 ", %" #R2 ", %" #R3 "}, %" #R4 ", p, 1, 1, 1;}"     \
                   : TESSERA_BIND_##REGISTERS("=f")                                                                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                             \
    }                                                                                                                 \
    static __device__ __forceinline__ void registers(float* d, const std::uint32_t* a, std::uint64_t b) {             \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " {"                         \
                   TESSERA_LIST_##REGISTERS "}, {%" #R0 ", %" #R1 ", %" #R2 ", %" #R3 "}, %" #R4 ", 1, 1, 1, 1;"      \
                   : TESSERA_BIND_##REGISTERS("+f")                                                                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                             \
    }                                                                                                                 \
  };

TESSERA_WGMMA(64, bf16, "bf16", 32, 32, 33, 34, 35, 36)
TESSERA_WGMMA(96, bf16, "bf16", 48, 48, 49, 50, 51, 52)
TESSERA_WGMMA(128, bf16, "bf16", 64, 64, 65, 66, 67, 68)
TESSERA_WGMMA(256, bf16, "bf16", 128, 128, 129, 130, 131, 132)
TESSERA_WGMMA(64, fp16, "f16", 32, 32, 33, 34, 35, 36)
TESSERA_WGMMA(96, fp16, "f16", 48, 48, 49, 50, 51, 52)
TESSERA_WGMMA(128, fp16, "f16", 64, 64, 65, 66, 67, 68)
TESSERA_WGMMA(256, fp16, "f16", 128, 128, 129, 130, 131, 132)

#undef TESSERA_WGMMA
#undef TESSERA_LIST_32
#undef TESSERA_BIND_32
#undef TESSERA_LIST_48
#undef TESSERA_BIND_48
#undef TESSERA_LIST_64
#undef TESSERA_BIND_64
#undef TESSERA_LIST_128
#undef TESSERA_BIND_128
#undef TESSERA_REGISTERS_0
#undef TESSERA_REGISTERS_16
#undef TESSERA_REGISTERS_32
#undef TESSERA_REGISTERS_48
#undef TESSERA_REGISTERS_64
#undef TESSERA_REGISTERS_80
#undef TESSERA_REGISTERS_96
#undef TESSERA_REGISTERS_112
#undef TESSERA_BIND_16
// clang-format on

}  // namespace tessera::cuda::ptx
