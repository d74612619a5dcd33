// cpu.flash2, backward, on vectors: how a problem is cut, and the entry points of each instruction set.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "core/visibility.h"
#include "cpu/machine/target.h"

namespace tessera::cpu {

// The keys of a sequence are cut into chunks, a power of two of them, and a dQ is always summed over its chunks as the
// same binary tree. The cut follows from the sequence's own length and the mask alone: neither the sequences beside it,
// nor heads, batch or threads change a bit. A task owns all chunks of a key/value head, or an aligned power of two of
// them: which, is free, and no result depends on it.
struct KeyChunks {
  std::int64_t count = 1;
  std::int64_t keys = 0;  // of each; the last ones may be empty
};

inline constexpr std::int64_t kMinChunkKeys = 256;
inline constexpr std::int64_t kMaxChunks = 16;
inline constexpr std::int64_t kChunkGrain = 64;

// Under a causal mask the first chunks cost most: twice as many of a long sequence, longest first, give every worker the
// same where heads are few (1 % slower where one worker does all of them).
inline KeyChunks key_chunks(std::int64_t k_length, bool causal) {
  KeyChunks chunks;
  while (chunks.count < kMaxChunks && k_length >= 2 * chunks.count * kMinChunkKeys) chunks.count *= 2;
  if (chunks.count == kMaxChunks && causal) chunks.count *= 2;
  const std::int64_t even = (k_length + chunks.count - 1) / chunks.count;
  chunks.keys = std::max<std::int64_t>((even + kChunkGrain - 1) / kChunkGrain, 1) * kChunkGrain;
  return chunks;
}

struct BackwardPlan {
  std::int64_t tile_rows = 0;  // queries per tile, at most
  std::int64_t slot_rows = 0;  // the longest tile that there is, in whole vectors
  std::int64_t block_k = 0;    // keys per step
  bool causal = false;         // the mask's part in the cut into chunks
  std::int64_t whole = 0;      // the first heads (of batch * kv_heads) have one task each,
  std::int64_t splits = 1;  // the others so many: a power of two, at most the chunks of the longest sequence
  bool copy_k = false;      // K is copied to contiguous accumulators
  bool copy_v = false;
};

// The keys of a task in one sequence.
struct TaskKeys {
  core::Tile range;
  std::int64_t chunks = 1;
  std::int64_t chunk_keys = 0;
};

// The keys of a split of a split head (`splits` 1: all of them), in a sequence of so many. A sequence of fewer chunks than
// splits has none for the last ones.
inline TaskKeys task_keys(const BackwardPlan& plan, std::int64_t split, std::int64_t splits,
                          std::int64_t k_length) {
  const KeyChunks all = key_chunks(k_length, plan.causal);
  const std::int64_t chunks = std::max<std::int64_t>(all.count / splits, 1);
  const std::int64_t begin = split * chunks * all.keys, end = begin + chunks * all.keys;
  return {{std::min(begin, k_length), std::min(end, k_length)}, chunks, all.keys};
}

// What a task needs room for: the keys of the longest sequence that it gets. A packed sequence of fewer chunks than splits
// has a whole one in each, of up to 512 keys.
inline TaskKeys largest_task(const core::Problem& p, const BackwardPlan& plan) {
  TaskKeys largest = task_keys(plan, 0, plan.whole > 0 ? 1 : plan.splits, p.k_length);
  if (p.packed) {
    largest.range.end = std::min(std::max(largest.range.end, 2 * kMinChunkKeys), p.k_length);
  }
  return largest;
}

// One task of a plan.
struct BackwardTask {
  std::int64_t head = 0;    // of batch * kv_heads
  std::int64_t split = 0;   // of the head
  std::int64_t splits = 1;  // 1: the task has all keys and writes dQ; else it writes a partial dQ
};

inline std::int64_t task_count(const BackwardPlan& plan, std::int64_t heads) {
  return plan.whole + (heads - plan.whole) * plan.splits;
}

// Whole heads come first, then the splits: those with the first keys, which most queries see, before the others.
inline BackwardTask task_of(const BackwardPlan& plan, std::int64_t heads, std::int64_t task) {
  if (task < plan.whole || heads == plan.whole) return {task, 0, 1};  // none: no heads
  const std::int64_t rest = heads - plan.whole;
  return {plan.whole + (task - plan.whole) % rest, (task - plan.whole) / rest, plan.splits};
}

// The tiles of queries of a sequence.
inline core::Tiling query_tiling(const core::Problem& p, const BackwardPlan& plan, std::int64_t q_length) {
  return {q_length, plan.tile_rows, p.blocks ? p.blocks.block_q : 0};
}

// The tiles of queries, first to last, that may see a split: under a causal mask those from its first key on. Packed
// sequences have bands of their own, and any tile may see it.
inline core::Tile seeing_tiles(const core::Problem& p, const BackwardPlan& plan, std::int64_t split) {
  const core::Tiling tiling = query_tiling(p, plan, p.q_length);
  if (p.packed) return {0, tiling.count()};
  const core::Sequence s = core::sequence(p, 0);
  const core::Tile keys = task_keys(plan, split, plan.splits, s.k_length).range;
  const core::VisibleRange rows = core::visible_range(s.band.transposed(), keys.begin, keys.end, s.q_length);
  if (rows.empty()) return {0, 0};
  return {tiling.index_of(rows.begin), tiling.index_of(rows.end - 1) + 1};
}

// What the tasks of split heads share. A tile of queries is packed once, in a slot of its own; a split leaves its
// dQ^T of every tile that sees it in another one, and they are summed when all are there.
struct SplitSlots {
  std::byte* queries = nullptr;  // (head of the split ones, query head of the group, tile)
  std::byte* grad_q =
      nullptr;  // (head of the split ones, query head of the group, split, tile that may see it)
  std::size_t query_bytes = 0;  // of one slot
  std::size_t grad_q_bytes = 0;
  std::int64_t tiles = 0;         // per query head
  std::int64_t grad_q_tiles = 0;  // over all splits

