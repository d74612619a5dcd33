// cpu.decode: attention of a few queries over many keys, bound by reading K and V.
//
// Flash attention with the keys cut instead of the queries ("flash decoding"): every task reads a
// stretch of K and V once, for all queries of the group that shares them, and leaves a partial
// result; the partial results of a row are merged by their maxima and sums, in order.
//
// Traffic: Q, K, V and O once; partial results (one row of accumulators per row of queries and
// split) are written and read once: 0.1 % of K and V per row and pass in fp32 at head_dim 128. The
// cut into splits depends on head_dim and type alone: neither threads, batch nor heads change a bit
// of a row.
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

// Bytes of K and V of one head in a split: long enough that merging costs nothing, short enough
// that a few thousand keys occupy many threads.
constexpr std::int64_t kSplitBytes = 512 << 10;
constexpr std::int64_t kMinSplitKeys = 256;
constexpr std::int64_t kMaxSplitKeys = 4096;

// Bytes of K and V of one head in a step: the next step is on its way to the second-level cache
// meanwhile. Measured: half as much wastes time between the products, twice as much loses a tenth
// of the bandwidth.
constexpr std::int64_t kStepBytes = 32 << 10;
constexpr std::int64_t kMinStepKeys = 32;
constexpr std::int64_t kMaxStepKeys = 128;

// Elements of a vector of bf16, which the products of bf16 take whole.
constexpr std::int64_t kBf16Lanes = 32;

// Tasks per worker that make up for workers of unequal speed.
constexpr std::int64_t kTasksPerWorker = 8;

// The largest power of two from `least` to `most` whose K and V fit into `bytes`: steps then divide
// splits.
std::int64_t keys_within(const core::Problem& p, std::int64_t bytes, std::int64_t least, std::int64_t most) {
  const std::int64_t key_bytes = (p.qk_dim + p.v_dim) * static_cast<std::int64_t>(size_of(p.dtype));
  std::int64_t keys = least;
  while (keys < most && 2 * keys * key_bytes <= bytes) keys *= 2;
  return keys;
}

// Heads lie side by side within the row of a key, as in (batch, sequence, heads, head_dim): then
// they are taken together, so that memory is read as it lies.
bool heads_side_by_side(const core::View& view) {
  return std::abs(view.head_stride) < std::abs(view.row_stride);
}

DecodePlan decode_plan(const core::Problem& p, Target active, int workers) {
  DecodePlan plan;
  plan.rows = rows_per_head(p);
  // SVE's vectors may be longer than what is enough elsewhere.
  const std::int64_t lanes = decode_engine(active)->lanes(p.dtype == DType::fp64);
  const std::int64_t padding = std::max<std::int64_t>(lanes, 16);
  plan.padded_v_dim = (p.v_dim + padding - 1) / padding * padding;
  const Target target = target_for(active, p.dtype);
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

// What cpu.decode decides.
struct Decision {
  Target target{};  // that the engine is for, as the element type uses it
  const DecodeEngine* engine = nullptr;
  DecodePlan plan{};
  std::int64_t tasks = 0;
  std::size_t worker_bytes = 0;  // of each worker, behind the partial results
};

}  // namespace

std::optional<core::Choice> choose_decode(const core::Problem& p, int workers, core::Reason reason) {
  const Target target = active_target();
  if (decode_engine(target) == nullptr) {
    return reason.decline("requires a vector instruction set; this CPU runs `", name(target), "`");
  }
  return choose_decode(p, workers, target);
}

core::Choice choose_decode(const core::Problem& p, int workers, Target target) {
  Decision d{.target = target_for(target, p.dtype),
             .engine = decode_engine(target),
             .plan = decode_plan(p, target, workers)};
  d.tasks = p.batch * d.plan.head_tasks * d.plan.split_tasks;
  d.worker_bytes = d.engine->worker_bytes(p, d.plan);
  const int useful = static_cast<int>(std::clamp<std::int64_t>(d.tasks, 1, workers));
  Arena partials;
  take_partials(partials, p, d.plan);
  return {.block_q = d.plan.rows,
          .block_k = d.plan.step_keys,
          .workspace_bytes = core::workspace_bytes(partials.used(), d.worker_bytes, useful),
          .workers = useful,
          // All queries that share a key use it while it is cached, however small the cache is: K and V
          // count once.
          .traffic_cache_bytes = std::numeric_limits<double>::infinity(),
          .decision = d};
}

bool decode_prefers_another(const core::Problem& p, core::Reason reason) {
  return p.q_length > kMostDecodeQueries &&
         reason.give("supports at most ", kMostDecodeQueries, " queries",
                     p.packed ? " in the longest sequence" : "", "; this call has ", p.q_length);
}

std::string decode_details(const core::Problem&, const core::Choice& choice) {
  const auto d = choice.decision.as<Decision>();
  return core::concat("instruction set ", name(d.target), ", ", d.plan.splits,
                      d.plan.splits == 1 ? " split" : " splits", " of ", d.plan.split_keys, " keys, ",
                      d.tasks, " tasks of ", d.plan.task_heads,
                      d.plan.task_heads == 1 ? " key/value head" : " key/value heads");
}

void run_decode(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  const auto d = choice.decision.as<Decision>();
  const DecodePlan& plan = d.plan;
  Arena arena(resources.workspace);
  const DecodePartials partials = take_partials(arena, p, plan);
  std::byte* memory = resources.workspace + arena.used();
  parallel_for(*resources.executor, choice.workers, d.tasks, [&](std::int64_t task, int worker) {
    d.engine->run_task(p, plan, task, partials, memory + d.worker_bytes * static_cast<std::size_t>(worker));
    if (plan.split_tasks > 1) return;
    // The task has all splits of its heads: it merges them at once.
    const std::int64_t first = task % plan.head_tasks * plan.task_heads;
    for (std::int64_t h = first; h < std::min(first + plan.task_heads, p.kv_heads); ++h) {
      d.engine->merge(p, plan, task / plan.head_tasks * p.kv_heads + h, partials);
    }
  });
  if (plan.split_tasks == 1) return;
  parallel_for(*resources.executor, choice.workers, p.batch * p.kv_heads,
               [&](std::int64_t index, int) { d.engine->merge(p, plan, index, partials); });
}

}  // namespace tessera::cpu
