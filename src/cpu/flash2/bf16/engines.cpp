// The bf16 engines: one schedule, on vdpbf16ps and on AMX tiles, which Highway does not offer. They
// are Highway's AVX-512 target and a few more instructions; an AMX tile instruction multiplies 16 x
// 32 by 32 x 16.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/flash2/bf16/engines.cpp"  // NOLINT(build/include)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/flash2/vector/backward-inl.h"
#include "cpu/flash2/vector/product-inl.h"
#include "cpu/flash2/vector/scores-inl.h"

#if HWY_TARGET == HWY_AVX3
#include "cpu/flash2/bf16/amx-inl.h"
#include "cpu/flash2/bf16/backward-inl.h"
#include "cpu/flash2/bf16/dot-inl.h"
#include "cpu/flash2/bf16/forward-inl.h"
#endif

#if HWY_ONCE && (HWY_TARGETS & HWY_AVX3)
namespace tessera::cpu::bf16 {
namespace {

namespace pairs = N_AVX3::bf16;

// Whatever the type: these engines only ever get bf16.
template <typename>
using DotForward = pairs::PairForward<pairs::Dot>;
template <typename>
using DotBackward = pairs::PairBackward<pairs::Dot>;
template <typename>
using AmxForward = pairs::PairForward<pairs::Amx>;
template <typename>
using AmxBackward = pairs::PairBackward<pairs::Amx>;

}  // namespace

extern const ForwardOps kDotForwardOps, kAmxForwardOps;
extern const BackwardOps kDotBackwardOps, kAmxBackwardOps;
constinit const ForwardOps kDotForwardOps = forward_ops<DotForward>();
constinit const ForwardOps kAmxForwardOps = forward_ops<AmxForward>();
constinit const BackwardOps kDotBackwardOps = backward_ops<DotBackward>();
constinit const BackwardOps kAmxBackwardOps = backward_ops<AmxBackward>();

}  // namespace tessera::cpu::bf16
#endif  // HWY_ONCE
