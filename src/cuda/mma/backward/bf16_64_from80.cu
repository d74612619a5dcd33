// Instances of cuda.flash2 backward: bf16, head_dim up to 64.
#include "cuda/mma/backward/kernel.cuh"
#include "cuda/mma/backward/query_kernel.cuh"
#include "cuda/mma/backward/table.h"

namespace tessera::cuda::mma::backward {

template <>
Table table_bf16<64>() {
  static constexpr auto kKeys = instances<kKeys64<Engine::sm80_bf16>>(kKeysInstance);
  static constexpr auto kQueries = instances<kQueries64<Engine::sm80_bf16>>(kQueriesInstance);
  return {kKeys, kQueries};
}

}  // namespace tessera::cuda::mma::backward
