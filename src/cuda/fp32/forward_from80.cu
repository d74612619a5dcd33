#include "cuda/common/instances.h"
#include "cuda/fp32/forward_kernel.cuh"
#include "cuda/fp32/table.h"

namespace tessera::cuda::fp32 {

std::span<const ForwardInstance> halves_forward() {
  static constexpr auto kInstances = instances<kForwardConfigs<Multiply::halves>>(
      []<typename C>(C) { return ForwardInstance{C::value, forward_kernel<C>}; });
  return kInstances;
}

}  // namespace tessera::cuda::fp32
