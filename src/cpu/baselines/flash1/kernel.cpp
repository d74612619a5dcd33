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

// How many keys stay in the cache while all queries pass by. The paper gives a quarter of the fast
// memory each to K, V, Q and O; so half of the second-level cache holds keys, with `row_elements`
// accumulators for each.
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

// Workers take whole heads: more of them than there are heads would be idle.
int useful_workers(const core::Problem& p, std::int64_t heads, int workers) {
  return static_cast<int>(std::clamp<std::int64_t>(p.batch * heads, 1, workers));
}

// What one direction decides.
template <typename Engine, typename Plan>
struct Decision {
  Target target{};
  const Engine* engine = nullptr;  // null: the portable one
  Plan plan{};
  std::size_t worker_bytes = 0;
};

using ForwardDecision = Decision<Flash1ForwardEngine, Flash1ForwardPlan>;
using BackwardDecision = Decision<Flash1BackwardEngine, Flash1BackwardPlan>;

template <typename D>
core::Choice choice_of(const D& d, int workers) {
  return {.block_q = d.plan.tile_rows,
          .block_k = d.plan.block_k,
          .workspace_bytes = core::workspace_bytes(0, d.worker_bytes, workers),
          .workers = workers,
          .traffic_cache_bytes = static_cast<double>(caches().l2),
          .decision = d};
}

template <typename D>
std::string details(const D& d) {
  return core::concat("instruction set ", name(target_for(d.target, DType::fp32)), ", 1 task per head");
}

template <typename D>
void run_tasks(const core::Problem& p, const D& d, std::int64_t tasks, int workers,
               const core::Resources& resources) {
  parallel_for(*resources.executor, workers, tasks, [&](std::int64_t task, int worker) {
    d.engine->run_task(p, d.plan, task,
                       resources.workspace + d.worker_bytes * static_cast<std::size_t>(worker));
  });
}

}  // namespace

std::optional<core::Choice> choose_flash1_forward(const core::Problem& p, int workers, core::Reason) {
  ForwardDecision d{.target = active_target()};
  d.engine = flash1_forward_engine(d.target);
  if (d.engine == nullptr) {
    core::Choice choice = portable::flash1_forward_choice(p, workers);
    choice.decision = d;
    return choice;
  }
  d.plan = forward_plan(p, *d.engine);
  d.worker_bytes = d.engine->worker_bytes(p, d.plan);
  return choice_of(d, useful_workers(p, p.q_heads, workers));
}

std::string flash1_forward_details(const core::Problem&, const core::Choice& choice) {
  return details(choice.decision.as<ForwardDecision>());
}

void run_flash1_forward(const core::Problem& p, const core::Choice& choice,
                        const core::Resources& resources) {
  const auto d = choice.decision.as<ForwardDecision>();
  if (d.engine == nullptr) return portable::flash1_forward(p, choice, resources);
  run_tasks(p, d, p.batch * p.q_heads, choice.workers, resources);
}

std::optional<core::Choice> choose_flash1_backward(const core::Problem& p, int workers, core::Reason) {
  BackwardDecision d{.target = active_target()};
  d.engine = flash1_backward_engine(d.target);
  if (d.engine == nullptr) {
    core::Choice choice = portable::flash1_backward_choice(p, workers);
    choice.decision = d;
    return choice;
  }
  d.plan = backward_plan(p, *d.engine);
  d.worker_bytes = d.engine->worker_bytes(p, d.plan);
  core::Choice choice = choice_of(d, useful_workers(p, p.kv_heads, workers));
  const std::size_t bias_bytes = bias_gradient_bytes(p, d.target, choice.workers);
  choice.workspace_bytes = std::max(choice.workspace_bytes, bias_bytes);
  return choice;
}

std::string flash1_backward_details(const core::Problem&, const core::Choice& choice) {
  return details(choice.decision.as<BackwardDecision>());
}

void run_flash1_backward(const core::Problem& p, const core::Choice& choice,
                         const core::Resources& resources) {
  const auto d = choice.decision.as<BackwardDecision>();
  if (d.engine == nullptr) return portable::flash1_backward(p, choice, resources);
  if (p.has_grad_q || p.has_grad_k || p.has_grad_v) {
    run_tasks(p, d, p.batch * p.kv_heads, choice.workers, resources);
  }
  if (p.has_grad_bias) bias_gradient(p, d.target, choice.workers, resources);
}

}  // namespace tessera::cpu
