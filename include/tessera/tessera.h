/// \file
/// Tessera: exact attention, forward and backward, on CPUs and NVIDIA GPUs. This header includes all of it.
///
/// **Environment.** The library reads its variables once a process, in the first call: a later change has no effect, and
/// calls are safe beside setenv. TESSERA_KERNEL forces a kernel by name, TESSERA_TARGET the instruction set of CPU
/// kernels, TESSERA_BLOCK_K the keys per step of cpu.flash2; TESSERA_LAZY_MAXIMUM switches off the speculative maximum
/// of GPU kernels. A call that an invalid value concerns fails and names it.
#pragma once

#include "tessera/attention.h"  // IWYU pragma: export
#include "tessera/error.h"      // IWYU pragma: export
#include "tessera/execution.h"  // IWYU pragma: export
#include "tessera/mask.h"       // IWYU pragma: export
#include "tessera/plan.h"       // IWYU pragma: export
#include "tessera/tensor.h"     // IWYU pragma: export
#include "tessera/version.h"    // IWYU pragma: export
