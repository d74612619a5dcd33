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

// A worker that takes this much longer than the caller has no CPU of its own.
constexpr std::chrono::microseconds kPatience{200};

// Tells the core that this thread waits.
void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Looks until `done` or until the deadline; returns whether `done`.
template <typename Done>
bool spin_until(std::chrono::steady_clock::time_point deadline, const Done& done) {
  constexpr int kLooks = 16;  // between two looks at the clock
  do {
    for (int look = 0; look < kLooks; ++look) {
      if (done()) return true;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

// The lock, which other threads hold for less than a microsecond: sleeping until then takes longer.
std::unique_lock<std::mutex> lock_soon(std::mutex& mutex) {
  std::unique_lock lock(mutex, std::try_to_lock);
  for (int attempt = 0; attempt < 64 && !lock.owns_lock(); ++attempt) {
    pause_briefly();
    lock.try_lock();
  }
  if (!lock.owns_lock()) lock.lock();
  return lock;
}

constinit core::Lazy<ThreadPool> process_pool;

// The work to do when this code is loaded and when it is unloaded, with a plugin or at the exit of
// the process.
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

// While one lives, threads that the calling thread starts have all signals blocked, so that the
// process's handlers run on its own threads. Signals that report a fault of the thread itself stay:
// blocked, they would end the process unreported.
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
    const auto lock = lock_soon(mutex_);
    grow(workers - 1);
    place(job);
    add(job);
  }
  ++jobs_added_;  // not under the lock, which threads that see it take next
  job_added_.notify_all();

  for (int worker = 0; worker < workers;) {
    body(context, worker);
    const auto lock = lock_soon(mutex_);
    worker = job.next_worker < workers ? job.next_worker++ : workers;
    if (worker == workers) remove(job);
  }
  wait_for_workers(job);
}

// Returns when no thread of the pool works on a job that is not in the list any more.
void ThreadPool::wait_for_workers(Job& job) {
  const auto done = [&] { return job.running.load(std::memory_order_acquire) == 0; };
  if (done() || (job.alone && spin_until(Clock::now() + kSpin, done))) return;
  std::unique_lock lock(mutex_);
  if (!job_done_.wait_for(lock, kPatience, done)) {
    release(job);
    job_done_.wait(lock, done);
  }
}

// Starts threads until there are `threads`. When the system refuses, the pool goes on with what it
// has.
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

// Sets where the pool's threads may run and how many of them, from the first on, may help with the
// job. They run where its caller may. A job with a worker for every CPU gets one thread on each
// CPU, none on the caller's: Linux alone would wake threads after a pause beside the caller or each
// other and move them milliseconds later (docs/notebook/cpu.md). With fewer workers the choice is
// left to Linux, which knows the other load.
void ThreadPool::place(Job& job) {
  job.helpers = static_cast<int>(workers_.size());
  job.added = Clock::now();
  const int here = sched_getcpu();
  if (here < 0 || sched_getaffinity(0, sizeof job.cpus, &job.cpus) != 0) return;
  const int cpus_of_caller = CPU_COUNT(&job.cpus);
  job.alone =
      jobs_ == nullptr && job.workers <= std::min(cpus_of_caller, available_cores()) &&
      std::none_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.job != nullptr; });
  const bool one_each = job.workers >= cpus_of_caller;
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

// The caller is done: threads still working on this job may also use the caller's CPU.
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

// A thread without a job looks for one for kSpin if that is how soon the last one came.
void ThreadPool::work(int thread) {
  const auto index = static_cast<std::size_t>(thread);
  pthread_setname_np(pthread_self(), ("tessera-" + std::to_string(thread + 1)).c_str());
  Clock::time_point idle_since{};
  bool spins = false;
  auto lock = lock_soon(mutex_);
  while (!retired_) {
    Job* const job = open_job(thread);
    if (job == nullptr && spins) {
      const std::uint32_t known = jobs_added_;
      lock.unlock();
      spins = spin_until(idle_since + kSpin, [&] { return jobs_added_ != known; });
      lock = lock_soon(mutex_);
      continue;
    }
    if (job == nullptr) {
      job_added_.wait(lock);
      continue;
    }
    const int worker = job->next_worker++;
    ++job->running;
    workers_[index].job = job;
    spins = job->alone && job->added < idle_since + kSpin;
    lock.unlock();
    job->body(job->context, worker);
    idle_since = Clock::now();
    lock = lock_soon(mutex_);
    workers_[index].job = nullptr;
    if (--job->running == 0) job_done_.notify_all();  // the caller may return: the job is gone
  }
}

// The first job that has a number for this thread.
ThreadPool::Job* ThreadPool::open_job(int thread) const {
  Job* job = jobs_;
  while (job != nullptr && (job->next_worker == job->workers || thread >= job->helpers)) job = job->next;
  return job;
}

void ThreadPool::add(Job& job) {
  Job** end = &jobs_;  // at the end: workers take earlier calls first
  while (*end != nullptr) end = &(*end)->next;
  *end = &job;
}

void ThreadPool::remove(Job& job) {
  Job** link = &jobs_;
  while (*link != &job) link = &(*link)->next;
  *link = job.next;
}

}  // namespace tessera::cpu
