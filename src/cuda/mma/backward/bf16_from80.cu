// cuda.flash2 backward for bf16: what all head_dims share, and the tables together.
#include "cuda/common/prepare.cuh"
#include "cuda/mma/backward/bias_kernel.cuh"

namespace tessera::cuda::mma::backward {

Family family_bf16() {
  constexpr Engine E = Engine::sm80_bf16;
  static constexpr Instance kBias[] = {bias_kernel<BiasConfig{E, Variant::featured}>(),
                                       bias_kernel<BiasConfig{E, Variant::dropout}>()};
  return {{table_bf16<64>(), table_bf16<128>(), table_bf16<256>()},
          kBias,
          &backward_prepare<E>,
          &backward_finish<E, SumsOf::flash2>,
          &backward_finish<E, SumsOf::hopper>};
}

}  // namespace tessera::cuda::mma::backward
