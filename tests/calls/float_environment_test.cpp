// The caller's floating-point environment: it has no influence on a result, and no call changes it.
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "reference/oracle/elements.h"
#include "reference/tolerance/check.h"
#include "support/build.h"
#include "support/kernels.h"
#include "support/tensors.h"

namespace tessera::test {
namespace {

using reference::BiasKind;
using reference::BlockKind;
using reference::Case;
using reference::CaseSpec;
using reference::ForceKernel;

// Subnormal operands and results become 0, as after torch.set_flush_denormal(True).
void flush_subnormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);  // FTZ and DAZ
#elif defined(__aarch64__)
  std::uint64_t control = 0;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  __asm__ volatile("msr fpcr, %0" : : "r"(control | (std::uint64_t{1} << 24)));
#endif
}

// Half of the smallest normal number, which the compiler must not compute: 0 where subnormal
// numbers are flushed.
float half_of_the_smallest() {
  volatile float smallest = std::numeric_limits<float>::min();
  return smallest * 0.5F;
}

// Leaves the thread's environment as it was, whatever was done to it.
class RestoreAtEnd {
 public:
  RestoreAtEnd() { std::fegetenv(&before_); }
  RestoreAtEnd(const RestoreAtEnd&) = delete;
  RestoreAtEnd& operator=(const RestoreAtEnd&) = delete;
  ~RestoreAtEnd() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_{};
};

std::vector<CaseSpec> specs(DType dtype) {
  std::vector<CaseSpec> all = {
      {.q_length = 100, .k_length = 100},
      {.q_length = 96, .k_length = 96, .input_scale = 20},  // saturated rows
      {.q_length = 1, .k_length = 70, .q_heads = 4, .kv_heads = 2},
      {.q_length = 40, .k_length = 40, .right = 0, .diagonal = -10},  // rows that see nothing
      {.q_length = 70, .k_length = 90, .left = 20, .right = 4, .alibi = true, .grad_lse = true},
      {.q_length = 60, .k_length = 60, .bias = BiasKind::per_head, .softcap = 5, .dropout = 0.1},
      {.batch = 3, .q_length = 50, .k_length = 60, .right = 0, .packed = true},
      {.q_length = 70, .k_length = 70, .blocks = BlockKind::random_per_head, .block_q = 16, .block_k = 16},
      // Of subnormal numbers much is left only where none is flushed.
      {.q_length = 64, .k_length = 64, .input_scale = dtype == DType::fp16 ? 1e-6 : 1e-39, .scale = 1},
  };
  for (CaseSpec& spec : all) spec.dtype = dtype;
  if (dtype == DType::fp64) all.back().input_scale = 1e-309;
  return all;
}

void call(Case& problem, int threads, Executor* executor = nullptr) {
  tessera::forward(problem.attention, problem.forward, {.threads = threads, .executor = executor});
  tessera::backward(problem.attention, problem.backward, {.threads = threads, .executor = executor});
}

std::string difference(const Case& a, const Case& b) {
  return first_difference(a.forward, b.forward) + first_difference(a.backward, b.backward);
}

