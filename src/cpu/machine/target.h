// The vector instruction sets that the CPU kernels are compiled for, and which one is used.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/tensor.h"

namespace tessera::cpu {

enum class Target : std::uint8_t {
  portable,  // plain C++, where there is nothing better
  sse4,
  avx2,
  avx512,
  avx512_bf16,  // AVX-512, and vdpbf16ps for bf16
  amx,          // the same, and AMX-BF16 tiles for bf16
  neon,
  sve,  // vectors of any length
};

// Its name, as TESSERA_TARGET takes it. Never null.
const char* name(Target target) noexcept;

// What this build has and this CPU and operating system can execute, best first; never empty.
const std::vector<Target>& available_targets();

// The best available target, or the one that TESSERA_TARGET names (core/base/environment.h). Throws Error
// (invalid_argument) when it names none that is available.
Target active_target();

// What a target uses for elements of a type: its own instructions for bf16, where it has them, else the vectors it
// is built on.
Target target_for(Target target, DType dtype) noexcept;

}  // namespace tessera::cpu
