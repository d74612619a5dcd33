// The library reads the process's environment when it is loaded: calls are safe beside setenv, and
// a later change has no effect.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "core/base/environment.h"
#include "memory_problem.h"

namespace {

std::atomic<int> reads{0};

}  // namespace

// Takes the place of the C library's for this program, and counts.
extern "C" char* getenv(
    const char* name) noexcept {  // NOLINT(readability-inconsistent-declaration-parameter-name)
  ++reads;
  const std::size_t length = std::strlen(name);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, name, length) == 0 && (*entry)[length] == '=') return *entry + length + 1;
  }
  return nullptr;
}

namespace tessera::test {
namespace {

constexpr Algorithm kAlgorithms[] = {Algorithm::automatic, Algorithm::standard, Algorithm::flash1,
                                     Algorithm::flash2};

void call_everything(Problem& problem, Algorithm algorithm) {
  const Attention attention{.algorithm = algorithm};
  forward(attention, problem.forward_tensors);
  backward(attention, problem.backward_tensors);
  (void)plan(attention, problem.forward_tensors);
}

TEST(Environment, NoCallReadsIt) {
  Problem problem;
  for (const Algorithm algorithm : kAlgorithms) {
    if (!served(algorithm)) continue;
    call_everything(problem, algorithm);  // the first one loads OpenBLAS, which reads it
    const int before = reads;
    call_everything(problem, algorithm);
    EXPECT_EQ(reads, before) << name(algorithm);
  }
  const int before = reads;
  EXPECT_EQ(std::getenv("TESSERA_NO_SUCH_VARIABLE"), nullptr);
  EXPECT_EQ(reads, before + 1) << "the count counts nothing";
}

// Runs `body` in a process in which the library was loaded and never called.
void expect_in_a_fresh_process(const std::function<bool()>& body) {
  if (std::getenv("QEMU_CPU") != nullptr) GTEST_SKIP() << "qemu-user cannot start the program again";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(body() ? 0 : 1), testing::ExitedWithCode(0), "");
}

TEST(Environment, AChangeBeforeTheFirstCallHasNoEffect) {
  expect_in_a_fresh_process([] {
    for (const char* variable : {"TESSERA_KERNEL", "TESSERA_TARGET", "TESSERA_BLOCK_K"})
      setenv(variable, "no such thing", 1);
    Problem problem;
    forward({}, problem.forward_tensors);
    return problem.forward_is_right();
  });
}

TEST(Environment, TheFirstCallDoesNotReadIt) {
  expect_in_a_fresh_process([] {
    Problem problem;
    const int before = reads;
    forward({}, problem.forward_tensors);  // no plan: it loads OpenBLAS for `standard`
    backward({}, problem.backward_tensors);
    return reads == before;
  });
}

// What a program does that sets its own variables: with a getenv in a call this crashed.
TEST(Environment, CallsRunBesideSetenv) {
  expect_in_a_fresh_process([] {
    Problem problem;
    std::atomic<bool> stop = false, begun = false;
    std::thread writer([&] {
      for (int i = 0; !stop; ++i, begun = true)
        setenv(("TESSERA_TEST_" + std::to_string(i % 5000)).c_str(), "x", 1);
    });
    while (!begun) std::this_thread::yield();
    for (int i = 0; i < 2000; ++i) forward({}, problem.forward_tensors, {.threads = 1});
    stop = true;
    writer.join();
    return problem.forward_is_right();
  });
}

TEST(Environment, AnOverrideHoldsForItsScopeAndNests) {
  const Shapes shapes{.q_length = 64, .k_length = 64};
  auto kernel = [&] { return plan({}, shapes).kernel; };
  const std::string usual = kernel();
  {
    const core::EnvironmentOverride flash1(&core::Environment::kernel, "cpu.flash1");
    EXPECT_EQ(kernel(), "cpu.flash1");
    {
      const core::EnvironmentOverride decode(&core::Environment::kernel, "cpu.decode");
      const core::EnvironmentOverride block(&core::Environment::block_k, "48");
      EXPECT_EQ(core::environment().kernel, "cpu.decode");
      EXPECT_EQ(core::environment().block_k, "48");
      const core::EnvironmentOverride none(&core::Environment::kernel, std::nullopt);
      EXPECT_EQ(kernel(), usual);
    }
    EXPECT_EQ(kernel(), "cpu.flash1");
    EXPECT_FALSE(core::environment().block_k);
  }
  EXPECT_EQ(kernel(), usual);
}

}  // namespace
}  // namespace tessera::test
