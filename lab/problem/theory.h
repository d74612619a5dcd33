// What the analysis of FlashAttention says about a problem, from the library's cost model.
#pragma once

#include "core/cost.h"
#include "lab/measure/rows.h"
#include "lab/problem/workload.h"

namespace tessera::lab {

// The cost of a workload for any algorithm and tile, whether a kernel has it or not. Throws Error.
core::Cost cost_of(const Workload& workload, Direction direction, Algorithm algorithm, std::int64_t block_q,
                   std::int64_t block_k, double fast_memory_bytes);

// For tiles of so many queries and keys. Throws Error.
Theory theory_of(const Workload& workload, Direction direction, std::int64_t block_q, std::int64_t block_k);

}  // namespace tessera::lab
