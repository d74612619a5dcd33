// Instances of cuda.flash2_sm75 backward: head_dim up to 64.
#include "cuda/mma/backward/table.cuh"

namespace tessera::cuda::mma::backward {

template <>
Table table_sm75<64>() {
  static constexpr Instance kKeys[] = {kTuringKeys64<Variant::plain>, kTuringKeys64<Variant::dropout>};
  static constexpr Instance kQueries[] = {kTuringQueries64<Variant::plain>,
                                          kTuringQueries64<Variant::dropout>};
  return {kKeys, kQueries};
}

}  // namespace tessera::cuda::mma::backward
