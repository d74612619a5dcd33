// Instances of cuda.flash2_sm75 backward: head_dim up to 256.
#include "cuda/mma/backward/table.cuh"

namespace tessera::cuda::flash2 {

template <>
BackwardTable backward_table_sm75<256>() {
  static constexpr BackwardKernel kKeys[] = {kTuringKeys256<Variant::plain>,
                                             kTuringKeys256<Variant::dropout>};
  static constexpr BackwardKernel kQueries[] = {
      kTuringQueries256<Variant::dropout>};  // serves all: plain would spill
  return {kKeys, kQueries};
}

}  // namespace tessera::cuda::flash2
