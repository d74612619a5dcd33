// Spreads tasks over workers by an atomic counter.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "cpu/machine/float_environment.h"
#include "tessera/execution.h"

namespace tessera::cpu {

// Calls body(task, worker) for every task in [0, tasks); tasks are handed out in ascending order.
// `worker` is below `workers`, and no two calls with the same worker overlap. The body does not
// throw. It computes in the default floating-point environment, whatever that of the executor's
// threads is. Only exceptions of the executor leave this function.
template <typename Body>
void parallel_for(Executor& executor, int workers, std::int64_t tasks, const Body& body) {
  struct Shared {
    std::atomic<std::int64_t> next{0};
    std::int64_t tasks;
    const Body& body;
  } shared{.tasks = tasks, .body = body};
  auto loop = [](void* context, int worker) {
    const DefaultFloats floats;
    auto& job = *static_cast<Shared*>(context);
    for (std::int64_t task = job.next++; task < job.tasks; task = job.next++) job.body(task, worker);
  };
  executor.run(static_cast<int>(std::min<std::int64_t>(workers, tasks)), loop, &shared);
}

}  // namespace tessera::cpu
