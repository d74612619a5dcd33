// The table of engines. Each instruction set's files define its operations in its own namespace;
// here they are put together, once per target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/engines.cpp"  // NOLINT(build/include)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/engine.h"

#if HWY_TARGET != HWY_SCALAR  // Target::portable is plain C++
namespace tessera::cpu::HWY_NAMESPACE {

extern const ForwardOps kForwardOps;
extern const BackwardOps kBackwardOps;
extern const BiasGradientOps kBiasGradientOps;
extern const SoftmaxRowsOps kSoftmaxRowsOps;
extern const DecodeOps kDecodeOps;
extern const Flash1ForwardOps kFlash1ForwardOps;
extern const Flash1BackwardOps kFlash1BackwardOps;

inline constexpr Engine kEngine{kForwardOps, kBackwardOps,       kBiasGradientOps,   kSoftmaxRowsOps,
                                &kDecodeOps, &kFlash1ForwardOps, &kFlash1BackwardOps};

}  // namespace tessera::cpu::HWY_NAMESPACE
#endif

#if HWY_ONCE
namespace tessera::cpu {

#if HWY_TARGETS & HWY_AVX3
namespace bf16 {
// cpu.flash2 for bf16 (flash2/bf16/engines.cpp); everything else is AVX-512's.
extern const ForwardOps kDotForwardOps, kAmxForwardOps;
extern const BackwardOps kDotBackwardOps, kAmxBackwardOps;

constexpr Engine with_bf16(const ForwardOps& forward, const BackwardOps& backward) {
  const Engine& base = N_AVX3::kEngine;
  return {forward,
          backward,
          base.bias_gradient,
          base.softmax_rows,
          base.decode,
          base.flash1_forward,
          base.flash1_backward};
}
constexpr Engine kDotEngine = with_bf16(kDotForwardOps, kDotBackwardOps);
constexpr Engine kAmxEngine = with_bf16(kAmxForwardOps, kAmxBackwardOps);
}  // namespace bf16
#endif

namespace portable {
extern const ForwardOps kForwardOps;
extern const BackwardOps kBackwardOps;
extern const BiasGradientOps kBiasGradientOps;
extern const SoftmaxRowsOps kSoftmaxRowsOps;

constexpr Engine kEngine{kForwardOps, kBackwardOps, kBiasGradientOps, kSoftmaxRowsOps,
                         nullptr,     nullptr,      nullptr};
}  // namespace portable

const Engine& engine(Target target) noexcept {
  switch (target) {
#if HWY_TARGETS & HWY_AVX3
    case Target::amx: return bf16::kAmxEngine;
    case Target::avx512_bf16: return bf16::kDotEngine;
    case Target::avx512: return N_AVX3::kEngine;
#endif
#if HWY_TARGETS & HWY_AVX2
    case Target::avx2: return N_AVX2::kEngine;
#endif
#if HWY_TARGETS & HWY_SSE4
    case Target::sse4: return N_SSE4::kEngine;
#endif
#if HWY_TARGETS & HWY_SVE
    case Target::sve: return N_SVE::kEngine;
#endif
#if HWY_TARGETS & HWY_NEON
    case Target::neon: return N_NEON::kEngine;
#endif
    default: return portable::kEngine;
  }
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
