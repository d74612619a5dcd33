#include "cuda/flash2/forward.cuh"
#include "cuda/flash2/forward_configs.h"
#include "cuda/flash2_forward.h"

namespace tessera::cuda {

std::span<const ForwardInstance> flash2_forward_fp16() {
  static constexpr auto kInstances = forward_instances<kForwardConfigs<ptx::Half16::fp16>>();
  return kInstances;
}

}  // namespace tessera::cuda
