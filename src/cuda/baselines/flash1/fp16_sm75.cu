// cuda.flash1 in fp16 for compute capability 7.5: m16n8k8, no asynchronous copies, 64 KiB of shared
// memory.
#include "cuda/baselines/flash1/table.cuh"

namespace tessera::cuda::flash1 {

template <>
std::span<const Instances> engine_instances<Engine::sm75_fp16>() {
  static constexpr auto kInstances = instances<kHeadDims>(kInstancesOf<Engine::sm75_fp16>);
  return kInstances;
}

}  // namespace tessera::cuda::flash1
