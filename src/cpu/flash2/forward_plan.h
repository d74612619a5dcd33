// cpu.flash2, forward, on vectors: how a problem is cut, and the entry points of each instruction set.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "cpu/machine/target.h"

namespace tessera::cpu {

struct ForwardPlan {
  std::int64_t tile_rows = 0;     // queries per tile: the lanes of a few vectors
  std::int64_t block_k = 0;       // keys per step of the longest sequence, which has the most
  std::int64_t asked_keys = 0;    // by TESSERA_BLOCK_K; 0: none are
  std::int64_t fitting_keys = 0;  // that the caches suggest for a step
  std::int64_t tiles = 1;         // of the longest sequence
  std::int64_t whole = 0;         // the first heads (of batch * q_heads) have one task each,
  std::int64_t chunks = 1;        // the others so many,
  std::int64_t chunk_tiles = 1;   // of so many tiles
  bool copy_k = false;            // K is copied to contiguous accumulators
  bool copy_v = false;

  // Keys per step of a sequence, which follow from its own length. A row's sums grow step by step: with more than 2048
  // of them, uniform rows of a million keys miss the contract in fp32.
  [[nodiscard]] std::int64_t keys_per_step(std::int64_t k_length) const {
    if (asked_keys != 0) return asked_keys;
    constexpr std::int64_t kMostSteps = 2048;
    const std::int64_t fitting = std::max(fitting_keys, k_length / kMostSteps);
    return std::clamp<std::int64_t>(fitting / 32 * 32, 64, 512);
  }
};

// One task of a plan: some tiles of queries of one head.
struct ForwardTask {
  std::int64_t head = 0;  // of batch * q_heads
  std::int64_t first_tile = 0;
  std::int64_t end_tile = 0;
};

inline std::int64_t task_count(const ForwardPlan& plan, std::int64_t heads) {
  return plan.whole + (heads - plan.whole) * plan.chunks;
}

// Whole heads come first, then chunks: those with the last queries, which see most under a causal mask, before the
// others, so that the longest do not come last.
inline ForwardTask task_of(const ForwardPlan& plan, std::int64_t heads, std::int64_t task) {
  if (task < plan.whole) return {task, 0, plan.tiles};
  const std::int64_t rest = heads - plan.whole, chunk = plan.chunks - 1 - (task - plan.whole) / rest;
  return {plan.whole + (task - plan.whole) % rest, chunk * plan.chunk_tiles, (chunk + 1) * plan.chunk_tiles};
}

// The forward kernel compiled for one instruction set.
struct ForwardEngine {
  // Queries per tile.
  std::int64_t (*tile_rows)(bool fp64);
  // Memory that a worker needs; its first 8 bytes must be 0 before its first task.
  std::size_t (*worker_bytes)(const core::Problem& p, const ForwardPlan& plan);
  // Task number `task`, in a worker's memory.
  void (*run_task)(const core::Problem& p, const ForwardPlan& plan, std::int64_t task, std::byte* memory);
};

// Null for Target::portable.
const ForwardEngine* forward_engine(Target target);

}  // namespace tessera::cpu
