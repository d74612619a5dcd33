// The library's own threads: a persistent pool that any number of calls may share at once.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "tessera/execution.h"

namespace tessera::cpu {

// Workers wait for jobs. The calling thread always works on its own job too, so a call finishes
// even when every worker is busy elsewhere or the pool has none: nested and concurrent calls are
// safe. The threads are named tessera-1, tessera-2 ... and run no signal handlers but those for
// their own faults.
//
// Calls that follow each other within kSpin find the workers awake: these look for the next job for
// that long before they sleep. Workers of a process that calls less often sleep at once.
class ThreadPool final : public Executor {
 public:
  ThreadPool() noexcept : process_(getpid()) {}
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool() override;

  [[nodiscard]] int concurrency() const override;
  void run(int workers, void (*body)(void* context, int worker), void* context) override;

  // Ends the threads for good if all of them are idle: later calls run on their callers alone. If a
  // thread is busy, nothing happens.
  void retire();

  // The pool of this process, made on first use and never destroyed. A forked child gets a fresh
  // one, since threads do not survive a fork. The pool retires when its code is unloaded with a
  // plugin, so that no thread returns into code that is gone. It also retires when the process
  // exits, unless a call is in progress: exit does not wait for it.
  static ThreadPool& instance();

  // How long a thread looks for what it waits for before it sleeps: a worker for the next job, a
  // caller for the end of its own. Waking a thread takes 5 to 50 µs.
  static constexpr std::chrono::microseconds kSpin{50};

 private:
  using Clock = std::chrono::steady_clock;

  // A call to `run`, on the stack of its caller; jobs with open worker numbers form a list.
  struct Job {
    void (*body)(void* context, int worker);
    void* context;
    int next_worker;              // the next number to hand out
    int workers;                  // how many there are
    int helpers = 0;              // only the pool's first so many threads may take a number
    cpu_set_t cpus{};             // where the caller may run
    bool alone = false;           // every worker has a CPU, and the pool had no other job
    Clock::time_point added{};    // when it came
    std::atomic<int> running{0};  // handed out to pool threads and not yet back; changes under the lock
    Job* next = nullptr;
  };

  struct Worker {
    std::thread thread;
    cpu_set_t cpus{};          // where it may run, once that is set
    const Job* job = nullptr;  // its current job
  };

  void grow(int threads);
  void place(Job& job);
  void release(const Job& job);
  void confine(Worker& worker, const cpu_set_t& cpus);
  void work(int thread);
  Job* open_job(int thread) const;
  void wait_for_workers(Job& job);
  void add(Job& job);
  void remove(Job& job);

  std::mutex mutex_;
  std::condition_variable job_added_;
  std::condition_variable job_done_;
  Job* jobs_ = nullptr;
  std::atomic<std::uint32_t> jobs_added_{0};  // for threads that look without the lock
  std::vector<Worker> workers_;
  bool retired_ = false;
  const pid_t process_;  // the process that the threads belong to
};

}  // namespace tessera::cpu
