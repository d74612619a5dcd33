#include "cuda/sm90/forward/kernel.cuh"
#include "cuda/sm90/forward/launch.h"
#include "cuda/sm90/forward/table.h"

namespace tessera::cuda {

std::span<const sm90::forward::Instance> hopper_forward_fp16() {
  static constexpr auto kInstances =
      instances<sm90::forward::kConfigs<ptx::Half16::fp16>>(sm90::forward::kInstanceOf);
  return kInstances;
}

}  // namespace tessera::cuda
