// cpu.flash1, forward, on vectors: how a problem is cut, and the entry points of each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "cpu/machine/target.h"

namespace tessera::cpu {

struct Flash1ForwardPlan {
  std::int64_t tile_rows = 0;  // queries per tile: the lanes of a few vectors
  std::int64_t block_k = 0;    // keys and values that stay while all queries pass by
};

// The forward kernel compiled for one instruction set.
struct Flash1ForwardEngine {
  // Queries per tile.
  std::int64_t (*tile_rows)(bool fp64);
  // Memory that a worker needs: linear in the number of queries.
  std::size_t (*worker_bytes)(const core::Problem& p, const Flash1ForwardPlan& plan);
  // Task number `task` of batch * q_heads, in a worker's memory.
  void (*run_task)(const core::Problem& p, const Flash1ForwardPlan& plan, std::int64_t task,
                   std::byte* memory);
};

// Null for Target::portable.
const Flash1ForwardEngine* flash1_forward_engine(Target target);

}  // namespace tessera::cpu
