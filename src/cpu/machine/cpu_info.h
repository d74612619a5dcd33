// Facts about this CPU: its name, instruction sets and caches.
#pragma once

#include <cstddef>
#include <string>

namespace tessera::cpu {

// The name that the maker gave it, or the architecture when the system does not know it.
std::string model_name();

// The vector instruction sets of this CPU and operating system, as in "SSE4.2 AVX2 AVX-512".
std::string instruction_sets();

// Cache sizes in bytes; a usual value where the system does not know them.
struct Caches {
  std::size_t l1 = 32 << 10;
  std::size_t l2 = 1 << 20;
  std::size_t l3 = 8 << 20;
};
const Caches& caches() noexcept;

// Whether a core multiplies two 512-bit vectors per cycle (Intel's servers, Zen 5) instead of one
// (Zen 4, Intel's clients): it then needs operands faster than a second-level cache delivers them.
// Measured once per process, in some 50 µs, because no CPUID leaf says so.
bool has_two_avx512_units() noexcept;

}  // namespace tessera::cpu
