#include "cuda/sm90/backward/kernel.cuh"
#include "cuda/sm90/backward/launch.h"
#include "cuda/sm90/backward/table.h"

namespace tessera::cuda {

std::span<const hopper::BackwardInstance> hopper_backward_fp16() {
  static constexpr auto kInstances =
      instances<hopper::kBackwardConfigs<ptx::Half16::fp16>>(hopper::kInstanceOf);
  return kInstances;
}

}  // namespace tessera::cuda
