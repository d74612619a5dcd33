// cuda.flash1 in fp16 for compute capability 8.0 and newer.
#include "cuda/baselines/flash1/table.cuh"

namespace tessera::cuda::flash1 {

template <>
std::span<const Instances> engine_instances<Engine::sm80_fp16>() {
  static constexpr auto kInstances = instances<kHeadDims>(kInstancesOf<Engine::sm80_fp16>);
  return kInstances;
}

}  // namespace tessera::cuda::flash1
