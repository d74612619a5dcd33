// cpu.decode: attention of a few queries over many keys, bound by reading K and V.
//
// This is flash attention with the keys cut instead of the queries ("flash decoding"). Every task
// reads a range of K and V once, for all queries of the group that shares them, and leaves a
// partial result. The partial results of a row are merged by their maxima and sums, in order.
//
// Traffic: Q, K, V and O once. Partial results (one row of accumulators per row of queries and
// split) are written and read once: 0.1 % of K and V per row and pass in fp32 at head_dim 128. The
// cut into splits depends on head_dim and type alone: neither threads, batch nor heads change a bit
// of a row.
#include "cpu/decode/kernel.h"

#include <algorithm>
#include <limits>

#include "core/base/arena.h"
#include "core/base/text.h"
#include "cpu/decode/plan.h"
#include "cpu/engine.h"
#include "cpu/machine/arena.h"
#include "cpu/machine/parallel_for.h"

namespace tessera::cpu {
namespace {

const DecodeOps& active_ops(const core::Problem& p) { return *active_engine(p.dtype).decode; }

DecodePlan active_plan(const core::Problem& p, int workers) {
  return decode_plan(p, target_for_type(active_target(), p.dtype), active_ops(p).lanes(p.dtype), workers);
}

}  // namespace

bool decode_limits(const core::Problem& p, core::Reason reason) {
  return active_engine(p.dtype).decode == nullptr &&
         reason.give("requires a vector instruction set; this CPU runs `", name(active_target()), "`");
}

bool decode_yields(const core::Problem& p, core::Reason reason) {
  return p.q_length > kMostDecodeQueries &&
         reason.give("supports at most ", kMostDecodeQueries, " queries",
                     p.packed ? " in the longest sequence" : "", "; this call has ", p.q_length);
}

registry::Configuration decode_configuration(const core::Problem& p, int workers) {
  const DecodePlan plan = active_plan(p, workers);
  const int useful = static_cast<int>(std::clamp<std::int64_t>(task_count(p, plan), 1, workers));
  Arena arena;
  take_partials(arena, p, plan);
  return {.block_q = plan.rows,
          .block_k = plan.step_keys,
          .shared_memory_bytes = 0,
          .workspace_bytes = core::workspace_bytes(arena.used(), active_ops(p).worker_bytes(p, plan), useful),
          .workers = useful,
          // All readers of a key come while it is in the cache, however small that is: K and V
          // count once.
          .fast_memory_bytes = std::numeric_limits<double>::infinity()};
}

std::string decode_details(const core::Problem& p, const registry::Configuration& configuration) {
  const DecodePlan plan = active_plan(p, configuration.workers);
  return core::concat("instruction set ", name(target_for_type(active_target(), p.dtype)), ", ", plan.splits,
                      plan.splits == 1 ? " split" : " splits", " of ", plan.split_keys, " keys, ",
                      task_count(p, plan), " tasks of ", plan.task_heads,
                      plan.task_heads == 1 ? " key/value head" : " key/value heads");
}

void decode_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources) {
  const DecodeOps& ops = active_ops(p);
  const DecodePlan plan = active_plan(p, configuration.workers);
  Arena arena(resources.workspace);
  const DecodePartials partials = take_partials(arena, p, plan);
  std::byte* memory = resources.workspace + arena.used();
  const std::size_t bytes = ops.worker_bytes(p, plan);
  parallel_for(*resources.executor, configuration.workers, task_count(p, plan),
               [&](std::int64_t task, int worker) {
                 ops.run_task(p, plan, task, partials, memory + bytes * static_cast<std::size_t>(worker));
                 if (plan.split_tasks > 1) return;
                 // The task has all splits of its heads: merge now.
                 const std::int64_t first = task % plan.head_tasks * plan.task_heads;
                 for (std::int64_t h = first; h < std::min(first + plan.task_heads, p.kv_heads); ++h) {
                   ops.merge(p, plan, task / plan.head_tasks * p.kv_heads + h, partials);
                 }
               });
  if (plan.split_tasks == 1) return;
  parallel_for(*resources.executor, configuration.workers, p.batch * p.kv_heads,
               [&](std::int64_t index, int) { ops.merge(p, plan, index, partials); });
}

}  // namespace tessera::cpu
