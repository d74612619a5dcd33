// cuda.flash1 in fp32, by FFMA, for every GPU.
#include "cuda/baselines/flash1/table.cuh"

namespace tessera::cuda::flash1 {

template <>
std::span<const Instances> engine_instances<Engine::fp32>() {
  static constexpr auto kInstances = instances<kHeadDims>(kInstancesOf<Engine::fp32>);
  return kInstances;
}

}  // namespace tessera::cuda::flash1
