#include "cuda/mma/forward/kernel.cuh"
#include "cuda/mma/forward/launch.h"
#include "cuda/mma/forward/table.h"

namespace tessera::cuda {

std::span<const ForwardInstance> flash2_sm75_forward_fp16() {
  static constexpr auto kInstances = forward_instances<kTuringForwardConfigs>();
  return kInstances;
}

}  // namespace tessera::cuda
