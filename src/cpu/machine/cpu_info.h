// What the CPU at hand is: its name, instruction sets and caches, as far as kernels and people need them.
#pragma once

#include <cstddef>
#include <string>

namespace tessera::cpu {

// The maker's name, or the architecture when the system does not tell.
std::string model_name();

// The vector instruction sets that this CPU and operating system offer, as in "SSE4.2 AVX2 AVX-512".
std::string instruction_sets();

// Cache sizes in bytes; a usual value where the system does not tell.
struct Caches {
  std::size_t l1 = 32 << 10;
  std::size_t l2 = 1 << 20;
  std::size_t l3 = 8 << 20;
};
const Caches& caches() noexcept;

// Whether a core multiplies two 512-bit vectors per cycle (Intel's servers) and not one (Zen 4): it then wants
// operands faster than a second-level cache gives them.
bool has_two_wide_multipliers() noexcept;

}  // namespace tessera::cpu
