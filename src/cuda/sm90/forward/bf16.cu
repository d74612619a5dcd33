#include "cuda/sm90/forward/kernel.cuh"
#include "cuda/sm90/forward/launch.h"
#include "cuda/sm90/forward/table.h"

namespace tessera::cuda {

std::span<const hopper::Instance> hopper_forward_bf16() {
  static constexpr auto kInstances = hopper::instances<hopper::kConfigs<ptx::Half16::bf16>>();
  return kInstances;
}

}  // namespace tessera::cuda
