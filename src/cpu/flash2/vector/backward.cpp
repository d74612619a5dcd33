// The backward kernels for every vector instruction set, together because flash1, flash2 and the gradient of a bias
// share their tile (gradient_tile-inl.h): a compiler that sees all of them makes it once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/flash2/vector/backward.cpp"  // NOLINT(build/include)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/baselines/flash1/backward-inl.h"
#include "cpu/flash2/vector/backward-inl.h"
#include "cpu/flash2/vector/bias_gradient-inl.h"

#if HWY_ONCE
#include "cpu/engine_of.h"

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
