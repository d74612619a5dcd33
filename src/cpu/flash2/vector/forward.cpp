// The forward kernels for every vector instruction set, together because flash1 and flash2 share their tile
// (forward_tile-inl.h): a compiler that sees both makes it once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/flash2/vector/forward.cpp"  // NOLINT(build/include)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/baselines/flash1/forward-inl.h"
#include "cpu/flash2/vector/forward-inl.h"

#if HWY_ONCE
#include "cpu/engine_of.h"

namespace tessera::cpu {

const Flash1ForwardEngine* flash1_forward_engine(Target target) {
  return TESSERA_ENGINE_OF(target, kFlash1ForwardEngine);
}

const ForwardEngine* forward_engine(Target target) { return TESSERA_ENGINE_OF(target, kForwardEngine); }

}  // namespace tessera::cpu
#endif  // HWY_ONCE
