// The two products of cpu.decode in bf16 with vdpbf16ps (AVX512-BF16): two multiplications per
// lane, accumulated in fp32. Probabilities are rounded to bf16 for P V, as standard implementations
// do; their sum is not. Only for head dimensions that are whole vectors of bf16. Included once per
// target; nothing but AVX-512 has it.
#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "cpu/decode/rows-inl.h"

// clang-format off
#if defined(TESSERA_CPU_SIMD_DECODE_BF16_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_SIMD_DECODE_BF16_INL_H
#undef TESSERA_CPU_SIMD_DECODE_BF16_INL_H
#else
#define TESSERA_CPU_SIMD_DECODE_BF16_INL_H
#endif
// clang-format on

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3 && (HWY_COMPILER_GCC || HWY_COMPILER_CLANG)
inline constexpr bool kCompiledBf16Dot = true;
#else
inline constexpr bool kCompiledBf16Dot = false;
#endif

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_TARGET == HWY_AVX3 && (HWY_COMPILER_GCC || HWY_COMPILER_CLANG)
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace tessera::cpu::HWY_NAMESPACE {

using Bf16 = core::BFloat16;
inline constexpr std::int64_t kBf16Lanes = 32;

// 32 elements as they lie: pairs of neighbours in 16 lanes.
HWY_INLINE __m512i load_pairs(const Bf16* from) { return _mm512_loadu_si512(from); }

HWY_INLINE __m512 dot_pairs(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);  // NOLINT: the only conversion there is
}

// s[r][j] = scale * q[r] . k[j], as score_rows; q has rows of `dim` elements.
template <int Rows>
HWY_NOINLINE void score_rows_bf16(const Keys<Bf16>& k, std::int64_t dim, const Bf16* HWY_RESTRICT q,
                                  float scale, float* HWY_RESTRICT s, std::int64_t s_row,
                                  Prefetch& prefetch) {
  const Tag<float> d;
  Prefetch ahead = prefetch;
  constexpr int kPlaces = Rows == 3 ? 4 : Rows;
  constexpr int kKeys = 16 / kPlaces;
  for (std::int64_t j = 0; j < k.count; j += kKeys) {
    const Bf16* key[kKeys];
#pragma GCC unroll 16
    for (int x = 0; x < kKeys; ++x) key[x] = k.row(std::min(j + x, k.count - 1));
    Vector<float> sum[16];
#pragma GCC unroll 16
    for (int x = 0; x < 16; ++x) sum[x] = hn::Zero(d);
    for (std::int64_t c = 0; c < dim; c += kBf16Lanes) {
      ahead.lines<kKeys>();
      __m512i line[Rows];
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) line[r] = load_pairs(q + r * dim + c);
#pragma GCC unroll 16
      for (int x = 0; x < kKeys; ++x) {
        const __m512i element = load_pairs(key[x] + c);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
          sum[r * kKeys + x].raw = dot_pairs(sum[r * kKeys + x].raw, element, line[r]);
        }
      }
    }
    alignas(64) float sums[16];
    hn::Store(hn::Mul(sums_of_lanes<float>(sum), hn::Set(d, scale)), d, sums);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) std::memcpy(s + r * s_row + j, sums + r * kKeys, kKeys * sizeof(float));
  }
  prefetch = ahead;
}

// Probabilities as bf16, in place; `count` is a multiple of a vector.
HWY_NOINLINE void round_to_bf16(float* p, std::int64_t count) {
  auto* to = reinterpret_cast<std::uint8_t*>(p);
  for (std::int64_t x = 0; x < count; x += 16) {
    const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(p + x));  // NOLINT: as above
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 2 * x), rounded);
  }
}

// out = alpha out + p v for columns [column, column + 32 Groups) of Rows rows. block.p holds bf16,
// 0 past the keys.
template <int Rows, int Groups>
HWY_NOINLINE void add_columns_bf16(const Keys<Bf16>& v, std::int64_t column, const ValueBlock<float>& block,
                                   Prefetch& prefetch) {
  const Tag<float> d;
  Prefetch ahead = prefetch;
  __m512 low[Rows][Groups], high[Rows][Groups];  // of each block of 8 columns, the first and the last four
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int g = 0; g < Groups; ++g) low[r][g] = high[r][g] = _mm512_setzero_ps();
  }
  for (std::int64_t j = 0; j < v.count; j += 2) {
    const Bf16* first = v.row(j) + column;
    const Bf16* second = v.row(std::min(j + 1, v.count - 1)) + column;
    ahead.lines<2 * Groups>();
    __m512i value_low[Groups], value_high[Groups];
#pragma GCC unroll 4
    for (int g = 0; g < Groups; ++g) {
      const __m512i a = load_pairs(first + g * kBf16Lanes), b = load_pairs(second + g * kBf16Lanes);
      value_low[g] = _mm512_unpacklo_epi16(a, b);
      value_high[g] = _mm512_unpackhi_epi16(a, b);
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      std::int32_t pair = 0;
      std::memcpy(&pair, reinterpret_cast<const Bf16*>(block.p + r * block.p_row) + j, sizeof(pair));
      const __m512i p = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int g = 0; g < Groups; ++g) {
        low[r][g] = dot_pairs(low[r][g], p, value_low[g]);
        high[r][g] = dot_pairs(high[r][g], p, value_high[g]);
      }
    }
  }
  prefetch = ahead;
  // Back to the order of the columns: 4-column blocks of low and high in turn.
  const __m512i first_half = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second_half = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    const Vector<float> alpha = hn::Set(d, block.alpha[r]);
#pragma GCC unroll 4
    for (int g = 0; g < Groups; ++g) {
      float* to = block.out + r * block.out_row + column + g * kBf16Lanes;
      const Vector<float> a{_mm512_permutex2var_ps(low[r][g], first_half, high[r][g])};
      const Vector<float> b{_mm512_permutex2var_ps(low[r][g], second_half, high[r][g])};
      hn::StoreU(hn::MulAdd(hn::LoadU(d, to), alpha, a), d, to);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, to + 16), alpha, b), d, to + 16);
    }
  }
}

// out = alpha out + p v for Rows rows, with bf16 probabilities in block.p.
template <int Rows>
HWY_NOINLINE void add_values_bf16(const Keys<Bf16>& v, std::int64_t dim, const ValueBlock<float>& block,
                                  Prefetch& ahead) {
  constexpr int kGroups = Rows <= 2 ? 4 : 2;
  std::int64_t c = 0;
  for (; c + kGroups * kBf16Lanes <= dim; c += kGroups * kBf16Lanes) {
    add_columns_bf16<Rows, kGroups>(v, c, block, ahead);
  }
  for (; c < dim; c += kBf16Lanes) add_columns_bf16<Rows, 1>(v, c, block, ahead);
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_POP_ATTRIBUTES
#endif

#endif

#endif  // per-target include guard
