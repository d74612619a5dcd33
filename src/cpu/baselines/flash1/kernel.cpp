#include "cpu/baselines/flash1/kernel.h"

#include <algorithm>

#include "core/base/arena.h"
#include "core/base/text.h"
#include "cpu/baselines/flash1/plan.h"
#include "cpu/engine.h"
#include "cpu/flash2/bias_gradient.h"
#include "cpu/machine/cpu_info.h"
#include "cpu/machine/parallel_for.h"

namespace tessera::cpu {
namespace {

std::int64_t l2_bytes() { return static_cast<std::int64_t>(caches().l2); }

Flash1Plan active_forward_plan(const core::Problem& p) {
  return flash1_forward_plan(p, active_engine(p.dtype).flash1_forward->tile_rows(p.dtype), l2_bytes());
}

Flash1Plan active_backward_plan(const core::Problem& p) {
  return flash1_backward_plan(p, active_engine(p.dtype).flash1_backward->tile_rows(p.dtype), l2_bytes());
}

// Workers take whole heads: more of them than heads are of no use.
int useful_workers(const core::Problem& p, std::int64_t heads, int workers) {
  return static_cast<int>(std::clamp<std::int64_t>(p.batch * heads, 1, workers));
}

}  // namespace

bool flash1_limits(const core::Problem& p, core::Reason reason) {
  return active_engine(p.dtype).flash1_forward == nullptr &&
         reason.give("requires a vector instruction set; this CPU runs `", name(active_target()), "`");
}

registry::Configuration flash1_forward_configuration(const core::Problem& p, int workers) {
  const Flash1Plan plan = active_forward_plan(p);
  const int useful = useful_workers(p, p.q_heads, workers);
  const std::size_t bytes = active_engine(p.dtype).flash1_forward->worker_bytes(p, plan);
  return {.block_q = plan.tile_rows,
          .block_k = plan.block_k,
          .shared_memory_bytes = 0,
          .workspace_bytes = core::workspace_bytes(0, bytes, useful),
          .workers = useful,
          .fast_memory_bytes = static_cast<double>(caches().l2)};
}

registry::Configuration flash1_backward_configuration(const core::Problem& p, int workers) {
  const Flash1Plan plan = active_backward_plan(p);
  const int useful = useful_workers(p, p.kv_heads, workers);
  const std::size_t bytes = active_engine(p.dtype).flash1_backward->worker_bytes(p, plan);
  return {
      .block_q = plan.tile_rows,
      .block_k = plan.block_k,
      .shared_memory_bytes = 0,
      .workspace_bytes = std::max(core::workspace_bytes(0, bytes, useful), bias_gradient_bytes(p, useful)),
      .workers = useful,
      .fast_memory_bytes = static_cast<double>(caches().l2)};
}

std::string flash1_details(const core::Problem&, const registry::Configuration&) {
  return core::concat("instruction set ", name(target_for_type(active_target(), DType::fp32)),
                      ", 1 task per head");
}

void flash1_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources) {
  const Flash1ForwardOps& ops = *active_engine(p.dtype).flash1_forward;
  const Flash1Plan plan = active_forward_plan(p);
  const std::size_t bytes = ops.worker_bytes(p, plan);
  parallel_for(*resources.executor, configuration.workers, p.batch * p.q_heads,
               [&](std::int64_t task, int worker) {
                 ops.run_task(p, plan, task, resources.workspace + bytes * static_cast<std::size_t>(worker));
               });
}

void flash1_backward(const core::Problem& p, const registry::Configuration& configuration,
                     const registry::Resources& resources) {
  const Flash1BackwardOps& ops = *active_engine(p.dtype).flash1_backward;
  const Flash1Plan plan = active_backward_plan(p);
  const std::size_t bytes = ops.worker_bytes(p, plan);
  if (p.has_grad_q || p.has_grad_k || p.has_grad_v) {
    parallel_for(
        *resources.executor, configuration.workers, p.batch * p.kv_heads, [&](std::int64_t task, int worker) {
          ops.run_task(p, plan, task, resources.workspace + bytes * static_cast<std::size_t>(worker));
        });
  }
  if (p.has_grad_bias) bias_gradient(p, configuration.workers, resources);
}

}  // namespace tessera::cpu
