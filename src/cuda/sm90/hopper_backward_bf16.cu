#include "cuda/hopper/backward.cuh"
#include "cuda/hopper/backward_configs.h"
#include "cuda/hopper_backward.h"

namespace tessera::cuda {

std::span<const hopper::BackwardInstance> hopper_backward_bf16() {
  static constexpr auto kInstances =
      hopper::backward_instances<hopper::kBackwardConfigs<ptx::Half16::bf16>>();
  return kInstances;
}

}  // namespace tessera::cuda
