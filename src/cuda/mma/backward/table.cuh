// The instances of the configs of one head_dim. An instance file includes this and instantiates one
// table.
#pragma once

#include "cuda/common/instances.h"
#include "cuda/mma/backward/kernel.cuh"
#include "cuda/mma/backward/query_kernel.cuh"
#include "cuda/mma/backward/table.h"

namespace tessera::cuda::mma::backward {

template <Engine E, int HeadDim>
Table table() {
  static constexpr auto kKeys = instances<kKeysConfigs<E, HeadDim>>(kKeysInstance);
  static constexpr auto kQueries = instances<kQueriesConfigs<E, HeadDim>>(kQueriesInstance);
  return {kKeys, kQueries};
}

}  // namespace tessera::cuda::mma::backward
