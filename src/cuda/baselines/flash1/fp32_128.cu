// cuda.flash1 in fp32, by FFMA, on every GPU: head_dim up to 128.
#include "cuda/baselines/flash1/table.cuh"

namespace tessera::cuda::flash1 {

template const Instances& instances<Engine::fp32, 128>();

}  // namespace tessera::cuda::flash1
