#include "cpu/flash2/forward_plan.h"

#include <algorithm>

#include "core/tiling.h"

namespace tessera::cpu {
namespace {

// Tasks per worker that split heads are cut into: they make up for the unequal lengths of tasks.
constexpr std::int64_t kTasksPerWorker = 4;

// Keys per step that the caches suggest: K, V and the scores of a step take half of the
// second-level cache. Where vectors would wait for that cache, the scores take two thirds of the
// first: 128 keys of 48 KiB.
// Products of bf16 read half as many bytes and gain from longer steps.
std::int64_t fitting_keys(const core::Problem& p, Target target, std::int64_t tile_rows,
                          const Tuning& tuning) {
  const auto element = static_cast<std::int64_t>(size_of(accumulator_of(p.dtype)));
  const bool bf16 = target == Target::avx512_bf16 || target == Target::amx;
  const std::int64_t fitting = tuning.l2_bytes / 2 / (element * (p.qk_dim + p.v_dim + tile_rows));
  if (bf16 || !tuning.has_two_avx512_units) return fitting;
  return std::min(fitting, tuning.l1_bytes * 2 / 3 / (element * tile_rows));
}

}  // namespace

std::int64_t ForwardPlan::keys_per_step(std::int64_t k_length) const {
  if (forced_block_k != 0) return forced_block_k;
  constexpr std::int64_t kMostSteps = 2048;
  const std::int64_t fitting = std::max(fitting_keys, k_length / kMostSteps);
  return std::clamp<std::int64_t>(fitting / 32 * 32, 64, 512);
}

ForwardPlan forward_plan(const core::Problem& p, Target target, std::int64_t tile_rows, const Tuning& tuning,
                         int workers) {
  ForwardPlan plan;
  plan.tile_rows = tile_rows;
  plan.forced_block_k = tuning.forced_block_k;
  plan.fitting_keys = fitting_keys(p, target, tile_rows, tuning);
  plan.block_k = plan.keys_per_step(p.k_length);
  plan.copy_k = copies_rows(p, p.k, p.qk_dim, tile_rows);
  plan.copy_v = copies_rows(p, p.v, p.v_dim, tile_rows);
  const core::Tiling tiling{p.q_length, tile_rows, p.blocks ? p.blocks.block_q : 0};
  plan.tiles = std::max<std::int64_t>(tiling.count(), 1);
  // Heads that make full rounds of the workers have one task each; the rest are split.
  const std::int64_t heads = p.batch * p.q_heads;
  plan.unsplit_heads = heads / workers * workers;
  if (const std::int64_t split_heads = heads - plan.unsplit_heads; split_heads > 0) {
    const std::int64_t wanted =
        std::min(plan.tiles, (kTasksPerWorker * workers + split_heads - 1) / split_heads);
    plan.split_tiles = (plan.tiles + wanted - 1) / wanted;
    plan.splits_per_head = (plan.tiles + plan.split_tiles - 1) / plan.split_tiles;
  }
  return plan;
}

bool copies_rows(const core::Problem& p, const core::View& view, std::int64_t dim, std::int64_t tile_rows) {
  if (p.dtype != accumulator_of(p.dtype)) return true;
  return view.row_stride != dim && p.q_length * p.group() > tile_rows;
}

std::int64_t task_count(const ForwardPlan& plan, std::int64_t heads) {
  return plan.unsplit_heads + (heads - plan.unsplit_heads) * plan.splits_per_head;
}

ForwardTask task_of(const ForwardPlan& plan, std::int64_t heads, std::int64_t task) {
  if (task < plan.unsplit_heads) return {task, 0, plan.tiles};
  const std::int64_t split_heads = heads - plan.unsplit_heads, index = task - plan.unsplit_heads;
  const std::int64_t split = plan.splits_per_head - 1 - index / split_heads;
  return {plan.unsplit_heads + index % split_heads, split * plan.split_tiles, (split + 1) * plan.split_tiles};
}

}  // namespace tessera::cpu