// Threads that have lived before the call, each in an environment of the caller's choice.
class WithEnvironment final : public Executor {
 public:
  explicit WithEnvironment(void (*change)()) : change_(change) {}
  [[nodiscard]] int concurrency() const override { return 3; }
  void run(int workers, void (*body)(void*, int), void* context) override {
    std::vector<std::thread> threads;
    for (int worker = 0; worker < workers; ++worker) {
      threads.emplace_back([=, this] {
        change_();
        const int rounding = std::fegetround();
        const float half = half_of_the_smallest();
        std::feclearexcept(FE_ALL_EXCEPT);
        body(context, worker);
        EXPECT_EQ(std::fetestexcept(FE_ALL_EXCEPT), 0);
        EXPECT_EQ(std::fegetround(), rounding);
        EXPECT_EQ(half_of_the_smallest(), half);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  void (*change_)();
};

class FloatEnvironmentTest : public testing::TestWithParam<TypeAndKernel> {
 protected:
  void SetUp() override { forced_ = std::make_unique<ForceKernel>(std::get<1>(GetParam())); }
  DType dtype() const { return std::get<0>(GetParam()); }

 private:
  std::unique_ptr<ForceKernel> forced_;
};

TEST_P(FloatEnvironmentTest, GivesTheSameBitsInAny) {
  struct Environment {
    const char* name;
    void (*enter)();
  };
  const Environment environments[] = {
      {"flushes subnormal numbers", flush_subnormals},
      {"rounds up", [] { std::fesetround(FE_UPWARD); }},
      {"rounds to zero, flushes",
       [] {
         std::fesetround(FE_TOWARDZERO);
         flush_subnormals();
       }},
  };
  for (const CaseSpec& spec : specs(dtype())) {
    SCOPED_TRACE(describe(spec));
    Case expected(spec), actual(spec);
    call(expected, 1);
    for (const Environment& environment : environments) {
      SCOPED_TRACE(environment.name);
      for (const int threads : {1, 3}) {
        actual.poison();
        {
          const RestoreAtEnd restore;
          environment.enter();
          const int rounding = std::fegetround();
          const float half = half_of_the_smallest();
          call(actual, threads);
          EXPECT_EQ(std::fegetround(), rounding);
          EXPECT_EQ(half_of_the_smallest(), half);
        }
        EXPECT_EQ(difference(expected, actual), "") << threads << " threads";
      }
      actual.poison();
      WithEnvironment executor(environment.enter);
      call(actual, 0, &executor);
      EXPECT_EQ(difference(expected, actual), "") << "in threads of the caller's";
    }
  }
}

TEST_P(FloatEnvironmentTest, LeavesTheFlagsAlone) {
  for (const CaseSpec& spec : specs(dtype())) {
    SCOPED_TRACE(describe(spec));
    Case problem(spec);
    for (const int threads : {1, 3}) {
      for (const int flags : {0, FE_UNDERFLOW | FE_DIVBYZERO}) {
        const RestoreAtEnd restore;
        std::feclearexcept(FE_ALL_EXCEPT);
        std::feraiseexcept(flags);
        const int before = std::fetestexcept(FE_ALL_EXCEPT);
        call(problem, threads);
        EXPECT_EQ(std::fetestexcept(FE_ALL_EXCEPT), before);
      }
    }
  }
}

// A trap would end this program.
TEST_P(FloatEnvironmentTest, RaisesNoTrap) {
  for (const CaseSpec& spec : specs(dtype())) {
    SCOPED_TRACE(describe(spec));
    Case expected(spec), actual(spec);
    call(expected, 1);
    for (const int threads : {1, 3}) {
      actual.poison();
      const RestoreAtEnd restore;
      constexpr int kTraps = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW;
      std::feclearexcept(FE_ALL_EXCEPT);
      feenableexcept(kTraps);
      const int enabled = fegetexcept();
      if (enabled != kTraps) GTEST_SKIP() << "this CPU has no floating-point traps";
      (void)plan(actual.attention, actual.forward, {.threads = threads});
      call(actual, threads);
      const int still_enabled = fegetexcept();
      fedisableexcept(kTraps);
      EXPECT_EQ(still_enabled, enabled);
      EXPECT_EQ(difference(expected, actual), "") << threads << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, FloatEnvironmentTest,
                         testing::Combine(testing::ValuesIn(kDTypes), testing::ValuesIn(cpu_kernels())),
                         test_name);

// Those without backward, with everything at once.
class FloatEnvironmentForward : public testing::TestWithParam<std::string> {};

TEST_P(FloatEnvironmentForward, GivesTheSameBitsInAny) {
  const ForceKernel forced(GetParam());
  for (const DType dtype : kDTypes) {
    for (CaseSpec spec : specs(dtype)) {
      spec.packed = spec.packed || !takes(GetParam(), spec);
      SCOPED_TRACE(describe(spec));
      Case expected(spec), actual(spec);
      tessera::forward(expected.attention, expected.forward, {.threads = 1});
      for (const int threads : {1, 3}) {
        actual.poison();
        const RestoreAtEnd restore;
        std::feclearexcept(FE_ALL_EXCEPT);
        feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
        std::fesetround(FE_DOWNWARD);
        flush_subnormals();
        tessera::forward(actual.attention, actual.forward, {.threads = threads});
        fedisableexcept(FE_ALL_EXCEPT);
        EXPECT_EQ(std::fetestexcept(FE_ALL_EXCEPT), 0);
        EXPECT_EQ(first_difference(expected.forward, actual.forward), "") << threads << " threads";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, FloatEnvironmentForward, testing::ValuesIn(forward_only_kernels()),
                         kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FloatEnvironmentForward);  // a CPU without vectors

TEST(FloatEnvironment, AlibiSlopes) {
  const std::vector<float> expected = alibi_slopes(12);
  const RestoreAtEnd restore;
  std::fesetround(FE_UPWARD);
  EXPECT_EQ(alibi_slopes(12), expected);
}

}  // namespace
}  // namespace tessera::test
