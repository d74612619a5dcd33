#include "cpu/flash2/backward_plan.h"

#include <algorithm>

#include "cpu/flash2/forward_plan.h"

namespace tessera::cpu {
namespace {

// Tasks per worker that split heads are cut into; each split costs a partial dQ.
constexpr std::int64_t kSplitTasksPerWorker = 2;

}  // namespace

// Under a causal mask the first chunks cost most. Twice as many chunks of a long sequence, longest
// first, balance the workers where heads are few (1 % slower where one worker does all of them).
KeyChunks key_chunks(std::int64_t k_length, bool causal) {
  KeyChunks chunks;
  while (chunks.count < kMaxChunks && k_length >= 2 * chunks.count * kMinChunkKeys) chunks.count *= 2;
  if (chunks.count == kMaxChunks && causal) chunks.count *= 2;
  const std::int64_t even = (k_length + chunks.count - 1) / chunks.count;
  chunks.keys = std::max<std::int64_t>((even + kChunkGrain - 1) / kChunkGrain, 1) * kChunkGrain;
  return chunks;
}

BackwardPlan backward_plan(const core::Problem& p, std::int64_t tile_rows, const Tuning& tuning,
                           int workers) {
  BackwardPlan plan;
  plan.tile_rows = tile_rows;
  const std::int64_t part = tile_rows / kReduceParts;  // whole vectors
  plan.slot_rows = p.blocks ? std::min((p.blocks.block_q + part - 1) / part * part, tile_rows) : tile_rows;
  plan.block_k = tuning.forced_block_k != 0 ? tuning.forced_block_k : 128;
  plan.copy_k = copies_rows(p, p.k, p.qk_dim, tile_rows);
  plan.copy_v = copies_rows(p, p.v, p.v_dim, tile_rows);
  plan.causal = p.right != core::kUnbounded && p.left == core::kUnbounded;
  // Heads that make full rounds of the workers have one task each; the rest are split.
  const std::int64_t chunks = key_chunks(p.k_length, plan.causal).count;
  const std::int64_t heads = p.batch * p.kv_heads;
  plan.unsplit_heads = heads / workers * workers;
  const std::int64_t split_heads = heads - plan.unsplit_heads;
  while (plan.splits_per_head < chunks &&
         split_heads * plan.splits_per_head < kSplitTasksPerWorker * workers) {
    plan.splits_per_head *= 2;
  }
  if (plan.splits_per_head == 1 || split_heads == 0) plan.unsplit_heads = heads;
  return plan;
}

TaskKeys task_keys(const BackwardPlan& plan, std::int64_t split, std::int64_t splits, std::int64_t k_length) {
  const KeyChunks all = key_chunks(k_length, plan.causal);
  const std::int64_t chunks = std::max<std::int64_t>(all.count / splits, 1);
  const std::int64_t begin = split * chunks * all.keys, end = begin + chunks * all.keys;
  return {{std::min(begin, k_length), std::min(end, k_length)}, chunks, all.keys};
}

// A packed sequence of fewer chunks than splits has a whole chunk in each split, of up to 512 keys.
TaskKeys largest_task(const core::Problem& p, const BackwardPlan& plan) {
  TaskKeys largest = task_keys(plan, 0, plan.unsplit_heads > 0 ? 1 : plan.splits_per_head, p.k_length);
  if (p.packed) {
    largest.range.end = std::min(std::max(largest.range.end, 2 * kMinChunkKeys), p.k_length);
  }
  return largest;
}

std::int64_t task_count(const BackwardPlan& plan, std::int64_t heads) {
  return plan.unsplit_heads + (heads - plan.unsplit_heads) * plan.splits_per_head;
}

BackwardTask task_of(const BackwardPlan& plan, std::int64_t heads, std::int64_t task) {
  if (task < plan.unsplit_heads || heads == plan.unsplit_heads) return {task, 0, 1};
  const std::int64_t split_heads = heads - plan.unsplit_heads, index = task - plan.unsplit_heads;
  return {plan.unsplit_heads + index % split_heads, index / split_heads, plan.splits_per_head};
}

std::int64_t split_query_heads(const core::Problem& p, const BackwardPlan& plan) {
  const std::int64_t split_heads = p.batch * p.kv_heads - plan.unsplit_heads;
  return split_heads == 0 ? 0 : split_heads * p.group();  // without heads there are no groups
}

core::Tiling query_tiling(const core::Problem& p, const BackwardPlan& plan, std::int64_t q_length) {
  return {q_length, plan.tile_rows, p.blocks ? p.blocks.block_q : 0};
}

core::Interval visible_tiles(const core::Problem& p, const BackwardPlan& plan, std::int64_t split) {
  const core::Tiling tiling = query_tiling(p, plan, p.q_length);
  if (p.packed) return {0, tiling.count()};
  const core::Sequence s = core::sequence(p, 0);
  const core::Interval keys = task_keys(plan, split, plan.splits_per_head, s.k_length).range;
  const core::VisibleRange rows = core::visible_range(s.band.transposed(), keys.begin, keys.end, s.q_length);
  if (rows.empty()) return {0, 0};
  return {tiling.index_of(rows.begin), tiling.index_of(rows.end - 1) + 1};
}

std::int64_t first_grad_q_slot(const core::Problem& p, const BackwardPlan& plan, std::int64_t split) {
  std::int64_t before = 0;
  for (std::int64_t s = 0; s < split; ++s) before += visible_tiles(p, plan, s).length();
  return before - visible_tiles(p, plan, split).begin;
}

std::int64_t tree_levels(std::int64_t chunks) {
  std::int64_t levels = 1;
  for (; chunks > 1; chunks /= 2) ++levels;
  return levels;
}

}  // namespace tessera::cpu
