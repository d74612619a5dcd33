// What the bf16 engines share beside their products: pairs of bf16 in 32-bit lanes, the
// exponential, packing. Only for AVX-512 with AVX512-BF16; included once, for Highway's target
// AVX3.
//
// A product of bf16 runs over pairs of its contraction index: a 32-bit word holds elements 2k and
// 2k + 1 of one operand and meets the same two of the other. One operand (A) has its pairs
// broadcast or as rows of a tile, the other (B) has one pair in each lane: "pairs x lanes". A
// Multiplier is what multiplies them: vdpbf16ps (dot-inl.h) or AMX (amx-inl.h).
//
// Words: a vector is 16 lanes of 32 bits. A strip is the vectors of rows that a multiplier takes at
// once around the diagonal. A panel is some vectors of columns of a result; panels lie one after
// the other. A line is what a matrix with rows of queries in the lanes has per key or column of
// head_dim. `interleaved` means pairs of neighbouring rows.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/base/float16.h"
#include "cpu/flash2/vector/exp2_constants.h"
#include "cpu/flash2/vector/vector-inl.h"
#include "cpu/head_view.h"

// Around every namespace and on every lambda below: AVX-512 as Highway has it, and AVX512-BF16. By
// pragmas and not by compiler flags, so that nothing that other files share is compiled for it.
#define TESSERA_BF16_ATTR __attribute__((target(HWY_TARGET_STR ",avx512bf16")))
#define TESSERA_BF16_BEGIN HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
#define TESSERA_BF16_END HWY_POP_ATTRIBUTES

TESSERA_BF16_BEGIN
namespace tessera::cpu::HWY_NAMESPACE::bf16 {

using core::BFloat16;
using Pair = std::uint32_t;

inline constexpr std::int64_t kLanes = 16;

constexpr std::int64_t round_up(std::int64_t x, std::int64_t step) { return (x + step - 1) / step * step; }
constexpr std::int64_t round_down(std::int64_t x, std::int64_t step) { return x / step * step; }

// The distance of two lines of `lanes` 32-bit lanes, a multiple of 16: an odd number of 128 bytes,
// and of as many 16-bit elements an odd number of 64. Lines at a power of two fall into few sets of
// the first-level cache, which then cannot hold a column of them.
constexpr std::int64_t line_stride(std::int64_t lanes) { return round_up(lanes - 32, 64) + 32; }

template <typename Multiplier>
inline constexpr std::int64_t kPanelLanes = Multiplier::kPanel * kLanes;

// The result C of a product, fp32. Rows lie `row` apart; panels of Multiplier::kPanel vectors lie
// `panel` apart. The product is added to C times `alpha`, per lane (null: 1), or, where C is
// `fresh`, written over it.
struct Accumulators {
  float* data;
  std::int64_t row;
  std::int64_t panel;
  const float* alpha = nullptr;
  bool fresh = false;
};

// 2^x: x = n + f with |f| <= 1/2 and a polynomial of degree 5. Its 2 ULP are more exact than P as
// bf16 needs, but the sums behind an fp32 LSE need them. Exactly 0 for x <= -126, -infinity
// included, without an underflow, which some CPUs handle in microcode. NaN stays NaN.
HWY_INLINE __m512 exp2(__m512 x) {
  const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0F), _CMP_NLE_UQ);
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 y = _mm512_set1_ps(kExp2Polynomial[5]);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(kExp2Polynomial[4]));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(kExp2Polynomial[3]));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(kExp2Polynomial[2]));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(kExp2Polynomial[1]));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(kExp2Polynomial[0]));
  return _mm512_maskz_scalef_ps(normal, y, n);
}

// a, then b, as bf16, rounded to nearest even.
HWY_INLINE __m512i to_bf16(__m512 a, __m512 b) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
}

// Lane l of the result: element l of each half.
HWY_INLINE __m512i interleave(__m512i halves) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, halves);
}

