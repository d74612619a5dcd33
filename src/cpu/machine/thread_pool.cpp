#include "cpu/machine/thread_pool.h"

#include <pthread.h>
#include <signal.h>  // NOLINT: <csignal> has no masks
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <system_error>

#include "core/base/lazy.h"
#include "cpu/machine/cores.h"

namespace tessera::cpu {
namespace {

// A worker that takes so much longer than the caller does not have a CPU for itself.
constexpr std::chrono::microseconds kPatience{200};

constinit core::Lazy<ThreadPool> process_pool;

// What has to happen when this code is loaded and when it is unloaded, be it with a plugin or as
// the process exits.
struct Loaded {
  Loaded() {
    // The child has none of the parent's threads, and some of them may have held locks of the
    // parent's pool.
    pthread_atfork(nullptr, nullptr, [] { process_pool.forget(); });
  }
  ~Loaded() {
    if (ThreadPool* pool = process_pool.find()) pool->retire();
  }
};
const Loaded loaded;

// While one lives, threads that the calling thread starts have all signals blocked, so that
// handlers of the process run on threads of its own. What reports a fault of the thread itself
// stays: blocked, it would end the process unreported.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t signals;
    sigfillset(&signals);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
      sigdelset(&signals, fault);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

ThreadPool& ThreadPool::instance() {
  return process_pool.get([] { return ThreadPool(); });
}

ThreadPool::~ThreadPool() { retire(); }

void ThreadPool::retire() {
  std::vector<Worker> idle;
  {
    const std::lock_guard lock(mutex_);
    const bool at_work =
        jobs_ != nullptr || std::any_of(workers_.begin(), workers_.end(),
                                        [](const Worker& worker) { return worker.job != nullptr; });
    // Without fork's handlers (`_Fork`, `clone`) a child still has the pool, but none of its
    // threads.
    if (at_work || process_ != getpid()) return;
    retired_ = true;
    idle.swap(workers_);
  }
  job_added_.notify_all();
  for (Worker& worker : idle) worker.thread.join();
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
    place(job);
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
  const auto done = [&] { return job.running == 0; };
  if (!job_done_.wait_for(lock, kPatience, done)) {
    release(job);
    job_done_.wait(lock, done);
  }
}

// Starts threads until there are `threads`. When the system refuses, the pool goes on with what it has.
void ThreadPool::grow(int threads) {
  if (retired_ || threads <= static_cast<int>(workers_.size())) return;
  const SignalsBlocked blocked;
  try {
    workers_.reserve(static_cast<std::size_t>(threads));
    for (int next = static_cast<int>(workers_.size()); next < threads; ++next) {
      workers_.push_back({std::thread([this, next] { work(next); })});
    }
  } catch (const std::system_error&) {
    return;
  } catch (const std::bad_alloc&) {
    return;
  }
}

// Says where the pool's threads may run and how many of them, from the first on, may help with the job. They run where its
// caller may. A job with a worker for every CPU gets one thread on each, none on the caller's: left alone, Linux wakes threads
// after a pause beside the caller or each other and moves them milliseconds later (docs/notebook/cpu.md). With fewer workers
// the choice is left to Linux, which knows who else is busy.
void ThreadPool::place(Job& job) {
  job.helpers = static_cast<int>(workers_.size());
  const int here = sched_getcpu();
  if (here < 0 || sched_getaffinity(0, sizeof job.cpus, &job.cpus) != 0) return;
  const bool one_each = job.workers >= CPU_COUNT(&job.cpus);
  if (one_each) job.helpers = job.workers - 1;
  int spare = CPU_SETSIZE - 1;  // the last CPU, for the thread whose own is the caller's
  while (CPU_ISSET(spare, &job.cpus) == 0) --spare;
  int own = 0;
  for (Worker& worker : workers_) {
    while (own < spare && CPU_ISSET(own, &job.cpus) == 0) ++own;
    cpu_set_t cpus = job.cpus;
    if (one_each && own < spare) {
      CPU_ZERO(&cpus);
      CPU_SET(own == here ? spare : own, &cpus);
      ++own;
    }
    confine(worker, cpus);
  }
}

// The caller has nothing left to do: whoever still works at the job may also run where the caller did.
void ThreadPool::release(const Job& job) {
  if (CPU_COUNT(&job.cpus) == 0) return;
  for (Worker& worker : workers_) {
    if (worker.job == &job) confine(worker, job.cpus);
  }
}

// Costs a system call only if something changes.
void ThreadPool::confine(Worker& worker, const cpu_set_t& cpus) {
  if (CPU_EQUAL(&cpus, &worker.cpus)) return;
  if (pthread_setaffinity_np(worker.thread.native_handle(), sizeof cpus, &cpus) == 0) worker.cpus = cpus;
}

void ThreadPool::work(int thread) {
  const auto index = static_cast<std::size_t>(thread);
  pthread_setname_np(pthread_self(), ("tessera-" + std::to_string(thread + 1)).c_str());
  std::unique_lock lock(mutex_);
  while (true) {
    Job* job = jobs_;
    while (job != nullptr && (job->next_worker == job->workers || thread >= job->helpers)) job = job->next;
    if (job == nullptr) {
      if (retired_) return;
      job_added_.wait(lock);
      continue;
    }
    const int worker = job->next_worker++;
    ++job->running;
    workers_[index].job = job;
    lock.unlock();
    job->body(job->context, worker);
    lock.lock();
    workers_[index].job = nullptr;
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
