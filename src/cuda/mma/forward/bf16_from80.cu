#include "cuda/mma/forward/kernel.cuh"
#include "cuda/mma/forward/launch.h"
#include "cuda/mma/forward/table.h"

namespace tessera::cuda {

std::span<const mma::forward::Instance> flash2_forward_bf16() {
  static constexpr auto kInstances =
      instances<mma::forward::kConfigs<ptx::Half16::bf16>>(mma::forward::kInstanceOf);
  return kInstances;
}

}  // namespace tessera::cuda