  // `query_head`: of the split ones, counted from the first one.
  [[nodiscard]] std::byte* queries_of(std::int64_t query_head, std::int64_t tile) const {
    return queries + static_cast<std::size_t>(query_head * tiles + tile) * query_bytes;
  }
  // `at`: the tiles of the splits before, and those of this one that are before it.
  [[nodiscard]] std::byte* grad_q_of(std::int64_t query_head, std::int64_t at) const {
    return grad_q + static_cast<std::size_t>(query_head * grad_q_tiles + at) * grad_q_bytes;
  }
};

// The slot of tile t for a split is number first_grad_q_slot + t of its query head.
inline std::int64_t first_grad_q_slot(const core::Problem& p, const BackwardPlan& plan, std::int64_t split) {
  std::int64_t before = 0;
  for (std::int64_t s = 0; s < split; ++s) {
    const core::Tile tiles = seeing_tiles(p, plan, s);
    before += tiles.end - tiles.begin;
  }
  return before - seeing_tiles(p, plan, split).begin;
}

// Steps of the tree of sums over `chunks` chunks.
constexpr std::int64_t tree_levels(std::int64_t chunks) {
  std::int64_t levels = 1;
  for (; chunks > 1; chunks /= 2) ++levels;
  return levels;
}

// Parts of a tile, each of whole vectors, that are summed one by one: under a causal mask the last rows have most to
// sum.
inline constexpr std::int64_t kReduceParts = 4;

// The backward kernel compiled for one instruction set.
struct BackwardEngine {
  // Queries per tile.
  std::int64_t (*tile_rows)(bool fp64);
  // Memory that a worker needs.
  std::size_t (*worker_bytes)(const core::Problem& p, const BackwardPlan& plan);
  // query_bytes and grad_q_bytes of the slots.
  SplitSlots (*slot_sizes)(const core::Problem& p, const BackwardPlan& plan);
  // Packs tile number `tile` of a query head (of the split ones) for all splits.
  void (*pack_queries)(const core::Problem& p, const BackwardPlan& plan, std::int64_t query_head,
                       std::int64_t tile, const SplitSlots& slots);
  // Task number `task`: gradients of its keys and values, and of all queries of the group as far as its keys matter.
  // With all keys these are dQ and are written; else they go to the slots.
  void (*run_task)(const core::Problem& p, const BackwardPlan& plan, std::int64_t task, std::byte* memory,
                   const SplitSlots& slots);
  // dQ of a query head (of the split ones), from the slots: part number `part` of kReduceParts of a tile.
  void (*reduce)(const core::Problem& p, const BackwardPlan& plan, std::int64_t query_head, std::int64_t tile,
                 std::int64_t part, std::byte* memory, const SplitSlots& slots);
};

// Null for Target::portable.
const BackwardEngine* backward_engine(Target target);

}  // namespace tessera::cpu
