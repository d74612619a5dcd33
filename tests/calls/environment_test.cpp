// The library reads the process's environment once: calls are safe beside setenv,
// and what changes later has no effect.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
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
    call_everything(problem,
                    algorithm);  // the first of the process reads it; OpenBLAS reads it when it is loaded
    const int before = reads;
    call_everything(problem, algorithm);
    EXPECT_EQ(reads, before) << name(algorithm);
  }
  const int before = reads;
  EXPECT_EQ(std::getenv("TESSERA_NO_SUCH_VARIABLE"), nullptr);
  EXPECT_EQ(reads, before + 1) << "the count counts nothing";
}

TEST(Environment, ALaterChangeHasNoEffect) {
  const Shapes shapes{.q_length = 64, .k_length = 64};
  const std::string kernel = plan({}, shapes).kernel;
  constexpr const char* kVariables[] = {"TESSERA_KERNEL", "TESSERA_TARGET", "TESSERA_BLOCK_K"};
  for (const char* variable : kVariables) setenv(variable, "no such thing", 1);
  EXPECT_NO_THROW(EXPECT_EQ(plan({}, shapes).kernel, kernel));
  for (const char* variable : kVariables) unsetenv(variable);
}

// What a program does that sets its own variables: with a getenv in a call this crashed.
TEST(Environment, CallsRunBesideSetenv) {
  Problem problem;
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int i = 0; !stop; ++i) setenv(("TESSERA_TEST_" + std::to_string(i % 5000)).c_str(), "x", 1);
  });
  for (int i = 0; i < 2000; ++i) forward({}, problem.forward_tensors, {.threads = 1});
  stop = true;
  writer.join();
  EXPECT_TRUE(problem.forward_is_right());
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
