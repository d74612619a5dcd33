// cpu.flash2, forward: how a problem is cut into tasks, and what an engine supplies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "cpu/flash2/tuning.h"
#include "cpu/machine/target.h"

namespace tessera::cpu {

struct ForwardPlan {
  std::int64_t tile_rows = 0;        // queries per tile: the lanes of a few vectors
  std::int64_t block_k = 0;          // keys per step of the longest sequence, which has the most
  std::int64_t forced_block_k = 0;   // by TESSERA_BLOCK_K; 0: not forced
  std::int64_t fitting_keys = 0;     // keys per step that the caches suggest
  std::int64_t tiles = 1;            // of the longest sequence
  std::int64_t unsplit_heads = 0;    // the first heads (of batch * q_heads) have one task each,
  std::int64_t splits_per_head = 1;  // tasks of every other head,
  std::int64_t split_tiles = 1;      // each of this many tiles
  bool copy_k = false;               // K is copied to contiguous accumulators
  bool copy_v = false;

  // Keys per step of a sequence, which follow from its own length. A row's sums grow step by step:
  // with more than 2048 steps, uniform rows of a million keys miss the contract in fp32.
  [[nodiscard]] std::int64_t keys_per_step(std::int64_t k_length) const;
};

// The plan for `workers` workers, on a target with tiles of `tile_rows` queries.
ForwardPlan forward_plan(const core::Problem& p, Target target, std::int64_t tile_rows, const Tuning& tuning,
                         int workers);

// Whether rows of K or V are copied to contiguous accumulators. Rows of another type always
// are. Strided rows of accumulators are copied only when more queries than one tile read them:
// otherwise the copy does not pay off.
bool copies_rows(const core::Problem& p, const core::View& view, std::int64_t dim, std::int64_t tile_rows);

// One task of a plan: some tiles of queries of one head.
struct ForwardTask {
  std::int64_t head = 0;  // of batch * q_heads
  std::int64_t first_tile = 0;
  std::int64_t end_tile = 0;
};

std::int64_t task_count(const ForwardPlan& plan, std::int64_t heads);

// Unsplit heads come first. Of the split ones the last queries come first: under a causal mask they
// see most keys, and the longest tasks must not come last.
ForwardTask task_of(const ForwardPlan& plan, std::int64_t heads, std::int64_t task);

// The forward kernel compiled for one instruction set.
struct ForwardOps {
  // Queries per tile.
  std::int64_t (*tile_rows)(DType dtype);
  // The memory of a worker; its first 8 bytes must be 0 before the worker's first task.
  std::size_t (*worker_bytes)(const core::Problem& p, const ForwardPlan& plan);
  // Runs task number `task` in a worker's memory.
  void (*run_task)(const core::Problem& p, const ForwardPlan& plan, std::int64_t task, std::byte* memory);
};

}  // namespace tessera::cpu
