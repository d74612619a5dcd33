#include "cuda/sm90/backward/kernel.cuh"
#include "cuda/sm90/backward/launch.h"
#include "cuda/sm90/backward/table.h"

namespace tessera::cuda {

std::span<const hopper::BackwardInstance> hopper_backward_bf16() {
  static constexpr auto kInstances =
      hopper::backward_instances<hopper::kBackwardConfigs<ptx::Half16::bf16>>();
  return kInstances;
}

}  // namespace tessera::cuda
