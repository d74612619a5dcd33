#include "cuda/common/instances.h"
#include "cuda/fp32/bias_kernel.cuh"
#include "cuda/fp32/table.h"

namespace tessera::cuda::fp32 {

std::span<const BiasGradientInstance> halves_bias_gradient() {
  static constexpr auto kInstances = instances<kBiasGradientConfigs<Multiply::halves>>(
      []<typename C>(C) { return BiasGradientInstance{C::value, bias_gradient_kernel<C>}; });
  return kInstances;
}

}  // namespace tessera::cuda::fp32
