// The micro-kernel of every product: a block of accumulators in registers; scalars of one operand
// are broadcast against vectors of the other. Included once per target.
#include <hwy/highway.h>

#include <cstdint>
#include <utility>

#include "core/band.h"
#include "cpu/flash2/vector/vector-inl.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_PRODUCT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_PRODUCT_INL_H
#undef TESSERA_CPU_SIMD_PRODUCT_INL_H
#else
#define TESSERA_CPU_SIMD_PRODUCT_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

// Rows and vectors of the register block. 32 registers hold 4 x 4 (or 8 x 2, 8 x 3) accumulators
// and their operands, 16 registers 4 x 2.
#if HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM
inline constexpr int kRows = 4;
inline constexpr int kVectors = 4;
#else
inline constexpr int kRows = 4;
inline constexpr int kVectors = 2;
#endif

// Rows of a register block that is fewer vectors wide: as many accumulators. Four alone would wait
// for each other: a multiply-add takes four cycles, and a CPU starts one or two in each.
template <int Vectors>
inline constexpr int kRowsOf = kRows * (Vectors < kVectors ? kVectors / Vectors : 1);

// How often the loop of `multiply` is unrolled. With eight, a CPU predicts the end of the loop at
// head_dim 128 and begins with the next block meanwhile. Measured with AVX-512
// (docs/notebook/cpu.md); elsewhere it gains nothing.
inline constexpr int kUnroll = HWY_TARGET == HWY_AVX3 ? 8 : 2;

// How the broadcast operand is walked: element (row, k) is at row * stride + k, or at k * stride +
// row.
enum class Walk { rows, columns };

// accumulator[r][v] += sum over k of a(r, k) * b[k * b_row + v lanes]
template <Walk W, int Rows, int Vectors, typename A>
HWY_INLINE void multiply(Block<A, Rows, Vectors>& accumulator, const A* HWY_RESTRICT a, std::int64_t a_stride,
                         const A* HWY_RESTRICT b, std::int64_t b_row, std::int64_t depth) {
  const Tag<A> d;
#pragma GCC unroll kUnroll
  for (std::int64_t k = 0; k < depth; ++k) {
    TESSERA_LINE(A, line, Vectors);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) line[v] = hn::LoadU(d, b + v * lanes<A>());
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Vector<A> factor = hn::Set(d, W == Walk::rows ? a[r * a_stride] : a[r]);
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) accumulator[r][v] = hn::MulAdd(factor, line[v], accumulator[r][v]);
    }
    a += W == Walk::rows ? 1 : a_stride;
    b += b_row;
  }
}

// body(integral_constant<int, R>, row) for blocks of rows that cover [0, count): kRows at a time,
// then halves.
template <int Rows = kRows, typename Body>
HWY_INLINE void for_each_row_block(std::int64_t count, const Body& body, std::int64_t row = 0) {
  for (; row + Rows <= count; row += Rows) body(std::integral_constant<int, Rows>(), row);
  if constexpr (Rows > 1) {
    if (row < count) for_each_row_block<Rows / 2>(count, body, row);
  }
}

// C (rows x vectors) += A B with the register block above. W says how A is walked. With
// `skip_zeros` the terms are skipped in which A (W = rows) or B (W = columns) is 0, so that a NaN
// on the other side does not spread. Finite sums have the same bits with and without: which of the
// two a sum gets may depend on the number of threads.
template <Walk W, typename A>
class Accumulate {
 public:
  Accumulate(const A* a, std::int64_t a_stride, const A* b, std::int64_t b_row, A* c, std::int64_t c_row,
             bool skip_zeros)
      : a_(a), a_stride_(a_stride), b_(b), b_row_(b_row), c_(c), c_row_(c_row), skip_zeros_(skip_zeros) {}

  // For `vectors` vectors of columns and all rows. depth_of(first_row, rows) gives the part of the
  // contraction that matters to a group of rows.
  template <typename DepthOf>
  void run(std::int64_t rows, std::int64_t vectors, const DepthOf& depth_of) {
    for (std::int64_t v = 0; v < vectors;) {
      const std::int64_t left = vectors - v;
      if (left >= kVectors) {
        column<kVectors>(rows, v, depth_of);
        v += kVectors;
      } else if (left >= 2 && kVectors > 2) {
        column<2>(rows, v, depth_of);
        v += 2;
      } else {
        column<1>(rows, v, depth_of);
        ++v;
      }
    }
  }

 private:
  template <int Vectors, typename DepthOf>
  HWY_INLINE void column(std::int64_t rows, std::int64_t v, const DepthOf& depth_of) {
    for_each_row_block(rows, [&](auto count, std::int64_t r) HWY_ATTR {
      constexpr int kCount = decltype(count)::value;
      const core::Interval depth = depth_of(r, kCount);
      if (depth.empty()) return;
      if (skip_zeros_) {
        block<kCount, Vectors, true>(r, v, depth);
      } else {
        block<kCount, Vectors, false>(r, v, depth);
      }
    });
  }

  template <int Count, int Vectors, bool SkipZeros>
  HWY_NOINLINE void block(std::int64_t r, std::int64_t v, const core::Interval& depth) {
    const Tag<A> d;
    A* c = c_ + r * c_row_ + v * lanes<A>();
    const A* a = W == Walk::rows ? a_ + r * a_stride_ + depth.begin : a_ + depth.begin * a_stride_ + r;
    const A* b = b_ + depth.begin * b_row_ + v * lanes<A>();
    TESSERA_BLOCK(A, sum, Count, Vectors);
#pragma GCC unroll 8
    for (int i = 0; i < Count; ++i) {
#pragma GCC unroll 8
      for (int x = 0; x < Vectors; ++x) sum[i][x] = hn::Zero(d);  // added at the end: short sums
    }
    if constexpr (SkipZeros) {
      multiply_skipping_zeros<Count, Vectors>(sum, a, b, depth.length());
    } else {
      multiply<W>(sum, a, a_stride_, b, b_row_, depth.length());
    }
#pragma GCC unroll 8
    for (int i = 0; i < Count; ++i) {
#pragma GCC unroll 8
      for (int x = 0; x < Vectors; ++x) {
        A* to = c + i * c_row_ + x * lanes<A>();
        hn::StoreU(hn::Add(hn::LoadU(d, to), sum[i][x]), d, to);
      }
    }
  }

  template <int Count, int Vectors>
  void multiply_skipping_zeros(Block<A, Count, Vectors>& sum, const A* a, const A* b, std::int64_t depth) {
    const Tag<A> d;
    for (std::int64_t k = 0; k < depth; ++k) {
      for (int i = 0; i < Count; ++i) {
        const A factor = W == Walk::rows ? a[i * a_stride_ + k] : a[k * a_stride_ + i];
        if (W == Walk::rows && factor == 0) continue;
        for (int x = 0; x < Vectors; ++x) {
          const Vector<A> line = hn::LoadU(d, b + k * b_row_ + x * lanes<A>());
          const Vector<A> with_term = hn::MulAdd(hn::Set(d, factor), line, sum[i][x]);
          const bool zeros_of_line = W == Walk::columns;
          sum[i][x] =
              zeros_of_line ? hn::IfThenElse(hn::Eq(line, hn::Zero(d)), sum[i][x], with_term) : with_term;
        }
      }
    }
  }

  const A* a_;
  std::int64_t a_stride_;
  const A* b_;
  std::int64_t b_row_;
  A* c_;
  std::int64_t c_row_;
  bool skip_zeros_;
};

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
