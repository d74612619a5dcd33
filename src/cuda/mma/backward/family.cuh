// The kernels that all head_dims share, and the tables of an element type together.
#pragma once

#include "cuda/common/instances.h"
#include "cuda/common/prepare.cuh"
#include "cuda/mma/backward/bias_kernel.cuh"
#include "cuda/mma/backward/table.h"

namespace tessera::cuda::mma::backward {

template <Engine E>
Family family_of() {
  static constexpr auto kBias = instances<kBiasConfigs<E>>(kBiasInstance);
  Family family{.tables = {table<E, 64>(), table<E, 128>(), table<E, 256>()},
                .bias = kBias,
                .prepare = &backward_prepare<E>,
                .finish = &backward_finish<E, SumsOf::flash2>};
  if constexpr (E != Engine::sm75_fp16) family.finish_hopper = &backward_finish<E, SumsOf::hopper>;
  return family;
}

}  // namespace tessera::cuda::mma::backward
