#include "cpu/flash2/bias_gradient.h"

#include "core/base/arena.h"
#include "cpu/engine.h"
#include "cpu/machine/parallel_for.h"

namespace tessera::cpu {

std::size_t bias_gradient_bytes(const core::Problem& p, Target target, int workers) {
  if (!p.has_grad_bias) return 0;
  return core::workspace_bytes(0, engine(target).bias_gradient.worker_bytes(p), workers);
}

void bias_gradient(const core::Problem& p, Target target, int workers, const core::Resources& resources) {
  const BiasGradientOps& ops = engine(target).bias_gradient;
  const std::size_t bytes = ops.worker_bytes(p);
  parallel_for(*resources.executor, workers, ops.tasks(p), [&](std::int64_t task, int worker) {
    ops.run_task(p, task, resources.workspace + bytes * static_cast<std::size_t>(worker));
  });
}

}  // namespace tessera::cpu
