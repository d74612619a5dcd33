// The twin of src/cuda/common/ptx/opaque.cuh for the model of a GPU.
#pragma once

#include <cstdint>

#include "gpu_model/machine/machine.h"

namespace tessera::cuda::ptx {

TWIN std::uint32_t opaque(std::uint32_t x) { return x; }
TWIN int opaque(int x) { return x; }
TWIN int lane_index() { return gpu_model::now.lane; }
TWIN unsigned block_index() { return gpu_model::now.block_index.x; }
// Not __syncwarp, as the original: nobody may rely on its order.
TWIN void keep_apart() {}

}  // namespace tessera::cuda::ptx
