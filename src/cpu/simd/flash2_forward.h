// cpu.flash2, forward, on vectors: how a problem is cut, and the entry points of each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "cpu/target.h"

namespace tessera::cpu {

struct ForwardPlan {
  std::int64_t tile_rows = 0;    // queries per tile: the lanes of a few vectors
  std::int64_t block_k = 0;      // keys per step
  std::int64_t chunks = 1;       // tasks per head
  std::int64_t chunk_tiles = 1;  // tiles per task
  bool copy_k = false;           // K is copied to contiguous accumulators
  bool copy_v = false;
};

// The forward kernel compiled for one instruction set.
struct ForwardEngine {
  // Queries per tile.
  std::int64_t (*tile_rows)(bool fp64);
  // Memory that a worker needs; its first 8 bytes must be 0 before its first task.
  std::size_t (*worker_bytes)(const core::Problem& p, const ForwardPlan& plan);
  // Task number `task` of batch * q_heads * chunks, in a worker's memory.
  void (*run_task)(const core::Problem& p, const ForwardPlan& plan, std::int64_t task, std::byte* memory);
};

// Null for Target::portable.
const ForwardEngine* forward_engine(Target target);

}  // namespace tessera::cpu
