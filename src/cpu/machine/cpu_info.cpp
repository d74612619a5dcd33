#include "cpu/machine/cpu_info.h"

#include <unistd.h>

#include <fstream>

namespace tessera::cpu {

std::string model_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
#if defined(__x86_64__)
  return "x86-64 CPU";
#elif defined(__aarch64__)
  return "AArch64 CPU";
#else
  return "CPU";
#endif
}

std::string instruction_sets() {
  std::string result;
  [[maybe_unused]] auto add = [&result](bool present, const char* name) {
    if (present) result += (result.empty() ? "" : " ") + std::string(name);
  };
#if defined(__x86_64__)
  add(__builtin_cpu_supports("sse4.2"), "SSE4.2");
  add(__builtin_cpu_supports("avx2"), "AVX2");
  add(__builtin_cpu_supports("fma"), "FMA");
  add(__builtin_cpu_supports("avx512f"), "AVX-512");
  add(__builtin_cpu_supports("avx512bf16"), "AVX512-BF16");
#elif defined(__aarch64__)
  add(true, "NEON");
#endif
  return result;
}

namespace {

Caches ask_caches() noexcept {
  Caches result;
  auto take = [](std::size_t& size, int name) {
    const long value = sysconf(name);
    if (value > 0) size = static_cast<std::size_t>(value);
  };
#ifdef _SC_LEVEL1_DCACHE_SIZE
  take(result.l1, _SC_LEVEL1_DCACHE_SIZE);
  take(result.l2, _SC_LEVEL2_CACHE_SIZE);
  take(result.l3, _SC_LEVEL3_CACHE_SIZE);
#endif
  return result;
}

}  // namespace

const Caches& caches() noexcept {
  static const Caches found = ask_caches();  // every call needs it, and some systems read files for it
  return found;
}

}  // namespace tessera::cpu
