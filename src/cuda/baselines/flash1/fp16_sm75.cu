// cuda.flash1 in fp16 for compute capability 7.5: m16n8k8 and no asynchronous copies, 64 KiB of shared memory.
#include "cuda/baselines/flash1/table.cuh"

namespace tessera::cuda::flash1 {

template const Instances& instances<Engine::sm75_fp16, 64>();
template const Instances& instances<Engine::sm75_fp16, 128>();
template const Instances& instances<Engine::sm75_fp16, 256>();

}  // namespace tessera::cuda::flash1
