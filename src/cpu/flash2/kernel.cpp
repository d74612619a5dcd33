#include "cpu/flash2/kernel.h"

#include <algorithm>
#include <cstring>

#include "core/base/arena.h"
#include "core/base/text.h"
#include "cpu/engine.h"
#include "cpu/flash2/backward_plan.h"
#include "cpu/flash2/bias_gradient.h"
#include "cpu/flash2/forward_plan.h"
#include "cpu/machine/arena.h"
#include "cpu/machine/cpu_info.h"
#include "cpu/machine/parallel_for.h"
#include "cpu/visible_summary.h"

namespace tessera::cpu {
namespace {

ForwardPlan active_plan(const core::Problem& p, Target target, const ForwardOps& ops, int workers) {
  return forward_plan(p, target, ops.tile_rows(p.dtype), tuning(), workers);
}

BackwardPlan active_plan(const core::Problem& p, const BackwardOps& ops, int workers) {
  return backward_plan(p, ops.tile_rows(p.dtype), tuning(), workers);
}

// What their tasks share: sizes, without memory.
SplitSlots slots_of(const core::Problem& p, const BackwardPlan& plan, const BackwardOps& ops) {
  if (split_query_heads(p, plan) == 0) return {};
  SplitSlots slots = ops.slot_sizes(p, plan);
  slots.tiles = query_tiling(p, plan, p.q_length).count();
  for (std::int64_t split = 0; split < plan.splits_per_head && p.has_grad_q; ++split) {
    slots.grad_q_tiles += visible_tiles(p, plan, split).length();
  }
  return slots;
}

// Memory for the slots of `heads` query heads.
void take(Arena& arena, std::int64_t heads, SplitSlots& slots) {
  slots.queries = arena.take<std::byte>(heads, slots.tiles, slots.query_bytes);
  slots.grad_q = arena.take<std::byte>(heads, slots.grad_q_tiles, slots.grad_q_bytes);
}

// How many of the workers have something to do.
int useful_workers(std::int64_t tasks, int workers) {
  return static_cast<int>(std::clamp<std::int64_t>(tasks, 1, workers));
}

struct BackwardDecision {
  Target target{};
  const BackwardOps* ops = nullptr;
  BackwardPlan plan{};
  SplitSlots slots{};           // without memory
  std::int64_t slot_heads = 0;  // query heads that have slots
  std::int64_t tasks = 0;
  std::size_t worker_bytes = 0;
};

}  // namespace

std::optional<core::Choice> choose_flash2_forward(const core::Problem& p, int workers, core::Reason) {
  Flash2ForwardDecision d{.target = target_for_type(active_target(), p.dtype)};
  d.ops = &engine(d.target).forward;
  const std::int64_t heads = p.batch * p.q_heads;
  d.plan = active_plan(p, d.target, *d.ops, workers);
  d.workers = useful_workers(task_count(d.plan, heads), workers);
  // The plan cuts the work for the workers that take part.
  if (d.workers < workers) d.plan = active_plan(p, d.target, *d.ops, d.workers);
  d.tasks = task_count(d.plan, heads);
  d.worker_bytes = d.ops->worker_bytes(p, d.plan);
  return core::Choice{.block_q = d.plan.tile_rows,
                      .block_k = d.plan.block_k,
                      .workspace_bytes = core::workspace_bytes(visible_summary_bytes(p, d.plan.tile_rows),
                                                               d.worker_bytes, d.workers),
                      .workers = d.workers,
                      .traffic_cache_bytes = static_cast<double>(caches().l2),
                      .decision = d};
}

std::string flash2_forward_details(const core::Problem&, const core::Choice& choice) {
  return describe(choice.decision.as<Flash2ForwardDecision>());
}

std::string describe(const Flash2ForwardDecision& d) {
  return core::concat("instruction set ", name(d.target), ", ", d.tasks, " tasks",
                      d.plan.copy_k || d.plan.copy_v ? ", K and V copied per worker" : "");
}

void run_flash2_forward(const core::Problem& p, const core::Choice& choice,
                        const core::Resources& resources) {
  const auto d = choice.decision.as<Flash2ForwardDecision>();
  run_flash2_forward(p, d, resources, [](const core::Problem&, std::int64_t) { return false; });
}

void run_flash2_forward(const core::Problem& p, const Flash2ForwardDecision& d,
                        const core::Resources& resources,
                        bool (*skips)(const core::Problem& p, std::int64_t sequence)) {
  const Summarised call = summarise_visible(p, d.plan.tile_rows, d.workers, resources);
  auto memory = [&](int worker) {
    return call.resources.workspace + d.worker_bytes * static_cast<std::size_t>(worker);
  };
  for (int worker = 0; worker < d.workers; ++worker) std::memset(memory(worker), 0, sizeof(std::int64_t));
  const std::int64_t heads = p.batch * p.q_heads;
  parallel_for(*resources.executor, d.workers, d.tasks, [&](std::int64_t task, int worker) {
    const std::int64_t sequence = task_of(d.plan, heads, task).head / p.q_heads;
    if (skips(p, sequence)) return;
    d.ops->run_task(call.problem, d.plan, task, memory(worker));
  });
}

std::optional<core::Choice> choose_flash2_backward(const core::Problem& p, int workers, core::Reason) {
  BackwardDecision d{.target = target_for_type(active_target(), p.dtype)};
  d.ops = &engine(d.target).backward;
  const std::int64_t heads = p.batch * p.kv_heads;
  d.plan = active_plan(p, *d.ops, workers);
  const int useful = useful_workers(task_count(d.plan, heads), workers);
  // The plan cuts the work for the workers that take part.
  if (useful < workers) d.plan = active_plan(p, *d.ops, useful);
  d.slots = slots_of(p, d.plan, *d.ops);
  d.slot_heads = split_query_heads(p, d.plan);
  d.tasks = task_count(d.plan, heads);
  d.worker_bytes = d.ops->worker_bytes(p, d.plan);
  Arena shared;
  SplitSlots slots = d.slots;
  take(shared, d.slot_heads, slots);
  const std::size_t gradients = core::workspace_bytes(shared.used(), d.worker_bytes, useful);
  const std::size_t behind_summary = std::max(gradients, bias_gradient_bytes(p, d.target, useful));
  return core::Choice{
      .block_q = d.plan.tile_rows,
      .block_k = d.plan.block_k,
      .workspace_bytes = core::checked_sum(visible_summary_bytes(p, d.plan.tile_rows), behind_summary),
      .workers = useful,
      .traffic_cache_bytes = static_cast<double>(caches().l2),
      .decision = d};
}

std::string flash2_backward_details(const core::Problem&, const core::Choice& choice) {
  const auto d = choice.decision.as<BackwardDecision>();
  return core::concat("instruction set ", name(d.target), ", ", d.tasks, " tasks",
                      d.plan.copy_k || d.plan.copy_v ? ", K and V copied per task" : "");
}

namespace {

void run_summarised_backward(const core::Problem& p, const BackwardDecision& d, const core::Choice& choice,
                             const core::Resources& resources) {
  Arena shared(resources.workspace);
  SplitSlots slots = d.slots;
  take(shared, d.slot_heads, slots);
  auto memory = [&](int worker) {
    return resources.workspace + shared.used() + d.worker_bytes * static_cast<std::size_t>(worker);
  };
  const std::int64_t tiles = d.slot_heads * slots.tiles;
  if (p.has_grad_q || p.has_grad_k || p.has_grad_v) {
    if (tiles > 0) {
      parallel_for(*resources.executor, choice.workers, tiles, [&](std::int64_t tile, int) {
        d.ops->pack_queries(p, d.plan, tile / slots.tiles, tile % slots.tiles, slots);
      });
    }
    parallel_for(*resources.executor, choice.workers, d.tasks, [&](std::int64_t task, int worker) {
      d.ops->run_task(p, d.plan, task, memory(worker), slots);
    });
  }
  if (p.has_grad_q && tiles > 0) {  // the last rows, which see most keys, first
    parallel_for(*resources.executor, choice.workers, tiles * kReduceParts,
                 [&](std::int64_t task, int worker) {
                   const std::int64_t tile = tiles - 1 - task / kReduceParts;
                   d.ops->reduce(p, d.plan, tile / slots.tiles, tile % slots.tiles, task % kReduceParts,
                                 memory(worker), slots);
                 });
  }
  if (p.has_grad_bias) bias_gradient(p, d.target, choice.workers, resources);
}

}  // namespace

void run_flash2_backward(const core::Problem& p, const core::Choice& choice,
                         const core::Resources& resources) {
  const auto d = choice.decision.as<BackwardDecision>();
  const Summarised call = summarise_visible(p, d.plan.tile_rows, choice.workers, resources);
  run_summarised_backward(call.problem, d, choice, call.resources);
}

}  // namespace tessera::cpu
