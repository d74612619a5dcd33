#include "api/execution.h"

#include "core/base/refuse.h"
#include "cpu/machine/thread_pool.h"

namespace tessera::api {
namespace {

constexpr int kMaxThreads = 4096;

}  // namespace

Executor& executor_of(const Execution& execution) {
  return execution.executor != nullptr ? *execution.executor : cpu::ThreadPool::instance();
}

int workers_of(const Execution& execution, const Executor& executor) {
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
  return concurrency;
}

}  // namespace tessera::api
