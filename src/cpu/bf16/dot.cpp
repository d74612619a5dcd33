// The bf16 engine on vdpbf16ps, which Highway does not offer: its AVX-512 target and one instruction set more.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/bf16/dot.cpp"  // NOLINT(build/include)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/bf16/engines.h"
#include "cpu/simd/product-inl.h"
#include "cpu/simd/reduce-inl.h"
#include "cpu/simd/scores-inl.h"

#if HWY_TARGET == HWY_AVX3
#include "cpu/bf16/backward-inl.h"
#include "cpu/bf16/dot-inl.h"
#include "cpu/bf16/forward-inl.h"
#endif

#if HWY_ONCE
namespace tessera::cpu::bf16 {

#if HWY_TARGETS & HWY_AVX3
const ForwardEngine* dot_forward_engine() { return &N_AVX3::bf16::kForwardEngine<N_AVX3::bf16::Dot>; }
const BackwardEngine* dot_backward_engine() { return &N_AVX3::bf16::kBackwardEngine<N_AVX3::bf16::Dot>; }
#else
const ForwardEngine* dot_forward_engine() { return nullptr; }
const BackwardEngine* dot_backward_engine() { return nullptr; }
#endif

}  // namespace tessera::cpu::bf16
#endif  // HWY_ONCE
