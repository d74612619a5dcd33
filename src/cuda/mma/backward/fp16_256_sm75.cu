#include "cuda/mma/backward/table.cuh"

namespace tessera::cuda::mma::backward {

template Table table<Engine::sm75_fp16, 256>();

}  // namespace tessera::cuda::mma::backward
