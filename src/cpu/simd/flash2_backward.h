// cpu.flash2, backward, on vectors: how a problem is cut, and the entry points of each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "core/tiles.h"
#include "cpu/target.h"

namespace tessera::cpu {

struct BackwardPlan {
  std::int64_t tile_rows = 0;   // queries per tile
  std::int64_t block_k = 0;     // keys per step
  std::int64_t splits = 1;      // tasks per key/value head: each owns a range of its keys
  std::int64_t split_keys = 0;  // the longest such range
  bool copy_k = false;          // K is copied to contiguous accumulators
  bool copy_v = false;
};

// The keys of a sequence that split number `split` owns: ranges of equal length, except at the end.
inline core::Tile split_range(const BackwardPlan& plan, std::int64_t split, std::int64_t k_length) {
  const std::int64_t begin = split * plan.split_keys, end = begin + plan.split_keys;
  return {begin < k_length ? begin : k_length, end < k_length ? end : k_length};
}

// The backward kernel compiled for one instruction set.
struct BackwardEngine {
  // Queries per tile.
  std::int64_t (*tile_rows)(bool fp64);
  // Memory that a worker needs.
  std::size_t (*worker_bytes)(const core::Problem& p, const BackwardPlan& plan);
  // Task number `task` of batch * kv_heads * splits: gradients of its keys and values, and of all queries of
  // the group as far as its keys matter. With one split these are dQ and are written; else they go to `partial`,
  // accumulators of (split, token, query head, d_qk).
  void (*run_task)(const core::Problem& p, const BackwardPlan& plan, std::int64_t task, std::byte* memory,
                   void* partial);
};

// Null for Target::portable.
const BackwardEngine* backward_engine(Target target);

}  // namespace tessera::cpu
