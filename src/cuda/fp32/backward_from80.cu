#include "cuda/common/instances.h"
#include "cuda/fp32/backward_kernel.cuh"
#include "cuda/fp32/table.h"

namespace tessera::cuda::fp32 {

std::span<const BackwardInstance> halves_backward() {
  static constexpr auto kInstances = instances<kPassConfigs<Multiply::halves>>(
      []<typename C>(C) { return BackwardInstance{C::value, backward_kernel<C>}; });
  return kInstances;
}

}  // namespace tessera::cuda::fp32
