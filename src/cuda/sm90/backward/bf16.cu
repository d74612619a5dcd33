#include "cuda/sm90/backward/kernel.cuh"
#include "cuda/sm90/backward/launch.h"
#include "cuda/sm90/backward/table.h"

namespace tessera::cuda {

std::span<const sm90::backward::Instance> hopper_backward_bf16() {
  static constexpr auto kInstances =
      instances<sm90::backward::kConfigs<ptx::Half16::bf16>>(sm90::backward::kInstanceOf);
  return kInstances;
}

}  // namespace tessera::cuda
