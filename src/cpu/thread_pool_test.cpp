#include "cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <vector>

#include "cpu/parallel.h"

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
