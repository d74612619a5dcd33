#include "cuda/hopper/configs.h"
#include "cuda/hopper/forward.cuh"
#include "cuda/hopper_forward.h"

namespace tessera::cuda {

std::span<const hopper::Instance> hopper_forward_bf16() {
  static constexpr auto kInstances = hopper::instances<hopper::kConfigs<ptx::Half16::bf16>>();
  return kInstances;
}

}  // namespace tessera::cuda
