// Instances of cuda.flash2 backward for Turing: fp16, head_dim up to 256.
#include "cuda/mma/backward/kernel.cuh"
#include "cuda/mma/backward/query_kernel.cuh"
#include "cuda/mma/backward/table.h"

namespace tessera::cuda::mma::backward {

template <>
Table table_sm75<256>() {
  static constexpr auto kKeys = instances<kTuringKeys<256>>(kKeysInstance);
  static constexpr auto kQueries = instances<kTuringQueries256>(kQueriesInstance);
  return {kKeys, kQueries};
}

}  // namespace tessera::cuda::mma::backward
