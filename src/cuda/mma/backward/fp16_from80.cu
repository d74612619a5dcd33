// cuda.flash2 backward for fp16: what all head_dims share, and the tables together.
#include "cuda/common/prepare.cuh"
#include "cuda/mma/backward/bias_kernel.cuh"
#include "cuda/mma/backward/table.h"

namespace tessera::cuda::mma::backward {

Family family_fp16() {
  constexpr Engine E = Engine::sm80_fp16;
  static constexpr auto kBiasInstances = instances<kBias<E>>(kBiasInstance);
  return {{table_fp16<64>(), table_fp16<128>(), table_fp16<256>()},
          kBiasInstances,
          {&backward_prepare<E>, &backward_finish<E, SumsOf::flash2>}};
}

}  // namespace tessera::cuda::mma::backward

namespace tessera::cuda {

BackwardEnds hopper_ends_fp16() {
  constexpr Engine E = Engine::sm80_fp16;
  return {&backward_prepare<E>, &backward_finish<E, SumsOf::hopper>};
}

}  // namespace tessera::cuda
