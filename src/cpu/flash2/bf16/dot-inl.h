// Products of bf16 on vdpbf16ps: pairs of A are broadcast against vectors of pairs of B, with a
// block of fp32 accumulators in registers. Included once, for Highway's target AVX3.
#pragma once

#include "core/band.h"
#include "cpu/flash2/bf16/pairs-inl.h"
#include "cpu/flash2/vector/product-inl.h"

TESSERA_BF16_BEGIN
namespace tessera::cpu::HWY_NAMESPACE::bf16 {

struct Dot {
  static constexpr std::int64_t kDepth = 2;    // contractions are multiples of this
  static constexpr std::int64_t kRowStep = 2;  // rows of A that a product touches: a multiple of this
  static constexpr std::int64_t kStrip = 1;    // vectors of rows taken at once around the diagonal
  static constexpr std::int64_t kPanel = 4;    // vectors of a panel of accumulators
  static constexpr bool kStoresSums = false;   // whether product() leaves its sums in memory

  // What a thread does before and after it uses the multiplier.
  struct Session {};

  // K^T or V^T as A operand, packed for a contraction over keys: pair (c, j / 2) of `keys` rows.
  static std::int64_t transposed_size(std::int64_t keys, std::int64_t dim) {
    return round_up(keys, kDepth) / 2 * round_up(dim, kLanes);
  }
  static void pack_transposed(const PackedRows& rows, std::int64_t keys, Pair* to) {
    interleave_rows(rows, keys, to, transposed_stride(rows.row));
  }
  static std::int64_t transposed_stride(std::int64_t dim) { return round_up(dim, kLanes); }
  static std::int64_t transposed_offset(std::int64_t stride, std::int64_t key) { return key / 2 * stride; }
  static Pair transposed_pair(const Pair* packed, std::int64_t stride, std::int64_t c, std::int64_t pair) {
    return packed[pair * stride + c];
  }

  // Sums over `pairs` of A (rows) times B, handed to epilogue(row, vector, sum) in blocks:
  // sum[i][x] is that of row + i and vector + x. `to` is for multipliers that store sums.
  template <int Vectors, typename Epilogue>
  static HWY_INLINE void product(const Pair* a, std::int64_t a_row, const Pair* b, std::int64_t b_row,
                                 std::int64_t pairs, std::int64_t rows, float* /*to*/,
                                 std::int64_t /*to_row*/, const Epilogue& epilogue) {
    constexpr int kBlock = Vectors > 2 ? 4 : 8;
    std::int64_t r = 0;
    for (; r + kBlock <= rows; r += kBlock) {
      product_block<kBlock, Vectors>(a + r * a_row, a_row, b, b_row, pairs, r, epilogue);
    }
    for (; r < rows; r += 2) product_block<2, Vectors>(a + r * a_row, a_row, b, b_row, pairs, r, epilogue);
  }

  // C += A B for `rows` rows and `vectors` vectors. range_of(r, count) gives the pairs that matter
  // to rows r .. r + count.
  template <Walk W, typename RangeOf>
  static HWY_INLINE void accumulate(const Pair* a, std::int64_t a_stride, const Pair* b, std::int64_t b_row,
                                    const Accumulators& c, std::int64_t rows, std::int64_t vectors,
                                    const RangeOf& range_of) {
    std::int64_t v = 0;
    auto column = [&]<int Vectors, int Block>() TESSERA_BF16_ATTR {
      const Pair* lines = b + v * kLanes;
      Accumulators to = c;
      to.data += v / kPanel * c.panel + v % kPanel * kLanes;
      if (c.alpha != nullptr) to.alpha += v * kLanes;
      auto one = [&]<int Count>(std::int64_t r) TESSERA_BF16_ATTR {
        const core::Interval range = range_of(r, Count);
        const Pair* first = W == Walk::rows ? a + r * a_stride + range.begin : a + range.begin * a_stride + r;
        if (range.begin < range.end) {
          accumulate_block<W, Count, Vectors>(first, a_stride, lines + range.begin * b_row, b_row,
                                              range.end - range.begin, to, r);
        }
      };
      std::int64_t r = 0;
      for (; r + Block <= rows; r += Block) one.template operator()<Block>(r);
      for (; r + 2 <= rows; r += 2) one.template operator()<2>(r);
      if (r < rows) one.template operator()<1>(r);
      v += Vectors;
    };
    while (v + 4 <= vectors) column.template operator()<4, 4>();
    while (v + 2 <= vectors) column.template operator()<2, 8>();
    if (v < vectors) column.template operator()<1, 8>();
  }

 private:
  template <Walk W, int Rows, int Vectors>
  static HWY_INLINE void multiply(__m512 (&sum)[Rows][Vectors], const Pair* HWY_RESTRICT a,
                                  std::int64_t a_stride, const Pair* HWY_RESTRICT b, std::int64_t b_row,
                                  std::int64_t pairs) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm512_setzero_ps();
    }
#pragma GCC unroll 2
    for (std::int64_t k = 0; k < pairs; ++k) {
      __m512i line[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) line[v] = _mm512_loadu_si512(b + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const __m512i factor = _mm512_set1_epi32(static_cast<int>(W == Walk::rows ? a[r * a_stride] : a[r]));
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
          sum[r][v] = _mm512_dpbf16_ps(sum[r][v], reinterpret_cast<__m512bh>(factor),
                                       reinterpret_cast<__m512bh>(line[v]));
        }
      }
      a += W == Walk::rows ? 1 : a_stride;
      b += b_row;
    }
  }

  template <int Rows, int Vectors, typename Epilogue>
  static HWY_NOINLINE void product_block(const Pair* a, std::int64_t a_row, const Pair* b, std::int64_t b_row,
                                         std::int64_t pairs, std::int64_t row, const Epilogue& epilogue) {
    __m512 sum[Rows][Vectors];
    multiply<Walk::rows>(sum, a, a_row, b, b_row, pairs);
    epilogue(row, 0, sum);
  }

  template <Walk W, int Rows, int Vectors>
  static HWY_NOINLINE void accumulate_block(const Pair* a, std::int64_t a_stride, const Pair* b,
                                            std::int64_t b_row, std::int64_t pairs, const Accumulators& c,
                                            std::int64_t row) {
    __m512 sum[Rows][Vectors];
    multiply<W>(sum, a, a_stride, b, b_row, pairs);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const __m512 factor = c.alpha == nullptr ? _mm512_set1_ps(1.0F) : _mm512_loadu_ps(c.alpha + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        float* to = c.data + (row + r) * c.row + v * kLanes;
        _mm512_storeu_ps(to, c.fresh ? sum[r][v] : _mm512_fmadd_ps(_mm512_loadu_ps(to), factor, sum[r][v]));
      }
    }
  }
};

}  // namespace tessera::cpu::HWY_NAMESPACE::bf16
TESSERA_BF16_END
