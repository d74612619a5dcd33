#include "cpu/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <system_error>

namespace tessera::cpu {
namespace {

std::atomic<ThreadPool*>& current_pool() {
  static std::atomic<ThreadPool*> pool = [] {
    pthread_atfork(nullptr, nullptr, [] { current_pool() = new ThreadPool; });
    return new ThreadPool;
  }();
  return pool;
}

}  // namespace

int available_cores() noexcept { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

ThreadPool& ThreadPool::instance() { return *current_pool(); }

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  job_added_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

int ThreadPool::concurrency() const { return available_cores(); }

void ThreadPool::run(int workers, void (*body)(void* context, int worker), void* context) {
  if (workers <= 1) {
    if (workers == 1) body(context, 0);
    return;
  }
  Job job{body, context, 1, workers};  // the caller takes worker 0
  {
    const std::lock_guard lock(mutex_);
    grow(workers - 1);
    add(job);
  }
  job_added_.notify_all();

  for (int worker = 0; worker < workers;) {
    body(context, worker);
    const std::lock_guard lock(mutex_);
    worker = job.next_worker < workers ? job.next_worker++ : workers;
  }
  std::unique_lock lock(mutex_);
  remove(job);
  job_done_.wait(lock, [&] { return job.running == 0; });
}

// Starts threads until there are `threads`. When the system refuses, the pool goes on with what it has.
void ThreadPool::grow(int threads) {
  try {
    while (static_cast<int>(threads_.size()) < threads) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    return;
  } catch (const std::bad_alloc&) {
    return;
  }
}

void ThreadPool::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    Job* job = jobs_;
    while (job != nullptr && job->next_worker == job->workers) job = job->next;
    if (job == nullptr) {
      if (stopping_) return;
      job_added_.wait(lock);
      continue;
    }
    const int worker = job->next_worker++;
    ++job->running;
    lock.unlock();
    job->body(job->context, worker);
    lock.lock();
    if (--job->running == 0) job_done_.notify_all();
  }
}

void ThreadPool::add(Job& job) {
  Job** end = &jobs_;  // at the end: earlier calls are served first
  while (*end != nullptr) end = &(*end)->next;
  *end = &job;
}

void ThreadPool::remove(Job& job) {
  Job** link = &jobs_;
  while (*link != &job) link = &(*link)->next;
  *link = job.next;
}

}  // namespace tessera::cpu
