#include "cuda/common/instances.h"
#include "cuda/fp32/fused_backward_kernel.cuh"
#include "cuda/fp32/table.h"

namespace tessera::cuda::fp32 {

std::span<const FusedInstance> halves_fused_backward() {
  static constexpr auto kInstances = instances<kFusedConfigs>(
      []<typename C>(C) { return FusedInstance{C::value, fused_backward_kernel<C>}; });
  return kInstances;
}

}  // namespace tessera::cuda::fp32
