// cuda.flash1 in fp32, by FFMA, on every GPU: head_dim up to 256.
#include "cuda/baselines/flash1/table.cuh"

namespace tessera::cuda::flash1 {

template const Instances& instances<Engine::fp32, 256>();

}  // namespace tessera::cuda::flash1
