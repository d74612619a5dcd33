// Instances of cuda.flash2 backward: bf16, head_dim up to 128.
#include "cuda/mma/backward/table.cuh"

namespace tessera::cuda::mma::backward {

template <>
Table table_bf16<128>() {
  constexpr Engine E = Engine::sm80_bf16;
  static constexpr Instance kKeys[] = {
      kKeys128<E, Variant::plain, false>, kKeys128<E, Variant::plain>,
      kKeys128<E, Variant::featured>,     kKeys128<E, Variant::dropout>,
      kSmallKeys128<E, Variant::plain>,   kSmallKeys128<E, Variant::dropout>};
  static constexpr Instance kQueries[] = {kQueries128<E, Variant::dropout>};
  return {kKeys, kQueries};
}

}  // namespace tessera::cuda::mma::backward
