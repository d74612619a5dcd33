// The bf16 engines: one schedule, on vdpbf16ps and on AMX tiles, which Highway does not offer. Its AVX-512 target
// and a few instructions more; the tiles multiply 16 x 16 x 32 with one of them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/flash2/bf16/engines.cpp"  // NOLINT(build/include)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/flash2/bf16/engines.h"
#include "cpu/flash2/vector/product-inl.h"
#include "cpu/flash2/vector/reduce-inl.h"
#include "cpu/flash2/vector/scores-inl.h"

#if HWY_TARGET == HWY_AVX3
#include "cpu/flash2/bf16/amx-inl.h"
#include "cpu/flash2/bf16/backward-inl.h"
#include "cpu/flash2/bf16/dot-inl.h"
#include "cpu/flash2/bf16/forward-inl.h"
#endif

#if HWY_ONCE
namespace tessera::cpu::bf16 {

#if HWY_TARGETS & HWY_AVX3
const ForwardEngine* amx_forward_engine() { return &N_AVX3::bf16::kForwardEngine<N_AVX3::bf16::Amx>; }
const BackwardEngine* amx_backward_engine() { return &N_AVX3::bf16::kBackwardEngine<N_AVX3::bf16::Amx>; }
const ForwardEngine* dot_forward_engine() { return &N_AVX3::bf16::kForwardEngine<N_AVX3::bf16::Dot>; }
const BackwardEngine* dot_backward_engine() { return &N_AVX3::bf16::kBackwardEngine<N_AVX3::bf16::Dot>; }
#else
const ForwardEngine* amx_forward_engine() { return nullptr; }
const BackwardEngine* amx_backward_engine() { return nullptr; }
const ForwardEngine* dot_forward_engine() { return nullptr; }
const BackwardEngine* dot_backward_engine() { return nullptr; }
#endif

}  // namespace tessera::cpu::bf16
#endif  // HWY_ONCE
