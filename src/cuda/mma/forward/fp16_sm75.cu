#include "cuda/mma/forward/kernel.cuh"
#include "cuda/mma/forward/launch.h"
#include "cuda/mma/forward/table.h"

namespace tessera::cuda {

std::span<const mma::forward::Instance> flash2_sm75_forward_fp16() {
  static constexpr auto kInstances = instances<mma::forward::kTuringConfigs>(mma::forward::kInstanceOf);
  return kInstances;
}

}  // namespace tessera::cuda
