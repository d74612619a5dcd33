#include "cpu/flash2/bias_gradient.h"

#include "core/base/arena.h"
#include "cpu/flash2/vector/bias_gradient.h"
#include "cpu/machine/parallel_for.h"

namespace tessera::cpu {

std::size_t bias_gradient_bytes(const core::Problem& p, Target target, int workers) {
  if (!p.has_grad_bias) return 0;
  return core::workspace_bytes(0, bias_gradient_engine(target)->worker_bytes(p), workers);
}

void bias_gradient(const core::Problem& p, Target target, int workers, const core::Resources& resources) {
  const BiasGradientEngine* engine = bias_gradient_engine(target);
  const std::size_t bytes = engine->worker_bytes(p);
  parallel_for(*resources.executor, workers, engine->tasks(p), [&](std::int64_t task, int worker) {
    engine->run_task(p, task, resources.workspace + bytes * static_cast<std::size_t>(worker));
  });
}

}  // namespace tessera::cpu
