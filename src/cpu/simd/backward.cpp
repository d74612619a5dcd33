// The backward kernels for every vector instruction set, together because flash1, flash2 and the gradient of a bias
// share their tile (gradient_tile-inl.h): a compiler that sees all of them makes it once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/backward.cpp"  // NOLINT(build/include)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/simd/bias_gradient-inl.h"
#include "cpu/simd/flash1_backward-inl.h"
#include "cpu/simd/flash2_backward-inl.h"

#if HWY_ONCE
#include "cpu/simd/engine_of.h"

namespace tessera::cpu {

const BackwardEngine* backward_engine(Target target) { return TESSERA_ENGINE_OF(target, kBackwardEngine); }

const BiasGradientEngine* bias_gradient_engine(Target target) {
  return TESSERA_ENGINE_OF(target, kBiasGradientEngine);
}

const Flash1BackwardEngine* flash1_backward_engine(Target target) {
  return TESSERA_ENGINE_OF(target, kFlash1BackwardEngine);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
