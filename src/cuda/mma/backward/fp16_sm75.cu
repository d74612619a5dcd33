// cuda.flash2_sm75 backward: what all head_dims share, and the tables together.
#include "cuda/common/prepare.cuh"
#include "cuda/mma/backward/bias_kernel.cuh"
#include "cuda/mma/backward/table.h"

namespace tessera::cuda::mma::backward {

Family family_sm75() {
  constexpr Engine E = Engine::sm75_fp16;
  static constexpr auto kBiasInstances = instances<kTuringBias>(kBiasInstance);
  return {{table_sm75<64>(), table_sm75<128>(), table_sm75<256>()},
          kBiasInstances,
          {&backward_prepare<E>, &backward_finish<E, SumsOf::flash2>}};
}

}  // namespace tessera::cuda::mma::backward
