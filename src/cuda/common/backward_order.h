// The order in which thread blocks of the backward kernels take their tiles.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "core/task_order.h"
#include "core/tiling.h"
#include "cuda/common/host/device.h"

namespace tessera::cuda {

// The tiles of `tile` keys, or of `tile` queries, of the longest sequence.
core::Tiling backward_tiling(const core::Problem& p, bool of_keys, std::int64_t tile);

// The order of these tiles, and of the blocks of queries before and after them.
core::BasicTaskOrder<std::uint32_t> backward_order(const core::Problem& p, bool of_keys, std::int64_t tile,
                                                   const DeviceLimits& device);
core::BasicTaskOrder<std::uint32_t> query_block_order(const core::Problem& p);

}  // namespace tessera::cuda
