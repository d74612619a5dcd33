// cpu.decode: attention of a few queries over many keys, bound by reading K and V.
//
// Flash attention with the keys cut instead of the queries ("flash decoding"): every task reads a stretch of K
// and V once, for all queries of the group that shares them, and leaves a partial result; the partial results
// of a row are merged by their maxima and sums, in order.
//
// Traffic: Q, K, V and O once; partial results (one row of accumulators per row of queries and split) are
// written and read once: 0.1 % of K and V per row and pass in fp32 at head_dim 128. The cut into splits depends
// on head_dim and type alone: neither threads, batch nor heads change a bit of a row.
#include "cpu/decode/kernel.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "core/base/text.h"
#include "cpu/decode/engine.h"
#include "cpu/machine/arena.h"
#include "cpu/machine/parallel_for.h"

namespace tessera::cpu {
namespace {

// Queries that share a key/value head.
std::int64_t rows_per_head(const core::Problem& p) { return p.kv_heads == 0 ? 0 : p.q_length * p.group(); }

// Bytes of K and V of one head in a split: long enough that merging costs nothing, short enough that a few
// thousand keys occupy many threads.
constexpr std::int64_t kSplitBytes = 512 << 10;
constexpr std::int64_t kMinSplitKeys = 256;
constexpr std::int64_t kMaxSplitKeys = 4096;

// Bytes of K and V of one head in a step: the next step is on its way to the second-level cache meanwhile.
// Measured: half as much wastes time between the products, twice as much loses a tenth of the bandwidth.
constexpr std::int64_t kStepBytes = 32 << 10;
constexpr std::int64_t kMinStepKeys = 32;
constexpr std::int64_t kMaxStepKeys = 128;

// Elements of a vector of bf16, which the products of bf16 take whole.
constexpr std::int64_t kBf16Lanes = 32;

// Tasks per worker that make up for workers of unequal speed.
constexpr std::int64_t kTasksPerWorker = 8;

// The largest power of two from `least` to `most` whose K and V fit into `bytes`: steps then divide splits.
std::int64_t keys_within(const core::Problem& p, std::int64_t bytes, std::int64_t least, std::int64_t most) {
  const std::int64_t key_bytes = (p.qk_dim + p.v_dim) * static_cast<std::int64_t>(size_of(p.dtype));
  std::int64_t keys = least;
  while (keys < most && 2 * keys * key_bytes <= bytes) keys *= 2;
  return keys;
}

// Heads lie side by side within the row of a key, as in (batch, sequence, heads, head_dim): then they are taken
// together, so that memory is read as it lies.
bool heads_side_by_side(const core::View& view) {
  return std::abs(view.head_stride) < std::abs(view.row_stride);
}

DecodePlan decode_plan(const core::Problem& p, int workers) {
  DecodePlan plan;
  plan.rows = rows_per_head(p);
  // SVE's vectors may be longer than what is enough elsewhere.
  const std::int64_t lanes = decode_engine(active_target())->lanes(p.dtype == DType::fp64);
  const std::int64_t padding = std::max<std::int64_t>(lanes, 16);
  plan.padded_v_dim = (p.v_dim + padding - 1) / padding * padding;
  const Target target = target_for(active_target(), p.dtype);
  const bool whole_vectors = p.qk_dim % kBf16Lanes == 0 && p.v_dim % kBf16Lanes == 0;
  plan.bf16_dot = whole_vectors && (target == Target::avx512_bf16 || target == Target::amx);
  plan.step_keys = keys_within(p, kStepBytes, std::max(lanes, kMinStepKeys), kMaxStepKeys);
  plan.split_keys = keys_within(p, kSplitBytes, kMinSplitKeys, kMaxSplitKeys);
  plan.splits = std::max<std::int64_t>((p.k_length + plan.split_keys - 1) / plan.split_keys, 1);
  plan.task_heads = heads_side_by_side(p.k) && heads_side_by_side(p.v) ? p.kv_heads : 1;
  // Fewer heads together, where there would be fewer tasks than workers.
  while (plan.task_heads > 1 && p.batch * plan.splits * (p.kv_heads / plan.task_heads) < workers) {
    plan.task_heads = (plan.task_heads + 1) / 2;
  }
  plan.head_tasks = (p.kv_heads + plan.task_heads - 1) / plan.task_heads;
  const std::int64_t whole = std::max<std::int64_t>(p.batch * plan.head_tasks, 1);
  const std::int64_t wanted = std::min(plan.splits, (kTasksPerWorker * workers + whole - 1) / whole);
  plan.task_splits = (plan.splits + wanted - 1) / wanted;
  plan.split_tasks = (plan.splits + plan.task_splits - 1) / plan.task_splits;
  return plan;
}

template <typename A>
DecodePartials take_partials(Arena& arena, const core::Problem& p, const DecodePlan& plan) {
  auto take = [&](std::int64_t columns) {
    return arena.take<A>(p.batch, p.kv_heads, plan.splits, plan.rows, columns);
  };
  A *const maximum = take(1), *const sum = take(1);
  return {maximum, sum, take(plan.padded_v_dim)};
}

DecodePartials take_partials(Arena& arena, const core::Problem& p, const DecodePlan& plan) {
  return p.dtype == DType::fp64 ? take_partials<double>(arena, p, plan)
                                : take_partials<float>(arena, p, plan);
}

}  // namespace

bool decode_limits(const core::Problem&, core::Reason reason) {
  const Target target = active_target();
  return decode_engine(target) == nullptr &&
         reason.give("needs a vector instruction set; here ", name(target));
}

bool decode_yields(const core::Problem& p, core::Reason reason) {
  return p.q_length > kMostDecodeQueries &&
         reason.give("is for at most ", kMostDecodeQueries, " queries",
                     p.packed ? " in the longest sequence" : "", "; here ", p.q_length);
}

registry::Configuration decode_configuration(const core::Problem& p, int workers) {
  const DecodeEngine& engine = *decode_engine(active_target());
  const DecodePlan plan = decode_plan(p, workers);
  const std::int64_t tasks = p.batch * plan.head_tasks * plan.split_tasks;
  const int useful = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, workers));
  Arena arena;
  take_partials(arena, p, plan);
  return {.block_q = plan.rows,
          .block_k = plan.step_keys,
          .shared_memory_bytes = 0,
          .workspace_bytes = core::workspace_bytes(arena.used(), engine.worker_bytes(p, plan), useful),
          .workers = useful,
          // All readers of a key come while it is in the cache, however small that is: K and V count once.
          .fast_memory_bytes = std::numeric_limits<double>::infinity()};
}

