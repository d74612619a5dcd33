/// \file
/// Tessera: exact attention, forward and backward, on CPUs and NVIDIA GPUs. This header includes
/// the whole C++ interface, except tessera/format.h (`std::format`).
///
/// **Environment variables.** The library reads them once, when it is loaded: before main, or in
/// dlopen. Later changes have no effect, so calls are safe beside setenv. OpenBLAS and CUDA read
/// their own variables when a plan or call first needs them. A call that depends on an invalid
/// value fails and names it.
///
/// | variable                | value                                                     |
/// |-------------------------|-----------------------------------------------------------|
/// | TESSERA_KERNEL          | the name of the kernel to use, as in `cpu.flash2`         |
/// | TESSERA_TARGET          | the instruction set of CPU kernels                        |
/// | TESSERA_BLOCK_K         | the keys per step of cpu.flash2                           |
/// | TESSERA_DECODE_PREFETCH | how cpu.decode fetches K and V: `keep` or `pass`          |
/// | TESSERA_LAZY_MAXIMUM    | switches off the speculative maximum of GPU kernels       |
#pragma once

#include "tessera/attention.h"  // IWYU pragma: export
#include "tessera/error.h"      // IWYU pragma: export
#include "tessera/execution.h"  // IWYU pragma: export
#include "tessera/mask.h"       // IWYU pragma: export
#include "tessera/plan.h"       // IWYU pragma: export
#include "tessera/tensor.h"     // IWYU pragma: export
#include "tessera/version.h"    // IWYU pragma: export
