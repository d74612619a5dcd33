// The loops of `tessera peak` for AVX2 and AVX-512. Each function names its own instruction set, so
// that no other code of the program is compiled for it.
#include "lab/measure/machine/ceilings.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace tessera::lab::x86 {

[[gnu::target("avx2,fma")]] float fma_avx2(std::int64_t steps) {
  __m256 sums[kSumsAvx2];
  for (int i = 0; i < kSumsAvx2; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 x = _mm256_set1_ps(0.999F), y = _mm256_set1_ps(0.001F);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kSumsAvx2; ++i) sums[i] = _mm256_fmadd_ps(sums[i], x, y);
  }
  for (int i = 1; i < kSumsAvx2; ++i) sums[0] = _mm256_add_ps(sums[0], sums[i]);
  return _mm256_cvtss_f32(sums[0]);
}

[[gnu::target("avx512f")]] float fma_avx512(std::int64_t steps) {
  __m512 sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 x = _mm512_set1_ps(0.999F), y = _mm512_set1_ps(0.001F);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sums[i] = _mm512_fmadd_ps(sums[i], x, y);
  }
  for (int i = 1; i < kSums; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  return _mm512_cvtss_f32(sums[0]);
}

[[gnu::target("avx512f,avx512bf16")]] float dot_avx512_bf16(std::int64_t steps) {
  __m512 sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3F803F80);  // NOLINT: the only way between vector types
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], ones, ones);
  }
  for (int i = 1; i < kSums; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  return _mm512_cvtss_f32(sums[0]);
}

namespace {

// Eight streams, each fetched `ahead` bytes before it is read; 0: not fetched.
template <std::size_t ahead>
[[gnu::target("avx512f"), gnu::always_inline]] inline std::uint64_t read_streams(const std::byte* data,
                                                                                 std::size_t bytes) {
  constexpr std::size_t kStreams = 8;
  const std::size_t stream = bytes / kStreams;
  __m512i sums[kStreams];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (std::size_t at = 0; at < stream; at += sizeof(__m512i)) {
#pragma GCC unroll 8
    for (std::size_t s = 0; s < kStreams; ++s) {
      const std::byte* line = data + s * stream + at;
      if constexpr (ahead > 0) __builtin_prefetch(line + ahead, 0, 2);
      sums[s] = _mm512_xor_si512(sums[s], _mm512_loadu_si512(line));
    }
  }
  for (std::size_t s = 1; s < kStreams; ++s) sums[0] = _mm512_xor_si512(sums[0], sums[s]);
  std::uint64_t lanes[8];
  _mm512_storeu_si512(lanes, sums[0]);
  return lanes[0] ^ lanes[1] ^ lanes[2] ^ lanes[3] ^ lanes[4] ^ lanes[5] ^ lanes[6] ^ lanes[7];
}

}  // namespace

// Fetching 1 KiB ahead: 30 GB/s with one thread where one stream without gave 23-26 (Zen 4,
// 2026-11-15). In a cache it would only take turns with the loads.
[[gnu::target("avx512f")]] std::uint64_t read_memory_avx512(const std::byte* data, std::size_t bytes) {
  return read_streams<1024>(data, bytes);
}
[[gnu::target("avx512f")]] std::uint64_t read_cache_avx512(const std::byte* data, std::size_t bytes) {
  return read_streams<0>(data, bytes);
}

}  // namespace tessera::lab::x86
#endif
