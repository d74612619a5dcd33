// cuda.flash2 backward for bf16: what all head_dims share, and the tables together.
#include "cuda/common/prepare.cuh"
#include "cuda/mma/backward/bias_kernel.cuh"

namespace tessera::cuda::flash2 {

BackwardFamily backward_family_bf16() {
  constexpr Engine E = Engine::sm80_bf16;
  static constexpr BackwardKernel kBias[] = {bias_kernel<BiasConfig{E, Variant::featured}>(),
                                             bias_kernel<BiasConfig{E, Variant::dropout}>()};
  return {{backward_table_bf16<64>(), backward_table_bf16<128>(), backward_table_bf16<256>()},
          kBias,
          &backward_prepare<E>,
          &backward_finish<E, SumsOf::flash2>,
          &backward_finish<E, SumsOf::hopper>};
}

}  // namespace tessera::cuda::flash2