// Lane l of the result: (a[l], b[l]) as bf16.
HWY_INLINE __m512i to_pairs(__m512 a, __m512 b) { return interleave(to_bf16(a, b)); }

// The two halves as 16 elements each at `line` and `line + stride`.
HWY_INLINE void store_lines(__m512i halves, std::uint16_t* line, std::int64_t stride) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(line), _mm512_castsi512_si256(halves));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(line + stride), _mm512_extracti64x4_epi64(halves, 1));
}

// The two elements of every pair as fp32.
HWY_INLINE __m512 first_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
HWY_INLINE __m512 second_of(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
}

// 16 bf16 as fp32.
HWY_INLINE __m512 load_bf16(const std::uint16_t* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// to[0 .. count) = scale * from[0 .. count), as bf16. Returns whether all values are finite.
HWY_INLINE bool store_row_bf16(const float* from, std::int64_t count, float scale, BFloat16* to) {
  const __m512 factor = _mm512_set1_ps(scale);
  __m512 check = _mm512_setzero_ps();  // x * 0 is 0 for finite x, else NaN
  for (std::int64_t c = 0; c < count; c += kLanes) {
    const std::int64_t left = count - c;
    const __mmask16 valid = left >= kLanes ? 0xFFFF : static_cast<__mmask16>((1U << left) - 1);
    const __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(valid, from + c), factor);
    check = _mm512_fmadd_ps(x, _mm512_setzero_ps(), check);
    _mm256_mask_storeu_epi16(to + c, valid, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  }
  return _mm512_cmp_ps_mask(check, _mm512_setzero_ps(), _CMP_NEQ_UQ) == 0;
}

// ---- packing ------------------------------------------------------------------------------------

// Rows of bf16 without gaps, each `row` elements long (even). Elements past a tensor's dimension
// are 0.
struct PackedRows {
  std::uint16_t* data;
  std::int64_t row;
};

// Row r of `to` = the `dim` elements at row_of(r), xor `sign` (0x8000 changes the sign), then
// zeros.
template <typename RowOf>
HWY_INLINE void copy_rows(std::int64_t count, std::int64_t dim, std::uint16_t sign, const PackedRows& to,
                          const RowOf& row_of) {
  const __m512i flip = _mm512_set1_epi16(static_cast<short>(sign));
  // Not for_each_row: it is compiled for fewer instructions, and this function could not be inlined
  // into it.
  constexpr std::int64_t kAhead = 12;
  for (std::int64_t r = 0; r < std::min(kAhead, count); ++r) prefetch_row(row_of(r), dim);
  for (std::int64_t r = 0; r < count; ++r) {
    if (r + kAhead < count) prefetch_row(row_of(r + kAhead), dim);
    const BFloat16* from = row_of(r);
    std::uint16_t* row = to.data + r * to.row;
    for (std::int64_t c = 0; c < to.row; c += 32) {
      const std::int64_t left = dim - c, room = to.row - c;
      const __mmask32 valid = left >= 32 ? ~0U : left <= 0 ? 0U : (1U << left) - 1;
      const __mmask32 stored = room >= 32 ? ~0U : (1U << room) - 1;
      const __m512i x = _mm512_maskz_loadu_epi16(valid, from + c);
      _mm512_mask_storeu_epi16(row + c, stored,
                               _mm512_maskz_xor_epi32(0xFFFF, x, _mm512_maskz_mov_epi16(valid, flip)));
    }
  }
}

// to[c][r] = pair c of row r: the B operand of a contraction over the columns of `from`. `count`
// rows, a multiple of 4; `to_row` pairs from one c to the next.
HWY_INLINE void transpose_pairs(const PackedRows& from, std::int64_t count, Pair* to, std::int64_t to_row) {
  transpose(reinterpret_cast<const float*>(from.data), from.row / 2, count, from.row / 2,
            reinterpret_cast<float*>(to), to_row);
}

// to[r / 2][c] = (from[r][c], from[r + 1][c]): the B operand of a contraction over the rows of
// `from`. `count` rows, a multiple of 2; `to_row` pairs, a multiple of 16 and at least from.row,
// from one pair of rows to the next.
HWY_INLINE void interleave_rows(const PackedRows& from, std::int64_t count, Pair* to, std::int64_t to_row) {
  for (std::int64_t r = 0; r < count; r += 2) {
    const std::uint16_t* a = from.data + r * from.row;
    const std::uint16_t* b = a + from.row;
    Pair* row = to + r / 2 * to_row;
    for (std::int64_t c = 0; c < to_row; c += kLanes) {
      const std::int64_t left = from.row - c;
      const __mmask16 valid = left >= kLanes ? 0xFFFF
                              : left <= 0    ? 0
                                             : static_cast<__mmask16>((1U << left) - 1);
      const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(valid, a + c));
      const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(valid, b + c));
      _mm512_storeu_si512(row + c, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
}

// Keys of a sequence with room for what a multiplier reads past them.
template <typename Multiplier>
constexpr std::int64_t padded_keys(std::int64_t keys) {
  return round_up(keys, Multiplier::kRowStep) + Multiplier::kRowStep;
}

// Row j - keys.begin of `to` = row j of a head's K or V; then zeros, as many as padded_keys says.
template <typename Multiplier>
void pack_keys(const HeadView& head, const core::View& view, std::int64_t dim, const core::Interval& keys,
               const PackedRows& to) {
  const std::int64_t count = keys.length();
  copy_rows(count, dim, 0, to, [&](std::int64_t j) TESSERA_BF16_ATTR {
    return head.key_row<const BFloat16>(view, keys.begin + j);
  });
  std::memset(to.data + count * to.row, 0,
              static_cast<std::size_t>((padded_keys<Multiplier>(count) - count) * to.row) * sizeof(*to.data));
}

// The same rows transposed, as the A operand of a contraction over keys; `staged` has room for
// kStagedKeys.
inline constexpr std::int64_t kStagedKeys = 64;

template <typename Multiplier>
void pack_transposed(const HeadView& head, const core::View& view, std::int64_t dim,
                     const core::Interval& keys, const PackedRows& staged, Pair* to) {
  const std::int64_t stride = Multiplier::transposed_stride(staged.row);
  for (std::int64_t begin = keys.begin; begin < keys.end; begin += kStagedKeys) {
    const std::int64_t count = std::min(kStagedKeys, keys.end - begin),
                       padded = round_up(count, Multiplier::kDepth);
    copy_rows(count, dim, 0, staged, [&](std::int64_t j) TESSERA_BF16_ATTR {
      return head.key_row<const BFloat16>(view, begin + j);
    });
    std::memset(staged.data + count * staged.row, 0,
                static_cast<std::size_t>((padded - count) * staged.row) * sizeof(*staged.data));
    Multiplier::pack_transposed(staged, padded,
                                to + Multiplier::transposed_offset(stride, begin - keys.begin));
  }
}

// Whether all values of the rows are finite.
HWY_INLINE bool all_finite(const PackedRows& rows, std::int64_t count) {
  __mmask32 bad = 0;
  const __m512i exponent = _mm512_set1_epi16(0x7F80);
  const std::int64_t elements = count * rows.row;
  for (std::int64_t i = 0; i < elements; i += 32) {
    const std::int64_t left = elements - i;
    const __mmask32 valid = left >= 32 ? ~0U : (1U << left) - 1;
    const __m512i x = _mm512_and_si512(_mm512_maskz_loadu_epi16(valid, rows.data + i), exponent);
    bad |= _mm512_cmpeq_epi16_mask(x, exponent);
  }
  return bad == 0;
}

}  // namespace tessera::cpu::HWY_NAMESPACE::bf16
TESSERA_BF16_END
