// Instances of cuda.flash2 backward: bf16, head_dim up to 64.
#include "cuda/mma/backward/table.cuh"

namespace tessera::cuda::mma::backward {

template <>
Table table_bf16<64>() {
  constexpr Engine E = Engine::sm80_bf16;
  static constexpr Instance kKeys[] = {kKeys64<E, Variant::plain>, kKeys64<E, Variant::featured>,
                                       kKeys64<E, Variant::dropout>};
  static constexpr Instance kQueries[] = {kQueries64<E, Variant::dropout>};
  return {kKeys, kQueries};
}

}  // namespace tessera::cuda::mma::backward
