// What the analysis of FlashAttention says about a problem, from the library's cost model.
#pragma once

#include "core/cost.h"
#include "lab/measure/rows.h"
#include "lab/problem/operation.h"

namespace tessera::lab {

// The cost of a problem with any algorithm and tile, also those that no kernel has. Throws Error.
core::Cost cost_of(const Operation& operation, Direction direction, Algorithm algorithm, std::int64_t block_q,
                   std::int64_t block_k, double fast_memory_bytes);

// For tiles of block_q queries and block_k keys. Throws Error.
Theory theory_of(const Operation& operation, Direction direction, std::int64_t block_q, std::int64_t block_k);

}  // namespace tessera::lab
