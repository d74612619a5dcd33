#include "cuda/mma/backward/family.cuh"

namespace tessera::cuda::mma::backward {

Family family_bf16() { return family_of<Engine::sm80_bf16>(); }

}  // namespace tessera::cuda::mma::backward
