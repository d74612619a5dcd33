#include "cuda/mma/backward/family.cuh"

namespace tessera::cuda::mma::backward {

Family family_fp16() { return family_of<Engine::sm80_fp16>(); }

}  // namespace tessera::cuda::mma::backward
