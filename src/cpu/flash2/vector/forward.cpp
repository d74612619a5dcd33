// The forward kernels for every vector instruction set. flash1 and flash2 are together because they
// share their tile (forward_tile-inl.h): a compiler that sees both compiles it once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/flash2/vector/forward.cpp"  // NOLINT(build/include)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/baselines/flash1/forward-inl.h"
#include "cpu/flash2/vector/forward-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

extern const ForwardOps kForwardOps;
constinit const ForwardOps kForwardOps = forward_ops<VectorForward>();
extern const Flash1ForwardOps kFlash1ForwardOps;
constinit const Flash1ForwardOps kFlash1ForwardOps = flash1_forward_ops();

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
