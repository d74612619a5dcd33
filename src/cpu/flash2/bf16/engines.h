// cpu.flash2 for bf16 at the hardware's bf16 rate: one engine, compiled for each unit that multiplies bf16.
#pragma once

#include "cpu/flash2/backward_plan.h"
#include "cpu/flash2/forward_plan.h"

namespace tessera::cpu::bf16 {

// On vdpbf16ps (AVX512-BF16). Null where the build does not have it.
const ForwardEngine* dot_forward_engine();
const BackwardEngine* dot_backward_engine();

// On the tiles of AMX-BF16. Null where the build does not have it.
const ForwardEngine* amx_forward_engine();
const BackwardEngine* amx_backward_engine();

}  // namespace tessera::cpu::bf16
