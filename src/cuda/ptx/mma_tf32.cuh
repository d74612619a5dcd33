// fp32 products on the tensor cores: each number as the sum of two TF32 numbers.
//
// An m16k8 A operand: a[0] at row l / 4, column l % 4; a[1] eight rows below; a[2], a[3] the same, four columns to the right.
// A k8n8 B operand: b0 at row l % 4, column l / 4; b1 four rows below. The accumulator is that of ptx/mma.cuh.
#pragma once

#include <cstdint>

namespace tessera::cuda::ptx {

// x = high + low, up to one unit in the last place of x. `high` is rounded to nearest, so that `low` has either sign and what
// is lost of it adds up to nothing over a sum. The tensor cores read the upper 19 bits of a number: `low` may keep the rest.
// (cvt.rna.tf32 is no instruction: it becomes five on sm_80 and sm_90, which mostly look after infinities. Here an infinity
// becomes infinity + NaN.)
__device__ __forceinline__ void split_tf32(float x, std::uint32_t& high, std::uint32_t& low) {
  high = (__float_as_uint(x) + 0x1000U) & 0xFFFFE000U;
  low = __float_as_uint(x - __uint_as_float(high));
}

// d += a b for 16 x 8 times 8 x 8. The tensor cores cut off instead of rounding when they add to d: sums of many steps
// need another home. PTX ISA: mma.sync.m16n8k8 with .tf32. sm_80 and newer.
__device__ __forceinline__ void mma_tf32(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace tessera::cuda::ptx
