// cpu.flash2, backward, on vectors: how a problem is cut, and the entry points of each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "core/tiles.h"
#include "cpu/target.h"

namespace tessera::cpu {

// Keys are cut into chunks, a power of two of them that depends on the problem alone, and a dQ is always summed
// over its chunks as the same binary tree. A task owns all chunks of a key/value head, or an aligned power of two
// of them: which, is free, and no result depends on it.
struct BackwardPlan {
  std::int64_t tile_rows = 0;   // queries per tile
  std::int64_t block_k = 0;     // keys per step
  std::int64_t chunk_keys = 0;  // keys per chunk
  std::int64_t chunks = 1;      // chunks per head
  std::int64_t whole = 0;       // the first heads (of batch * kv_heads) have one task each,
  std::int64_t splits = 1;      // the others so many
  bool copy_k = false;          // K is copied to contiguous accumulators
  bool copy_v = false;
};

// One task of a plan.
struct BackwardTask {
  std::int64_t head = 0;    // of batch * kv_heads
  std::int64_t split = 0;   // of the head
  std::int64_t splits = 1;  // 1: the task has all keys and writes dQ; else it writes a partial dQ
  std::int64_t chunks = 1;  // of the task
  std::int64_t first_key = 0;

  // The task's keys in a sequence of so many.
  [[nodiscard]] core::Tile range(const BackwardPlan& plan, std::int64_t k_length) const {
    const std::int64_t end = first_key + chunks * plan.chunk_keys;
    return {first_key < k_length ? first_key : k_length, end < k_length ? end : k_length};
  }
};

inline std::int64_t task_count(const BackwardPlan& plan, std::int64_t heads) {
  return plan.whole + (heads - plan.whole) * plan.splits;
}

// Whole heads come first, then the splits: those with the first keys, which most queries see, before the others.
inline BackwardTask task_of(const BackwardPlan& plan, std::int64_t heads, std::int64_t task) {
  if (task < plan.whole || heads == plan.whole) return {task, 0, 1, plan.chunks, 0};  // none: no heads
  const std::int64_t rest = heads - plan.whole, split = (task - plan.whole) / rest;
  const std::int64_t chunks = plan.chunks / plan.splits;
  return {plan.whole + (task - plan.whole) % rest, split, plan.splits, chunks,
          split * chunks * plan.chunk_keys};
}

// Where the partial dQ of a split head lie: accumulators of (split, head of the split ones, query head of the
// group, row, d_qk).
inline std::int64_t partial_row(const core::Problem& p, const BackwardPlan& plan, std::int64_t head,
                                std::int64_t split, std::int64_t group_head, std::int64_t row) {
  const std::int64_t rest = p.batch * p.kv_heads - plan.whole;
  return (((split * rest + head - plan.whole) * p.group() + group_head) * p.q_length + row) * p.qk_dim;
}

// Steps of the tree of sums over `chunks` chunks.
constexpr std::int64_t tree_levels(std::int64_t chunks) {
  std::int64_t levels = 1;
  for (; chunks > 1; chunks /= 2) ++levels;
  return levels;
}

// The backward kernel compiled for one instruction set.
struct BackwardEngine {
  // Queries per tile.
  std::int64_t (*tile_rows)(bool fp64);
  // Memory that a worker needs.
  std::size_t (*worker_bytes)(const core::Problem& p, const BackwardPlan& plan);
  // Task number `task`: gradients of its keys and values, and of all queries of the group as far as its keys matter.
  // With all keys these are dQ and are written; else they go to `partial` (see partial_row).
  void (*run_task)(const core::Problem& p, const BackwardPlan& plan, std::int64_t task, std::byte* memory,
                   void* partial);
  // dQ of rows [rows.begin, rows.end) of query head `group_head` of the group of head `head`, from all its partial
  // dQ, which are overwritten.
  void (*reduce)(const core::Problem& p, const BackwardPlan& plan, std::int64_t head, std::int64_t group_head,
                 const core::Tile& rows, void* partial);
};

// Null for Target::portable.
const BackwardEngine* backward_engine(Target target);

}  // namespace tessera::cpu
