// cuda.flash2 backward for bf16: what all head_dims share, and the tables together.
#include "cuda/common/prepare.cuh"
#include "cuda/mma/backward/bias_kernel.cuh"
#include "cuda/mma/backward/table.h"

namespace tessera::cuda::mma::backward {

Family family_bf16() {
  constexpr Engine E = Engine::sm80_bf16;
  static constexpr auto kBiasInstances = instances<kBias<E>>(kBiasInstance);
  return {{table_bf16<64>(), table_bf16<128>(), table_bf16<256>()},
          kBiasInstances,
          {&backward_prepare<E>, &backward_finish<E, SumsOf::flash2>}};
}

}  // namespace tessera::cuda::mma::backward

namespace tessera::cuda {

BackwardEnds hopper_ends_bf16() {
  constexpr Engine E = Engine::sm80_bf16;
  return {&backward_prepare<E>, &backward_finish<E, SumsOf::hopper>};
}

}  // namespace tessera::cuda
