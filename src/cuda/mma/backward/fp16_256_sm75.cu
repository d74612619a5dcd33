// Instances of cuda.flash2_sm75 backward: head_dim up to 256.
#include "cuda/mma/backward/table.cuh"

namespace tessera::cuda::mma::backward {

template <>
Table table_sm75<256>() {
  static constexpr Instance kKeys[] = {kTuringKeys256<Variant::plain>, kTuringKeys256<Variant::dropout>};
  static constexpr Instance kQueries[] = {
      kTuringQueries256<Variant::dropout>};  // supports all; plain would spill
  return {kKeys, kQueries};
}

}  // namespace tessera::cuda::mma::backward