std::string decode_details(const core::Problem& p, const registry::Configuration& configuration) {
  const DecodePlan plan = decode_plan(p, configuration.workers);
  return core::concat("instruction set ", name(target_for(active_target(), p.dtype)), ", ", plan.splits,
                      plan.splits == 1 ? " split" : " splits", " of ", plan.split_keys, " keys, ",
                      p.batch * plan.head_tasks * plan.split_tasks, " tasks of ", plan.task_heads,
                      plan.task_heads == 1 ? " key/value head" : " key/value heads");
}

void decode_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources) {
  const DecodeEngine& engine = *decode_engine(active_target());
  const DecodePlan plan = decode_plan(p, configuration.workers);
  Arena arena(resources.workspace);
  const DecodePartials partials = take_partials(arena, p, plan);
  std::byte* memory = resources.workspace + arena.used();
  const std::size_t bytes = engine.worker_bytes(p, plan);
  const std::int64_t tasks = p.batch * plan.head_tasks * plan.split_tasks;
  parallel_for(*resources.executor, configuration.workers, tasks, [&](std::int64_t task, int worker) {
    engine.run_task(p, plan, task, partials, memory + bytes * static_cast<std::size_t>(worker));
    if (plan.split_tasks > 1) return;
    const std::int64_t first =
        task % plan.head_tasks * plan.task_heads;  // it has all of its heads: merge now
    for (std::int64_t h = first; h < std::min(first + plan.task_heads, p.kv_heads); ++h) {
      engine.merge(p, plan, task / plan.head_tasks * p.kv_heads + h, partials);
    }
  });
  if (plan.split_tasks == 1) return;
  parallel_for(*resources.executor, configuration.workers, p.batch * p.kv_heads,
               [&](std::int64_t index, int) { engine.merge(p, plan, index, partials); });
}

}  // namespace tessera::cpu
