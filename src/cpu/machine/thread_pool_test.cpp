#include "cpu/machine/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>  // NOLINT: <csignal> has no masks
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>  // NOLINT: <ctime> has no clocks of threads
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cpu/machine/cores.h"
#include "cpu/machine/parallel_for.h"

namespace tessera::cpu {
namespace {

TEST(ThreadPool, EveryTaskRunsOnceAndWorkersDoNotOverlap) {
  ThreadPool pool;
  for (const int workers : {1, 2, 3, 8}) {
    std::vector<std::atomic<int>> runs(1000);
    std::vector<std::atomic<int>> busy(static_cast<std::size_t>(workers));
    parallel_for(pool, workers, 1000, [&](std::int64_t task, int worker) {
      EXPECT_EQ(busy[static_cast<std::size_t>(worker)]++, 0);
      ++runs[static_cast<std::size_t>(task)];
      --busy[static_cast<std::size_t>(worker)];
    });
    for (const auto& count : runs) EXPECT_EQ(count, 1);
  }
}

TEST(ThreadPool, NothingToDoReturnsAtOnce) {
  ThreadPool pool;
  parallel_for(pool, 4, 0, [](std::int64_t, int) { FAIL(); });
}

TEST(ThreadPool, NestedCallsFinish) {
  ThreadPool pool;
  std::atomic<int> inner = 0;
  parallel_for(pool, 4, 8,
               [&](std::int64_t, int) { parallel_for(pool, 4, 8, [&](std::int64_t, int) { ++inner; }); });
  EXPECT_EQ(inner, 64);
}

TEST(ThreadPool, ConcurrentCallsFinish) {
  ThreadPool pool;
  std::atomic<int> done = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        parallel_for(pool, 3, 5, [&](std::int64_t, int) { ++done; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, 4 * 50 * 5);
}

cpu_set_t cpus_of_this_thread() {
  cpu_set_t cpus;
  EXPECT_EQ(sched_getaffinity(0, sizeof cpus, &cpus), 0);
  return cpus;
}

// The CPUs on which each of `workers` threads other than the caller may run while all of them work
// on one job.
std::vector<cpu_set_t> cpus_of_workers(ThreadPool& pool, int workers) {
  std::barrier all_here(workers);
  std::mutex mutex;
  std::vector<cpu_set_t> found;
  const std::thread::id caller = std::this_thread::get_id();
  parallel_for(pool, workers, workers, [&](std::int64_t, int) {
    if (std::this_thread::get_id() != caller) {
      const std::lock_guard lock(mutex);
      found.push_back(cpus_of_this_thread());
    }
    all_here.arrive_and_wait();  // so no thread does two tasks, and the caller works as long as they do
  });
  return found;
}

TEST(ThreadPool, ACallOnEveryCpuHasAThreadOnEach) {
  ThreadPool pool;
  const cpu_set_t allowed = cpus_of_this_thread();
  const int count = CPU_COUNT(&allowed);
  if (count < 2) GTEST_SKIP() << "this process may use one CPU only";
  for (int here = 0, seen = 0; seen < count; ++here) {  // from every CPU in turn
    if (CPU_ISSET(here, &allowed) == 0) continue;
    ++seen;
    // On a busy machine Linux may move the caller before the call: not often.
    constexpr int kCalls = 10;
    int apart = 0;
    for (int i = 0; i < kCalls; ++i) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(here, &one);
      ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);  // moves the caller there
      ASSERT_EQ(sched_setaffinity(0, sizeof allowed, &allowed), 0);
      const std::vector<cpu_set_t> found = cpus_of_workers(pool, count);
      ASSERT_EQ(found.size(), static_cast<std::size_t>(count - 1));
      cpu_set_t taken;
      CPU_ZERO(&taken);
      for (const cpu_set_t& cpus : found) {
        EXPECT_EQ(CPU_COUNT(&cpus), 1);
        CPU_OR(&taken, &taken, &cpus);
      }
      EXPECT_EQ(CPU_COUNT(&taken), count - 1) << "two threads on one CPU";
      if (CPU_ISSET(here, &taken) == 0) ++apart;
    }
    EXPECT_GT(apart, kCalls / 2) << "threads on the caller's CPU " << here;
    // More threads than CPUs: those without one of their own run anywhere.
    int anywhere = 0;
    for (const cpu_set_t& cpus : cpus_of_workers(pool, count + 2))
      anywhere += CPU_EQUAL(&cpus, &allowed) ? 1 : 0;
    EXPECT_EQ(anywhere, 2);
  }
}

TEST(ThreadPool, WhoIsLateMayAlsoRunWhereTheCallerDid) {
  ThreadPool pool;
  const cpu_set_t allowed = cpus_of_this_thread();
  const int count = CPU_COUNT(&allowed);
  if (count < 2) GTEST_SKIP() << "this process may use one CPU only";
  for (int round = 0; round < 2; ++round) {
    std::barrier all_here(count);
    std::atomic<int> late = 0, free = 0;
    const std::thread::id caller = std::this_thread::get_id();
    parallel_for(pool, count, count, [&](std::int64_t, int) {
      all_here.arrive_and_wait();
      if (std::this_thread::get_id() == caller) return;
      for (int wait = 0; wait < 500; ++wait) {  // until the caller has lost its patience
        const cpu_set_t mine = cpus_of_this_thread();
        if (CPU_EQUAL(&mine, &allowed)) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      const cpu_set_t mine = cpus_of_this_thread();
      ++late, free += CPU_EQUAL(&mine, &allowed) ? 1 : 0;
    });
    EXPECT_EQ(late, count - 1);
    EXPECT_EQ(free, late);
    for (const cpu_set_t& cpus : cpus_of_workers(pool, count))
      EXPECT_EQ(CPU_COUNT(&cpus), 1) << "placed anew";
  }
}

TEST(ThreadPool, ThreadsRunWhereTheCallerMay) {
  ThreadPool pool;
  const cpu_set_t allowed = cpus_of_this_thread();
  const int count = CPU_COUNT(&allowed);
  if (count < 2) GTEST_SKIP() << "this process may use one CPU only";
  EXPECT_EQ(cpus_of_workers(pool, count).size(), static_cast<std::size_t>(count - 1));
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  for (const cpu_set_t& cpus : cpus_of_workers(pool, 2)) EXPECT_TRUE(CPU_EQUAL(&cpus, &one));
  ASSERT_EQ(sched_setaffinity(0, sizeof allowed, &allowed), 0);
}

TEST(ThreadPool, ACallOnSomeCpusLeavesTheChoiceToLinux) {
  ThreadPool pool;
  const cpu_set_t allowed = cpus_of_this_thread();
  const int count = CPU_COUNT(&allowed);
  if (count < 3)
    GTEST_SKIP() << "two threads on some of the CPUs: needs three CPUs, this process has " << count;
  EXPECT_EQ(cpus_of_workers(pool, count).size(), static_cast<std::size_t>(count - 1));
  for (const cpu_set_t& cpus : cpus_of_workers(pool, count - 1)) EXPECT_TRUE(CPU_EQUAL(&cpus, &allowed));
}

// CPU time of this thread, in microseconds.
double cpu_time_of_this_thread() {
  timespec time{};
  EXPECT_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time), 0);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

// What the pool's thread did between the first and the last of `calls` calls with two workers,
// which `between` separates.
struct BetweenCalls {
  double cpu_time = 0;  // microseconds
  long sleeps = 0;
};

template <typename Between>
BetweenCalls between_calls(int calls, const Between& between) {
  ThreadPool pool;
  BetweenCalls first, last;
  const std::thread::id caller = std::this_thread::get_id();
  for (int call = 0; call < calls; ++call) {
    std::barrier both_here(2);
    parallel_for(pool, 2, 2, [&](std::int64_t, int) {
      both_here.arrive_and_wait();
      if (std::this_thread::get_id() == caller) return;
      rusage usage{};
      EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
      last = {cpu_time_of_this_thread(), usage.ru_nvcsw};
      if (call == 0) first = last;
    });
    between();
  }
  return {last.cpu_time - first.cpu_time, last.sleeps - first.sleeps};
}

TEST(ThreadPool, CallsInARowFindTheThreadsAwake) {
  const cpu_set_t allowed = cpus_of_this_thread();
  if (std::min(CPU_COUNT(&allowed), available_cores()) < 2)
    GTEST_SKIP() << "this process may use one CPU only";
  // Only some of the attempts: other processes may have the CPUs meanwhile.
  long fewest = std::numeric_limits<long>::max();
  for (int attempt = 0; attempt < 20 && fewest > 100; ++attempt) {
    fewest = std::min(fewest, between_calls(200, [] {}).sleeps);
  }
  EXPECT_LE(fewest, 100) << "of 200 calls";
}

TEST(ThreadPool, ThreadsOfRareCallsSleepAtOnce) {
  constexpr int kCalls = 100, kAttempts = 20;
  constexpr double kSpin = std::chrono::duration<double, std::micro>(ThreadPool::kSpin).count();
  const auto pause = [] { std::this_thread::sleep_for(10 * ThreadPool::kSpin); };
  double least = std::numeric_limits<double>::max();  // microseconds of a call
  for (int attempt = 0; attempt < kAttempts && least > kSpin / 2; ++attempt) {
    least = std::min(least, between_calls(kCalls, pause).cpu_time / (kCalls - 1));
  }
  EXPECT_LE(least, 0.75 * kSpin);
}

TEST(ThreadPool, ThreadsHaveNamesAndLeaveSignalsToOthers) {
  sigset_t before, after;
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &before), 0);
  ThreadPool pool;
  std::barrier all_here(4);
  std::mutex mutex;
  std::map<std::string, sigset_t> masks;
  const std::thread::id caller = std::this_thread::get_id();
  parallel_for(pool, 4, 4, [&](std::int64_t, int) {
    if (std::this_thread::get_id() != caller) {
      const std::lock_guard lock(mutex);
      char name[16] = "";
      EXPECT_EQ(pthread_getname_np(pthread_self(), name, sizeof name), 0);
      EXPECT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &masks[name]), 0);
    }
    all_here.arrive_and_wait();
  });
  ASSERT_EQ(masks.size(), 3U);
  for (const char* name : {"tessera-1", "tessera-2", "tessera-3"}) {
    ASSERT_TRUE(masks.contains(name)) << name;
    const sigset_t& blocked = masks[name];
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGPIPE, SIGALRM, SIGTERM, SIGCHLD,
                             SIGTSTP, SIGURG, SIGVTALRM, SIGPROF, SIGWINCH, SIGIO, SIGRTMIN}) {
      EXPECT_EQ(sigismember(&blocked, signal), 1) << strsignal(signal) << " in " << name;
    }
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
      EXPECT_EQ(sigismember(&blocked, fault), 0) << strsignal(fault) << " in " << name;
    }
  }
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &after), 0);
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << "of the caller: " << signal;
  }
}

