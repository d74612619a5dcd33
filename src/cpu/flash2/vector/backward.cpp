// The backward kernels for every vector instruction set. flash1, flash2 and the gradient of a bias
// are together because they share their tile (backward_tile-inl.h): a compiler that sees all of
// them compiles it once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/flash2/vector/backward.cpp"  // NOLINT(build/include)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/baselines/flash1/backward-inl.h"
#include "cpu/flash2/vector/backward-inl.h"
#include "cpu/flash2/vector/bias_gradient-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

extern const BackwardOps kBackwardOps;
constinit const BackwardOps kBackwardOps = backward_ops<VectorBackward>();
extern const BiasGradientOps kBiasGradientOps;
constinit const BiasGradientOps kBiasGradientOps = bias_gradient_ops();
extern const Flash1BackwardOps kFlash1BackwardOps;
constinit const Flash1BackwardOps kFlash1BackwardOps = flash1_backward_ops();

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
