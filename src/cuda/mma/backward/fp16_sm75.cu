// cuda.flash2_sm75 backward: what all head_dims share, and the tables together.
#include "cuda/common/prepare.cuh"
#include "cuda/mma/backward/bias_kernel.cuh"

namespace tessera::cuda::flash2 {

BackwardFamily backward_family_sm75() {
  constexpr Engine E = Engine::sm75_fp16;
  static constexpr BackwardKernel kBias[] = {bias_kernel<BiasConfig{E, Variant::dropout}>()};
  return {{backward_table_sm75<64>(), backward_table_sm75<128>(), backward_table_sm75<256>()},
          kBias,
          &backward_prepare<E>,
          &backward_finish<E, SumsOf::flash2>};
}

}  // namespace tessera::cuda::flash2
