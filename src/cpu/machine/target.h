// The vector instruction sets that the CPU kernels are compiled for, and the one that is used. The
// files of this folder describe the CPU (target, cpu_info, cores) or run work on it (thread_pool,
// parallel_for, arena, float_environment).
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/tensor.h"

namespace tessera::cpu {

enum class Target : std::uint8_t {
  portable,  // plain C++, where there are no vectors
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

// The targets that this build has and this CPU and operating system can execute, best first; never
// empty.
const std::vector<Target>& available_targets();

// The best available target, or the one that TESSERA_TARGET names (core/base/environment.h). Throws
// Error (invalid_argument) when it names a target that is not available.
Target active_target();

// The target whose code runs for elements of a type: avx512_bf16 and amx are for bf16 alone, other
// types use the vectors they are built on.
Target target_for_type(Target target, DType dtype) noexcept;

}  // namespace tessera::cpu
