// Instances of cuda.flash2 backward: fp16, head_dim up to 256.
#include "cuda/mma/backward/table.cuh"

namespace tessera::cuda::mma::backward {

template <>
Table table_fp16<256>() {
  constexpr Engine E = Engine::sm80_fp16;
  static constexpr Instance kKeys[] = {
      kKeys256<E, Variant::plain, 2, false>, kKeys256<E, Variant::plain, 2>,
      kKeys256<E, Variant::featured, 2>,     kKeys256<E, Variant::dropout, 2>,
      kKeys256<E, Variant::plain, 1>,        kKeys256<E, Variant::dropout, 1>,
      kSmallKeys256<E, Variant::plain>,      kSmallKeys256<E, Variant::dropout>};
  static constexpr Instance kQueries[] = {
      kQueries256<E, Variant::dropout>};  // supports all; plain would spill
  return {kKeys, kQueries};
}

}  // namespace tessera::cuda::mma::backward
