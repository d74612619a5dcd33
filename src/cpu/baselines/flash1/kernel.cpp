#include "cpu/baselines/flash1/kernel.h"

#include <algorithm>

#include "core/base/arena.h"
#include "core/base/text.h"
#include "cpu/baselines/flash1/backward.h"
#include "cpu/baselines/flash1/forward.h"
#include "cpu/baselines/flash1/portable.h"
#include "cpu/flash2/bias_gradient.h"
#include "cpu/machine/cpu_info.h"
#include "cpu/machine/parallel_for.h"

namespace tessera::cpu {
namespace {

// The paper's rule: a quarter of the fast memory each for K, V, Q and O. So half of the second-level cache
// holds what stays for all queries, `row_elements` accumulators per key.
std::int64_t keys_that_stay(const core::Problem& p, std::int64_t row_elements, std::int64_t multiple) {
  const auto element = static_cast<std::int64_t>(size_of(accumulator_of(p.dtype)));
  const std::int64_t fitting = static_cast<std::int64_t>(caches().l2) / 2 / (element * row_elements);
  return std::clamp<std::int64_t>(fitting / multiple * multiple, multiple, 512);
}

Flash1ForwardPlan forward_plan(const core::Problem& p, const Flash1ForwardEngine& engine) {
  return {engine.tile_rows(p.dtype == DType::fp64), keys_that_stay(p, p.qk_dim + p.v_dim, 64)};
}

// dK and dV stay with K and V.
Flash1BackwardPlan backward_plan(const core::Problem& p, const Flash1BackwardEngine& engine) {
  constexpr std::int64_t kStepKeys = 128;
  return {engine.tile_rows(p.dtype == DType::fp64), keys_that_stay(p, 2 * (p.qk_dim + p.v_dim), kStepKeys),
          kStepKeys};
}

// Workers take whole heads: more of them than heads are of no use.
int useful_workers(const core::Problem& p, std::int64_t heads, int workers) {
  return static_cast<int>(std::clamp<std::int64_t>(p.batch * heads, 1, workers));
}

}  // namespace

registry::Configuration flash1_forward_configuration(const core::Problem& p, int workers) {
  const Flash1ForwardEngine* engine = flash1_forward_engine(active_target());
  if (engine == nullptr) return portable::flash1_forward_configuration(p, workers);
  const Flash1ForwardPlan plan = forward_plan(p, *engine);
  const int useful = useful_workers(p, p.q_heads, workers);
  return {.block_q = plan.tile_rows,
          .block_k = plan.block_k,
          .shared_memory_bytes = 0,
          .workspace_bytes = core::workspace_bytes(0, engine->worker_bytes(p, plan), useful),
          .workers = useful,
          .fast_memory_bytes = static_cast<double>(caches().l2)};
}

registry::Configuration flash1_backward_configuration(const core::Problem& p, int workers) {
  const Flash1BackwardEngine* engine = flash1_backward_engine(active_target());
  if (engine == nullptr) return portable::flash1_backward_configuration(p, workers);
  const Flash1BackwardPlan plan = backward_plan(p, *engine);
  const int useful = useful_workers(p, p.kv_heads, workers);
  return {.block_q = plan.tile_rows,
          .block_k = plan.block_k,
          .shared_memory_bytes = 0,
          .workspace_bytes = std::max(core::workspace_bytes(0, engine->worker_bytes(p, plan), useful),
                                      bias_gradient_bytes(p, useful)),
          .workers = useful,
          .fast_memory_bytes = static_cast<double>(caches().l2)};
}

std::string flash1_details(const core::Problem&, const registry::Configuration&) {
  return core::concat("instruction set ", name(target_for(active_target(), DType::fp32)),
                      ", 1 task per head");
}

void flash1_forward(const core::Problem& p, const registry::Configuration& configuration,
                    const registry::Resources& resources) {
  const Flash1ForwardEngine* engine = flash1_forward_engine(active_target());
  if (engine == nullptr) return portable::flash1_forward(p, configuration, resources);
  const Flash1ForwardPlan plan = forward_plan(p, *engine);
  const std::size_t bytes = engine->worker_bytes(p, plan);
  parallel_for(
      *resources.executor, configuration.workers, p.batch * p.q_heads, [&](std::int64_t task, int worker) {
        engine->run_task(p, plan, task, resources.workspace + bytes * static_cast<std::size_t>(worker));
      });
}

void flash1_backward(const core::Problem& p, const registry::Configuration& configuration,
                     const registry::Resources& resources) {
  const Flash1BackwardEngine* engine = flash1_backward_engine(active_target());
  if (engine == nullptr) return portable::flash1_backward(p, configuration, resources);
  const Flash1BackwardPlan plan = backward_plan(p, *engine);
  const std::size_t bytes = engine->worker_bytes(p, plan);
  if (p.has_grad_q || p.has_grad_k || p.has_grad_v) {
    parallel_for(
        *resources.executor, configuration.workers, p.batch * p.kv_heads, [&](std::int64_t task, int worker) {
          engine->run_task(p, plan, task, resources.workspace + bytes * static_cast<std::size_t>(worker));
        });
  }
  if (p.has_grad_bias) bias_gradient(p, configuration.workers, resources);
}

}  // namespace tessera::cpu
