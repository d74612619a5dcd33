#include "cuda/mma/backward/table.cuh"

namespace tessera::cuda::mma::backward {

template Table table<Engine::sm80_bf16, 64>();

}  // namespace tessera::cuda::mma::backward
