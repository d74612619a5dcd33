// cpu.flash2, backward: how a problem is cut into tasks, and what an engine supplies.
//
// The keys of a sequence are cut into chunks, a power of two of them, and a dQ is always summed
// over its chunks as the same binary tree. The cut follows from the sequence's own length and the
// mask alone: neither the sequences beside it, nor heads, batch or threads change a bit. A task
// owns all chunks of a key/value head, or an aligned power of two of them. The assignment of chunks
// to tasks affects no result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "core/visibility.h"
#include "cpu/flash2/tuning.h"

namespace tessera::cpu {

// The chunks of a sequence: the keys of one sum of dQ.
struct KeyChunks {
  std::int64_t count = 1;
  std::int64_t keys = 0;  // of each; the last ones may be empty
};

inline constexpr std::int64_t kMinChunkKeys = 256;
inline constexpr std::int64_t kMaxChunks = 16;  // twice as many under a causal mask
inline constexpr std::int64_t kChunkGrain = 64;

KeyChunks key_chunks(std::int64_t k_length, bool causal);

struct BackwardPlan {
  std::int64_t tile_rows = 0;      // queries per tile, at most
  std::int64_t slot_rows = 0;      // of the longest tile there is, in whole vectors
  std::int64_t block_k = 0;        // keys per step
  bool causal = false;             // the mask's part in the cut into chunks
  std::int64_t unsplit_heads = 0;  // the first heads (of batch * kv_heads) have one task each
  // Tasks of every other head: a power of two, at most the chunks of the longest sequence.
  std::int64_t splits_per_head = 1;
  bool copy_k = false;  // K is copied to contiguous accumulators
  bool copy_v = false;
};

// The plan for `workers` workers, with tiles of `tile_rows` queries.
BackwardPlan backward_plan(const core::Problem& p, std::int64_t tile_rows, const Tuning& tuning, int workers);

// The keys of a task in one sequence.
struct TaskKeys {
  core::Interval range;
  std::int64_t chunks = 1;
  std::int64_t chunk_keys = 0;
};

// The keys of split number `split` of `splits` (1: all keys), in a sequence of `k_length` keys. A
// sequence of fewer chunks than splits leaves none for the last ones.
TaskKeys task_keys(const BackwardPlan& plan, std::int64_t split, std::int64_t splits, std::int64_t k_length);

// The most that a task needs room for, in any sequence.
TaskKeys largest_task(const core::Problem& p, const BackwardPlan& plan);

// One task of a plan.
struct BackwardTask {
  std::int64_t head = 0;    // of batch * kv_heads
  std::int64_t split = 0;   // of the head
  std::int64_t splits = 1;  // 1: the task has all keys and writes dQ; else it writes a partial dQ
};

std::int64_t task_count(const BackwardPlan& plan, std::int64_t heads);

// Unsplit heads come first. Of the split ones the first keys come first, which most queries see.
BackwardTask task_of(const BackwardPlan& plan, std::int64_t heads, std::int64_t task);

// Query heads of the key/value heads that are split.
std::int64_t split_query_heads(const core::Problem& p, const BackwardPlan& plan);

// The tiles of queries of a sequence.
core::Tiling query_tiling(const core::Problem& p, const BackwardPlan& plan, std::int64_t q_length);

// The tiles of queries, first to last, that may see a split: under a causal mask those from its
// first key on. Packed sequences have bands of their own, so any tile may see it.
core::Interval visible_tiles(const core::Problem& p, const BackwardPlan& plan, std::int64_t split);

// What the tasks of split heads share. A tile of queries is packed once, in a slot of its own. A
// split leaves its dQ^T of every tile that sees it in another slot, and these are summed when all
// are there.
struct SplitSlots {
  std::byte* queries = nullptr;  // (split key/value head, query head of the group, tile)
  std::byte* grad_q =
      nullptr;  // (split key/value head, query head of the group, split, tile that may see it)
  std::size_t query_bytes = 0;  // of one slot
  std::size_t grad_q_bytes = 0;
  std::int64_t tiles = 0;         // per query head
  std::int64_t grad_q_tiles = 0;  // per query head, over all splits

  // `query_head` counts from the first one that is split.
  [[nodiscard]] std::byte* queries_of(std::int64_t query_head, std::int64_t tile) const {
    return queries + static_cast<std::size_t>(query_head * tiles + tile) * query_bytes;
  }
  // `slot`: first_grad_q_slot + tile.
  [[nodiscard]] std::byte* grad_q_of(std::int64_t query_head, std::int64_t slot) const {
    return grad_q + static_cast<std::size_t>(query_head * grad_q_tiles + slot) * grad_q_bytes;
  }
};

// The slot of tile t for a split is number first_grad_q_slot + t of its query head.
std::int64_t first_grad_q_slot(const core::Problem& p, const BackwardPlan& plan, std::int64_t split);

// Levels of the tree of sums over `chunks` chunks.
std::int64_t tree_levels(std::int64_t chunks);

// Parts of a tile, each of whole vectors, that are summed one by one: under a causal mask the last
// rows have most to sum.
inline constexpr std::int64_t kReduceParts = 4;

// The backward kernel compiled for one instruction set.
struct BackwardOps {
  // Queries per tile.
  std::int64_t (*tile_rows)(DType dtype);
  // The memory of a worker.
  std::size_t (*worker_bytes)(const core::Problem& p, const BackwardPlan& plan);
  // query_bytes and grad_q_bytes of the slots.
  SplitSlots (*slot_sizes)(const core::Problem& p, const BackwardPlan& plan);
  // Packs a tile of a query head (counted from the first one that is split) for all splits.
  void (*pack_queries)(const core::Problem& p, const BackwardPlan& plan, std::int64_t query_head,
                       std::int64_t tile, const SplitSlots& slots);
  // Runs task number `task`: the gradients of its keys and values, and of all queries of the group
  // as far as its keys matter. A task with all keys writes dQ; the others leave partial sums in the
  // slots.
  void (*run_task)(const core::Problem& p, const BackwardPlan& plan, std::int64_t task, std::byte* memory,
                   const SplitSlots& slots);
  // Writes dQ of one part (of kReduceParts) of a tile of a split query head, from the slots.
  void (*reduce)(const core::Problem& p, const BackwardPlan& plan, std::int64_t query_head, std::int64_t tile,
                 std::int64_t part, std::byte* memory, const SplitSlots& slots);
};

}  // namespace tessera::cpu
