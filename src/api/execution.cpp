#include "api/execution.h"

#include <algorithm>

#include "core/base/refuse.h"
#include "cpu/machine/thread_pool.h"

namespace tessera::api {
namespace {

constexpr int kMaxThreads = 4096;

// How many of the pool's threads a call is worth, by its operations and by the bytes of K and V:
// waking one and waiting for it costs what a core computes in 5 to 20 µs. Measured on Zen 5, fp32,
// 12 heads of head_dim 64, causal, one and two threads: 16 queries 8.4 and 12.7 µs, 64 queries 55
// and 61, 128 queries 162 and 121. The counts are upper bounds: masks and the lengths of packed
// sequences make calls shorter.
int worthwhile_workers(const core::Problem& p, int most) {
  constexpr double kOperationsPerWorker = 8e6, kBytesPerWorker = 2e6;
  const auto count = [](std::int64_t x) { return static_cast<double>(x); };
  const double queries = count(p.batch) * count(p.q_heads) * count(p.q_length);
  const double products =
      p.direction == Direction::forward ? count(p.qk_dim + p.v_dim) : count(3 * p.qk_dim + 2 * p.v_dim);
  const double operations = 2 * queries * count(p.k_length) * products;
  const double bytes = count(p.batch) * count(p.kv_heads) * count(p.k_length) * count(p.qk_dim + p.v_dim) *
                       static_cast<double>(size_of(p.dtype));
  const double workers = std::max(operations / kOperationsPerWorker, bytes / kBytesPerWorker);
  return workers < most ? std::max(1, static_cast<int>(workers)) : most;
}

}  // namespace

Executor& executor_of(const Execution& execution) {
  return execution.executor != nullptr ? *execution.executor : cpu::ThreadPool::instance();
}

int workers_of(const core::Problem& problem, const Execution& execution, const Executor& executor) {
  if (execution.threads < 0 || execution.threads > kMaxThreads) {
    core::refuse("execution.threads is ", execution.threads, "; it must be between 0 (all) and ",
                 kMaxThreads);
  }
  if (execution.threads > 0) return execution.threads;
  const int concurrency = executor.concurrency();
  if (concurrency < 1 || concurrency > kMaxThreads) {
    core::refuse("execution.executor->concurrency() is ", concurrency, "; it must be between 1 and ",
                 kMaxThreads);
  }
  return execution.executor != nullptr ? concurrency : worthwhile_workers(problem, concurrency);
}

}  // namespace tessera::api
