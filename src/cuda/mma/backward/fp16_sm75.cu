#include "cuda/mma/backward/family.cuh"

namespace tessera::cuda::mma::backward {

Family family_sm75() { return family_of<Engine::sm75_fp16>(); }

}  // namespace tessera::cuda::mma::backward
