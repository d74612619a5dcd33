// cuda.flash2 backward for fp16: what all head_dims share, and the tables together.
#include "cuda/common/prepare.cuh"
#include "cuda/mma/backward/bias_kernel.cuh"

namespace tessera::cuda::mma::backward {

Family family_fp16() {
  constexpr Engine E = Engine::sm80_fp16;
  static constexpr Instance kBias[] = {bias_kernel<BiasConfig{E, Variant::featured}>(),
                                       bias_kernel<BiasConfig{E, Variant::dropout}>()};
  return {{table_fp16<64>(), table_fp16<128>(), table_fp16<256>()},
          kBias,
          &backward_prepare<E>,
          &backward_finish<E, SumsOf::flash2>,
          &backward_finish<E, SumsOf::hopper>};
}

}  // namespace tessera::cuda::mma::backward
