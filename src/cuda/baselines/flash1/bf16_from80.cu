// cuda.flash1 in bf16 for compute capability 8.0 and newer.
#include "cuda/baselines/flash1/table.cuh"

namespace tessera::cuda::flash1 {

template const Instances& instances<Engine::sm80_bf16, 64>();
template const Instances& instances<Engine::sm80_bf16, 128>();
template const Instances& instances<Engine::sm80_bf16, 256>();

}  // namespace tessera::cuda::flash1
