// Forks: a child computes what its parent computes, whatever the parent's threads do meanwhile.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "reference/tolerance/check.h"
#include "support/build.h"
#include "support/kernels.h"
#include "support/tensors.h"

namespace tessera::test {
namespace {

using reference::Case;
using reference::CaseSpec;
using reference::ForceKernel;

constexpr unsigned kPatienceSeconds = 60;

// Why a child of a process with threads cannot be tested here; empty: it can.
std::string forks_missing() {
#if defined(__SANITIZE_THREAD__)
  return "ThreadSanitizer does not follow threads into a fork";
#elif defined(__SANITIZE_ADDRESS__)
  return "AddressSanitizer's own locks may be held in a forked child";
#endif
  return std::getenv("QEMU_CPU") != nullptr ? "qemu-user cannot start threads in a forked child" : "";
}

CaseSpec small() {
  return {.q_length = 40, .k_length = 60, .q_heads = 4, .kv_heads = 2, .qk_dim = 16, .v_dim = 8};
}

void call(Case& problem, int threads) {
  tessera::forward(problem.attention, problem.forward, {.threads = threads});
  tessera::backward(problem.attention, problem.backward, {.threads = threads});
}

// How a child ended that runs `body` and succeeds with true; empty: well.
template <typename Body>
std::string failure_in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kPatienceSeconds);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) return "no child";
  if (WIFSIGNALED(status))
    return WTERMSIG(status) == SIGALRM ? "hangs" : "died of " + std::to_string(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : "computed something else";
}

// The first test of this program, in which nothing has called the library: in each child of this
// process one thread makes its first call while another forks.
TEST(Fork, WhileAThreadMakesTheFirstCall) {
  if (const std::string missing = forks_missing(); !missing.empty()) GTEST_SKIP() << missing;
  const int rounds = scaled(60, 10, "first calls beside a fork:");
  for (const char* kernel : {"cpu.flash2", "cpu.standard"}) {
    const ForceKernel forced(kernel);
    for (int round = 0; round < rounds; ++round) {
      ASSERT_EQ(failure_in_child([round] {
                  Case mine(small()), childs(small());
                  std::atomic<bool> begun = false;
                  std::thread first([&] {
                    begun = true;
                    call(mine, round % 3);
                  });
                  while (!begun) std::this_thread::yield();
                  std::this_thread::sleep_for(std::chrono::microseconds(round * round / 2));
                  const std::string failure = failure_in_child([&] {
                    call(childs, round % 3);
                    return true;
                  });
                  first.join();
                  return failure.empty();
                }),
                "")
          << kernel << ", round " << round;
    }
  }
}

TEST(Fork, WhileOtherThreadsCall) {
  if (const std::string missing = forks_missing(); !missing.empty()) GTEST_SKIP() << missing;
  for (const std::string& kernel : cpu_kernels()) {
    const ForceKernel forced(kernel);
    Case expected(small());
    call(expected, 1);
    std::atomic<bool> stop = false;
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; ++caller) {
      callers.emplace_back([&, caller] {
        Case mine(small());
        while (!stop) call(mine, caller + 1);
      });
    }
    Case childs(small());
    const int forks = scaled(kernel == "cpu.standard" ? 400 : 100, 20, "forks beside calls:");
    for (int fork = 0; fork < forks; ++fork) {
      const std::string failure = failure_in_child([&] {
        call(childs, 3);
        return (first_difference(expected.forward, childs.forward) +
                first_difference(expected.backward, childs.backward))
            .empty();
      });
      EXPECT_EQ(failure, "") << kernel << ", fork " << fork;
      if (!failure.empty()) break;
    }
    stop = true;
    for (std::thread& caller : callers) caller.join();
  }
}

// The child of a child, which has a pool of its own by then.
TEST(Fork, InsideAFork) {
  if (const std::string missing = forks_missing(); !missing.empty()) GTEST_SKIP() << missing;
  auto computes = [] {
    Case mine(small());
    call(mine, 3);
    return true;
  };
  computes();
  EXPECT_EQ(failure_in_child([&] { return computes() && failure_in_child(computes).empty() && computes(); }),
            "");
}

}  // namespace
}  // namespace tessera::test
