#include "lab/measure/machine/ceilings.h"

#include <algorithm>

#include "cpu/machine/target.h"

namespace tessera::lab {
namespace {

// Plain C++ on vectors of 16 bytes: SSE2 on x86-64 and, with the product and sum fused, NEON on
// aarch64, whose widest cores have four pipes with a latency of 4 cycles.
#if defined(__aarch64__)
constexpr int kSums = 16;
#else
constexpr int kSums = 12;
#endif

float fma_vectors(std::int64_t steps) {
  using Vector [[gnu::vector_size(16)]] = float;
  Vector sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = Vector{} + static_cast<float>(i);
  const Vector x = Vector{} + 0.999F, y = Vector{} + 0.001F;
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sums[i] = sums[i] * x + y;
  }
  for (int i = 1; i < kSums; ++i) sums[0] += sums[i];
  return sums[0][0];
}

// Four streams: one alone leaves some of the hardware's prefetchers idle.
std::uint64_t read_vectors(const std::byte* data, std::size_t bytes) {
  using Line [[gnu::vector_size(64)]] = std::uint64_t;
  constexpr std::size_t kStreams = 4;
  const std::size_t stream = bytes / kStreams;
  Line sums[kStreams] = {};
  for (std::size_t at = 0; at < stream; at += sizeof(Line)) {
    for (std::size_t s = 0; s < kStreams; ++s) {
      sums[s] ^= *reinterpret_cast<const Line*>(data + s * stream + at);
    }
  }
  for (std::size_t s = 1; s < kStreams; ++s) sums[0] ^= sums[s];
  std::uint64_t sum = 0;
  for (std::size_t lane = 0; lane < sizeof(Line) / sizeof(sum); ++lane) sum ^= sums[0][lane];
  return sum;
}

bool has([[maybe_unused]] cpu::Target target) {
  const std::vector<cpu::Target> targets = cpu::available_targets();
  return std::find(targets.begin(), targets.end(), target) != targets.end();
}

Arithmetic fma() {
  Arithmetic result{.name = "fp32_fma", .instructions = "plain", .flops_per_step = 2.0 * 4 * kSums};
  result.run = fma_vectors;
#if defined(__x86_64__)
  if (has(cpu::Target::avx512)) {
    result = {"fp32_fma", "avx512", 2.0 * 16 * x86::kSums, x86::fma_avx512};
  } else if (has(cpu::Target::avx2)) {
    result = {"fp32_fma", "avx2", 2.0 * 8 * x86::kSumsAvx2, x86::fma_avx2};
  }
#else
  if (has(cpu::Target::neon)) result.instructions = "neon";
#endif
  return result;
}

Arithmetic dot() {
  Arithmetic result{.name = "bf16_dot", .instructions = "avx512_bf16"};
#if defined(__x86_64__)
  result.flops_per_step = 2.0 * 32 * x86::kSums;
  if (has(cpu::Target::avx512) && __builtin_cpu_supports("avx512bf16")) result.run = x86::dot_avx512_bf16;
#endif
  result.missing = "the CPU has no AVX512-BF16";
  return result;
}

Arithmetic amx() {
  Arithmetic result{.name = "bf16_amx", .instructions = "amx_bf16"};
#if defined(__x86_64__)
  result.flops_per_step = 2.0 * 16 * 16 * 32 * x86::kTiles;
  if (x86::request_amx_bf16()) result.run = x86::dot_amx_bf16;
#endif
  result.missing = "the CPU has no AMX or the operating system does not enable it";
  return result;
}

}  // namespace

std::vector<Arithmetic> arithmetic_ceilings() { return {fma(), dot(), amx()}; }

Reading reading_ceiling() {
#if defined(__x86_64__)
  if (has(cpu::Target::avx512)) return {"avx512", x86::read_memory_avx512, x86::read_cache_avx512};
#endif
  return {"plain", read_vectors, read_vectors};
}

}  // namespace tessera::lab
