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
#include <limits>

#include "core/base/text.h"
#include "cpu/decode/plan.h"
#include "cpu/engine.h"
#include "cpu/machine/arena.h"
#include "cpu/machine/parallel_for.h"
#include "cpu/visible_summary.h"

namespace tessera::cpu {
namespace {

// What cpu.decode decides.
struct Decision {
  Target target{};  // as the element type uses it
  const DecodeOps* ops = nullptr;
  DecodePlan plan{};
  std::int64_t tasks = 0;
  std::size_t worker_bytes = 0;  // of each worker, behind the partial results
  int mergers = 1;               // workers that are worth waking for merging them
};

// All queries of a head are one group of the boolean mask's summary.
std::int64_t group_rows(const core::Problem& p) { return std::max<std::int64_t>(p.q_length, 1); }

}  // namespace

std::optional<core::Choice> choose_decode(const core::Problem& p, int workers, core::Reason reason) {
  const Target target = active_target();
  if (engine(target).decode == nullptr) {
    return reason.decline("requires a vector instruction set; this CPU runs `", name(target), "`");
  }
  return choose_decode(p, workers, target);
}

core::Choice choose_decode(const core::Problem& p, int workers, Target target) {
  Decision d{.target = target_for_type(target, p.dtype)};
  d.ops = engine(d.target).decode;
  d.plan = decode_plan(p, d.target, d.ops->lanes(p.dtype), workers, reading());
  d.tasks = task_count(p, d.plan);
  d.worker_bytes = d.ops->worker_bytes(p, d.plan);
  const int useful = static_cast<int>(std::clamp<std::int64_t>(d.tasks, 1, workers));
  Arena partials;
  take_partials(partials, p, d.plan);
  constexpr std::size_t kBytesPerMerger = 256 << 10;
  d.mergers = static_cast<int>(std::min<std::size_t>(1 + partials.used() / kBytesPerMerger, 1 << 12));
  return {.block_q = d.plan.rows,
          .block_k = d.plan.step_keys,
          .workspace_bytes = core::workspace_bytes(
              core::checked_sum(visible_summary_bytes(p, group_rows(p)), partials.used()), d.worker_bytes,
              useful),
          .workers = useful,
          // All queries that share a key use it while it is cached, however small
          // the cache is: K and V count once.
          .traffic_cache_bytes = std::numeric_limits<double>::infinity(),
          .decision = d};
}

bool prefers_decode(DType dtype, std::int64_t queries, std::int64_t keys) noexcept {
  std::int64_t many_keys = 2048;
  if (dtype == DType::bf16 || (dtype == DType::fp32 && queries <= 12)) many_keys = 32;
  if (dtype == DType::fp16) many_keys = 512;
  return queries <= kFewDecodeQueries || (queries <= kMostDecodeQueries && keys > many_keys);
}

bool decode_prefers_another(const core::Problem& p, core::Reason reason) {
  if (p.packed) {  // where all sequences prefer this kernel, whatever their keys; cpu.packed has the rest
    return p.q_length > kFewDecodeQueries &&
           reason.give("supports at most ", kFewDecodeQueries,
                       " queries in the longest sequence; this call has ", p.q_length);
  }
  if (prefers_decode(p.dtype, p.q_length, p.k_length)) return false;
  if (p.q_length > kMostDecodeQueries) {
    return reason.give("supports at most ", kMostDecodeQueries, " queries; this call has ", p.q_length);
  }
  return reason.give("is slower for ", p.q_length, " queries and ", p.k_length, " keys in ", name(p.dtype));
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
  const Summarised call = summarise_visible(p, group_rows(p), choice.workers, resources);
  Arena arena(call.resources.workspace);
  const DecodePartials partials = take_partials(arena, p, plan);
  std::byte* memory = call.resources.workspace + arena.used();
  parallel_for(*resources.executor, choice.workers, d.tasks, [&](std::int64_t task, int worker) {
    d.ops->run_task(call.problem, plan, task, partials,
                    memory + d.worker_bytes * static_cast<std::size_t>(worker));
    if (plan.split_tasks > 1) return;
    // The task has all splits of its heads: it merges them at once.
    const std::int64_t first = task % plan.head_tasks * plan.task_heads;
    for (std::int64_t h = first; h < std::min(first + plan.task_heads, p.kv_heads); ++h) {
      d.ops->merge(p, plan, task / plan.head_tasks * p.kv_heads + h, partials);
    }
  });
  if (plan.split_tasks == 1) return;
  parallel_for(*resources.executor, std::min(choice.workers, d.mergers), p.batch * p.kv_heads,
               [&](std::int64_t index, int) { d.ops->merge(p, plan, index, partials); });
}

}  // namespace tessera::cpu
