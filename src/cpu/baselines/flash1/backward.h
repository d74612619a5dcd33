// cpu.flash1, backward, on vectors: how a problem is cut, and the entry points of each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "cpu/machine/target.h"

namespace tessera::cpu {

struct Flash1BackwardPlan {
  std::int64_t tile_rows = 0;  // queries per tile
  std::int64_t block_k = 0;    // keys and values, and their gradients, that stay while all queries pass by
  std::int64_t step_keys = 0;  // keys per step within a block
};

// The backward kernel compiled for one instruction set.
struct Flash1BackwardEngine {
  // Queries per tile.
  std::int64_t (*tile_rows)(bool fp64);
  // Memory that a worker needs: linear in the number of queries.
  std::size_t (*worker_bytes)(const core::Problem& p, const Flash1BackwardPlan& plan);
  // Task number `task` of batch * kv_heads: dK and dV of a key/value head and dQ of the query heads of its
  // group.
  void (*run_task)(const core::Problem& p, const Flash1BackwardPlan& plan, std::int64_t task,
                   std::byte* memory);
};

// Null for Target::portable.
const Flash1BackwardEngine* flash1_backward_engine(Target target);

}  // namespace tessera::cpu
