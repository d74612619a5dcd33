#include "cpu/baselines/flash1/kernel.h"

#include <algorithm>

#include "core/base/arena.h"
#include "core/base/text.h"
#include "cpu/baselines/flash1/plan.h"
#include "cpu/engine.h"
#include "cpu/flash2/bias_gradient.h"
#include "cpu/machine/cpu_info.h"
#include "cpu/machine/parallel_for.h"
#include "cpu/visible_summary.h"

namespace tessera::cpu {
namespace {

// Workers take whole heads: more of them than there are heads would be idle.
int useful_workers(const core::Problem& p, std::int64_t heads, int workers) {
  return static_cast<int>(std::clamp<std::int64_t>(p.batch * heads, 1, workers));
}

// What one direction decides.
template <typename Ops>
struct Decision {
  Target target{};
  const Ops* ops = nullptr;
  Flash1Plan plan{};
  std::size_t worker_bytes = 0;
};

using ForwardDecision = Decision<Flash1ForwardOps>;
using BackwardDecision = Decision<Flash1BackwardOps>;

std::int64_t l2_bytes() { return static_cast<std::int64_t>(caches().l2); }

std::nullopt_t decline(Target target, core::Reason reason) {
  return reason.decline("requires a vector instruction set; this CPU runs `", name(target), "`");
}

template <typename D>
core::Choice choice_of(const core::Problem& p, const D& d, int workers) {
  return {.block_q = d.plan.tile_rows,
          .block_k = d.plan.block_k,
          .workspace_bytes =
              core::workspace_bytes(visible_summary_bytes(p, d.plan.tile_rows), d.worker_bytes, workers),
          .workers = workers,
          .traffic_cache_bytes = static_cast<double>(caches().l2),
          .decision = d};
}

template <typename D>
std::string details(const D& d) {
  return core::concat("instruction set ", name(target_for_type(d.target, DType::fp32)), ", 1 task per head");
}

template <typename D>
void run_tasks(const core::Problem& p, const D& d, std::int64_t tasks, int workers,
               const core::Resources& resources) {
  parallel_for(*resources.executor, workers, tasks, [&](std::int64_t task, int worker) {
    d.ops->run_task(p, d.plan, task, resources.workspace + d.worker_bytes * static_cast<std::size_t>(worker));
  });
}

}  // namespace

std::optional<core::Choice> choose_flash1_forward(const core::Problem& p, int workers, core::Reason reason) {
  ForwardDecision d{.target = active_target()};
  d.ops = engine(d.target).flash1_forward;
  if (d.ops == nullptr) return decline(d.target, reason);
  d.plan = flash1_forward_plan(p, d.ops->tile_rows(p.dtype), l2_bytes());
  d.worker_bytes = d.ops->worker_bytes(p, d.plan);
  return choice_of(p, d, useful_workers(p, p.q_heads, workers));
}

std::string flash1_forward_details(const core::Problem&, const core::Choice& choice) {
  return details(choice.decision.as<ForwardDecision>());
}

void run_flash1_forward(const core::Problem& p, const core::Choice& choice,
                        const core::Resources& resources) {
  const auto d = choice.decision.as<ForwardDecision>();
  const Summarised call = summarise_visible(p, d.plan.tile_rows, choice.workers, resources);
  run_tasks(call.problem, d, p.batch * p.q_heads, choice.workers, call.resources);
}

std::optional<core::Choice> choose_flash1_backward(const core::Problem& p, int workers, core::Reason reason) {
  BackwardDecision d{.target = active_target()};
  d.ops = engine(d.target).flash1_backward;
  if (d.ops == nullptr) return decline(d.target, reason);
  d.plan = flash1_backward_plan(p, d.ops->tile_rows(p.dtype), l2_bytes());
  d.worker_bytes = d.ops->worker_bytes(p, d.plan);
  core::Choice choice = choice_of(p, d, useful_workers(p, p.kv_heads, workers));
  const std::size_t bias_bytes = core::checked_sum(visible_summary_bytes(p, d.plan.tile_rows),
                                                   bias_gradient_bytes(p, d.target, choice.workers));
  choice.workspace_bytes = std::max(choice.workspace_bytes, bias_bytes);
  return choice;
}

std::string flash1_backward_details(const core::Problem&, const core::Choice& choice) {
  return details(choice.decision.as<BackwardDecision>());
}

void run_flash1_backward(const core::Problem& p, const core::Choice& choice,
                         const core::Resources& resources) {
  const auto d = choice.decision.as<BackwardDecision>();
  const Summarised call = summarise_visible(p, d.plan.tile_rows, choice.workers, resources);
  if (p.has_grad_q || p.has_grad_k || p.has_grad_v) {
    run_tasks(call.problem, d, p.batch * p.kv_heads, choice.workers, call.resources);
  }
  if (p.has_grad_bias) bias_gradient(call.problem, d.target, choice.workers, call.resources);
}

}  // namespace tessera::cpu
