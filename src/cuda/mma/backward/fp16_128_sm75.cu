// Instances of cuda.flash2 backward for Turing: fp16, head_dim up to 128.
#include "cuda/mma/backward/kernel.cuh"
#include "cuda/mma/backward/query_kernel.cuh"
#include "cuda/mma/backward/table.h"

namespace tessera::cuda::mma::backward {

template <>
Table table_sm75<128>() {
  static constexpr auto kKeys = instances<kTuringKeys<128>>(kKeysInstance);
  static constexpr auto kQueries = instances<kTuringQueries128>(kQueriesInstance);
  return {kKeys, kQueries};
}

}  // namespace tessera::cuda::mma::backward
