// Instances of cuda.flash2_sm75 backward: head_dim up to 64.
#include "cuda/mma/backward/table.cuh"

namespace tessera::cuda::flash2 {

template <>
BackwardTable backward_table_sm75<64>() {
  static constexpr BackwardKernel kKeys[] = {kTuringKeys64<Variant::plain>, kTuringKeys64<Variant::dropout>};
  static constexpr BackwardKernel kQueries[] = {kTuringQueries64<Variant::plain>,
                                                kTuringQueries64<Variant::dropout>};
  return {kKeys, kQueries};
}

}  // namespace tessera::cuda::flash2
