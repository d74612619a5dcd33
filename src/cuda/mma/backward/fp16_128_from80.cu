#include "cuda/mma/backward/table.cuh"

namespace tessera::cuda::mma::backward {

template Table table<Engine::sm80_fp16, 128>();

}  // namespace tessera::cuda::mma::backward
