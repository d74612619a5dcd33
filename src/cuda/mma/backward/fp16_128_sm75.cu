// Instances of cuda.flash2_sm75 backward: head_dim up to 128.
#include "cuda/mma/backward/table.cuh"

namespace tessera::cuda::mma::backward {

template <>
Table table_sm75<128>() {
  static constexpr Instance kKeys[] = {kTuringKeys128<Variant::plain>, kTuringKeys128<Variant::dropout>};
  static constexpr Instance kQueries[] = {kTuringQueries128<Variant::plain>,
                                          kTuringQueries128<Variant::dropout>};
  return {kKeys, kQueries};
}

}  // namespace tessera::cuda::mma::backward