TEST(ThreadPool, ARetiredPoolLeavesTheWorkToItsCallers) {
  ThreadPool pool;
  cpus_of_workers(pool, 3);
  pool.retire();
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> done = 0;
  parallel_for(pool, 3, 9, [&](std::int64_t, int) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    ++done;
  });
  EXPECT_EQ(done, 9);
  pool.retire();
}

// Exit in one thread does not wait for the calls of others.
TEST(ThreadPool, APoolAtWorkDoesNotRetire) {
  ThreadPool pool;
  parallel_for(pool, 2, 2, [&](std::int64_t, int) { pool.retire(); });
  EXPECT_EQ(cpus_of_workers(pool, 3).size(), 2U) << "threads that still help";
}

TEST(ThreadPool, AForkedChildGetsAWorkingPool) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not follow threads into a fork";
#endif
  if (std::getenv("QEMU_CPU") != nullptr) GTEST_SKIP() << "qemu-user cannot start threads in a forked child";
  std::atomic<int> parent = 0;
  parallel_for(ThreadPool::instance(), 3, 9, [&](std::int64_t, int) { ++parent; });
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> count = 0;
    parallel_for(ThreadPool::instance(), 3, 9, [&](std::int64_t, int) { ++count; });
    _exit(count == 9 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace tessera::cpu
