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

namespace tessera::cpu {
namespace {

const ForwardOps& forward_ops_of(const core::Problem& p) { return active_engine(p.dtype).forward; }
const BackwardOps& backward_ops_of(const core::Problem& p) { return active_engine(p.dtype).backward; }

ForwardPlan active_forward_plan(const core::Problem& p, int workers) {
  return forward_plan(p, target_for_type(active_target(), p.dtype), forward_ops_of(p).tile_rows(p.dtype),
                      tuning(), workers);
}

BackwardPlan active_backward_plan(const core::Problem& p, int workers) {
  return backward_plan(p, backward_ops_of(p).tile_rows(p.dtype), tuning(), workers);
}

int useful_workers(std::int64_t tasks, int workers) {
  return static_cast<int>(std::clamp<std::int64_t>(tasks, 1, workers));
}

// What the tasks of split heads share, in memory of the arena.
SplitSlots split_slots(Arena& arena, const core::Problem& p, const BackwardPlan& plan) {
  const std::int64_t heads = split_query_heads(p, plan);
  if (heads == 0) return {};
  SplitSlots slots = backward_ops_of(p).slot_sizes(p, plan);
  slots.tiles = query_tiling(p, plan, p.q_length).count();
  for (std::int64_t split = 0; split < plan.splits_per_head && p.has_grad_q; ++split) {
    slots.grad_q_tiles += visible_tiles(p, plan, split).length();
  }
  slots.queries = arena.take<std::byte>(heads, slots.tiles, slots.query_bytes);
  slots.grad_q = arena.take<std::byte>(heads, slots.grad_q_tiles, slots.grad_q_bytes);
  return slots;
}

std::string details(const core::Problem& p, std::int64_t tasks, bool copied, const char* per) {
  return core::concat("instruction set ", name(target_for_type(active_target(), p.dtype)), ", ", tasks,
                      " tasks", copied ? ", K and V copied per " : "", copied ? per : "");
}

}  // namespace

registry::Configuration flash2_forward_configuration(const core::Problem& p, int workers) {
  const ForwardPlan plan = active_forward_plan(p, workers);
  const int useful = useful_workers(task_count(plan, p.batch * p.q_heads), workers);
  return {.block_q = plan.tile_rows,
          .block_k = plan.block_k,
          .shared_memory_bytes = 0,
          .workspace_bytes = core::workspace_bytes(0, forward_ops_of(p).worker_bytes(p, plan), useful),
          .workers = useful,
          .fast_memory_bytes = static_cast<double>(caches().l2)};
}

std::string flash2_forward_details(const core::Problem& p, const registry::Configuration& configuration) {
  const ForwardPlan plan = active_forward_plan(p, configuration.workers);
  return details(p, task_count(plan, p.batch * p.q_heads), plan.copy_k || plan.copy_v, "worker");
}

void flash2_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources) {
  flash2_forward_longer_than(p, configuration, resources, 0);
}

void flash2_forward_longer_than(const core::Problem& p, const registry::Configuration& configuration,
                                const registry::Resources& resources, std::int64_t queries) {
  const ForwardOps& ops = forward_ops_of(p);
  const ForwardPlan plan = active_forward_plan(p, configuration.workers);
  const std::size_t bytes = configuration.workspace_bytes / static_cast<std::size_t>(configuration.workers);
  for (int worker = 0; worker < configuration.workers; ++worker) {
    std::memset(resources.workspace + bytes * static_cast<std::size_t>(worker), 0, sizeof(std::int64_t));
  }
  const std::int64_t heads = p.batch * p.q_heads;
  parallel_for(*resources.executor, configuration.workers, task_count(plan, heads),
               [&](std::int64_t task, int worker) {
                 const std::int64_t sequence = task_of(plan, heads, task).head / p.q_heads;
                 if (core::sequence(p, sequence).q_length <= queries) return;
                 ops.run_task(p, plan, task, resources.workspace + bytes * static_cast<std::size_t>(worker));
               });
}

registry::Configuration flash2_backward_configuration(const core::Problem& p, int workers) {
  const std::int64_t tasks = task_count(active_backward_plan(p, workers), p.batch * p.kv_heads);
  const int useful = useful_workers(tasks, workers);
  const BackwardPlan plan = active_backward_plan(p, useful);
  Arena shared;
  split_slots(shared, p, plan);
  const std::size_t bytes =
      core::workspace_bytes(shared.used(), backward_ops_of(p).worker_bytes(p, plan), useful);
  return {.block_q = plan.tile_rows,
          .block_k = plan.block_k,
          .shared_memory_bytes = 0,
          .workspace_bytes = std::max(bytes, bias_gradient_bytes(p, useful)),
          .workers = useful,
          .fast_memory_bytes = static_cast<double>(caches().l2)};
}

std::string flash2_backward_details(const core::Problem& p, const registry::Configuration& configuration) {
  const BackwardPlan plan = active_backward_plan(p, configuration.workers);
  return details(p, task_count(plan, p.batch * p.kv_heads), plan.copy_k || plan.copy_v, "task");
}

void flash2_backward(const core::Problem& p, const registry::Configuration& configuration,
                     const registry::Resources& resources) {
  const BackwardOps& ops = backward_ops_of(p);
  const BackwardPlan plan = active_backward_plan(p, configuration.workers);
  Arena shared(resources.workspace);
  const SplitSlots slots = split_slots(shared, p, plan);
  const std::size_t bytes = ops.worker_bytes(p, plan);
  auto memory = [&](int worker) {
    return resources.workspace + shared.used() + bytes * static_cast<std::size_t>(worker);
  };
  const std::int64_t tiles = split_query_heads(p, plan) * slots.tiles;
  if (p.has_grad_q || p.has_grad_k || p.has_grad_v) {
    if (tiles > 0) {
      parallel_for(*resources.executor, configuration.workers, tiles, [&](std::int64_t tile, int) {
        ops.pack_queries(p, plan, tile / slots.tiles, tile % slots.tiles, slots);
      });
    }
    parallel_for(*resources.executor, configuration.workers, task_count(plan, p.batch * p.kv_heads),
                 [&](std::int64_t task, int worker) { ops.run_task(p, plan, task, memory(worker), slots); });
  }
  if (p.has_grad_q && tiles > 0) {  // the last rows, which see most keys, first
    parallel_for(*resources.executor, configuration.workers, tiles * kReduceParts,
                 [&](std::int64_t task, int worker) {
                   const std::int64_t tile = tiles - 1 - task / kReduceParts;
                   ops.reduce(p, plan, tile / slots.tiles, tile % slots.tiles, task % kReduceParts,
                              memory(worker), slots);
                 });
  }
  if (p.has_grad_bias) bias_gradient(p, configuration.workers, resources);
}

}  // namespace tessera::cpu
