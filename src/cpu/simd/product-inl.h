// The micro-kernel of every product: a block of accumulators in registers, scalars of one operand broadcast
// against vectors of the other. Included once per target.
#include <hwy/highway.h>

#include <cstdint>
#include <utility>

#include "cpu/simd/vector-inl.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_PRODUCT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_PRODUCT_INL_H
#undef TESSERA_CPU_SIMD_PRODUCT_INL_H
#else
#define TESSERA_CPU_SIMD_PRODUCT_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // the portable kernel serves there
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Rows and vectors of the register block. 32 registers hold 4 x 4 (or 8 x 2, 8 x 3) accumulators and their
// operands, 16 registers 4 x 2.
#if HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM
inline constexpr int kRows = 4;
inline constexpr int kVectors = 4;
#else
inline constexpr int kRows = 4;
inline constexpr int kVectors = 2;
#endif

// How the broadcast operand is walked: element (row, k) is at row * stride + k, or at k * stride + row.
enum class Walk { rows, columns };

// accumulator[r][v] += sum over k of a(r, k) * b[k * b_row + v lanes]
template <Walk W, int Rows, int Vectors, typename A>
HWY_INLINE void multiply(Vector<A> (&accumulator)[Rows][Vectors], const A* HWY_RESTRICT a,
                         std::int64_t a_stride, const A* HWY_RESTRICT b, std::int64_t b_row,
                         std::int64_t depth) {
  const Tag<A> d;
#pragma GCC unroll 2
  for (std::int64_t k = 0; k < depth; ++k) {
    Vector<A> line[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) line[v] = hn::LoadU(d, b + v * lanes<A>());
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Vector<A> factor = hn::Set(d, W == Walk::rows ? a[r * a_stride] : a[r]);
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) accumulator[r][v] = hn::MulAdd(factor, line[v], accumulator[r][v]);
    }
    a += W == Walk::rows ? 1 : a_stride;
    b += b_row;
  }
}

// body(integral_constant<int, R>, row) for blocks of rows that cover [0, count): kRows at a time, then halves.
template <int Rows = kRows, typename Body>
HWY_INLINE void for_each_row_block(std::int64_t count, const Body& body, std::int64_t row = 0) {
  for (; row + Rows <= count; row += Rows) body(std::integral_constant<int, Rows>(), row);
  if constexpr (Rows > 1) {
    if (row < count) for_each_row_block<Rows / 2>(count, body, row);
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
