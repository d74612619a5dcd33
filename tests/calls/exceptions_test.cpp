// What the caller's own executor and allocator throw: it leaves the call unchanged, nothing is
// leaked, and the library works on. Through the C interface it becomes a status.
#include <gtest/gtest.h>

#include <algorithm>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "reference/tolerance/check.h"
#include "support/guarded.h"
#include "support/kernels.h"
#include "support/tensors.h"
#include "tessera/capi.h"
#include "tessera/error.h"

namespace tessera::test {
namespace {

using reference::Case;
using reference::CaseSpec;
using reference::ForceKernel;

// Something that nobody but this test knows.
struct Thrown {
  int number;
};

// Runs every worker in a thread of its own, but throws `when` it is told to.
template <typename Exception>
class Throwing final : public Executor {
 public:
  enum class When { never, asked_for_concurrency, before_workers, after_one_worker, after_all_workers };

  Throwing(When when, Exception exception, int spared_runs = 0)
      : when_(when), exception_(std::move(exception)), spared_runs_(spared_runs) {}

  [[nodiscard]] int concurrency() const override {
    if (when_ == When::asked_for_concurrency) throw exception_;
    return 3;
  }
  void run(int workers, void (*body)(void*, int), void* context) override {
    const bool throws = runs_++ >= spared_runs_;
    if (throws && when_ == When::before_workers) throw exception_;
    const int count = throws && when_ == When::after_one_worker ? 1 : workers;
    std::vector<std::thread> threads;
    for (int worker = 0; worker < count; ++worker) threads.emplace_back(body, context, worker);
    for (std::thread& thread : threads) thread.join();
    if (throws && when_ != When::never) throw exception_;
  }
  [[nodiscard]] int runs() const { return runs_; }

 private:
  When when_;
  Exception exception_;
  int spared_runs_;
  int runs_ = 0;
};
using When = Throwing<Thrown>::When;

class ThrowingAllocator final : public Allocator {
 public:
  ThrowingAllocator(bool allocating, bool deallocating)
      : allocating_(allocating), deallocating_(deallocating) {}
  void* allocate(std::size_t bytes, std::size_t alignment, void* stream) override {
    if (allocating_) throw Thrown{1};
    return memory_.allocate(bytes, alignment, stream);
  }
  void deallocate(void* data, std::size_t bytes, std::size_t alignment, void* stream) override {
    memory_.deallocate(data, bytes, alignment, stream);
    if (deallocating_) throw Thrown{2};
  }
  [[nodiscard]] const GuardedAllocator& memory() const { return memory_; }

 private:
  bool allocating_, deallocating_;
  GuardedAllocator memory_;
};

CaseSpec small() {
  return {
      .q_length = 300, .k_length = 300, .q_heads = 2, .kv_heads = 1, .qk_dim = 16, .v_dim = 16, .softcap = 3};
}

// The number of the Thrown that leaves `call`; 0: nothing does.
template <typename Call>
int thrown_by(const Call& call) {
  try {
    call();
  } catch (const Thrown& thrown) {
    return thrown.number;
  }
  return 0;
}

class ExceptionsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    forced_ = std::make_unique<ForceKernel>(GetParam());
    call(expected_, {.threads = 1});
  }
  void TearDown() override {  // the library works on
    Case again(spec());
    call(again, {.threads = 2});
    expect_right(again);
  }
  static CaseSpec spec() {
    CaseSpec spec = small();
    if (!takes(GetParam(), spec)) spec.packed = true, spec.batch = 5, spec.q_length = 40;
    return spec;
  }
  static bool has_backward() {
    const std::vector<std::string> with_backward = cpu_kernels();
    return std::find(with_backward.begin(), with_backward.end(), GetParam()) != with_backward.end();
  }
  static void call(Case& problem, const Execution& execution) {
    tessera::forward(problem.attention, problem.forward, execution);
    if (has_backward()) tessera::backward(problem.attention, problem.backward, execution);
  }
  void expect_right(const Case& problem) const {
    EXPECT_EQ(first_difference(expected_.forward, problem.forward), "");
    if (!has_backward()) return;
    EXPECT_EQ(first_difference(expected_.backward, problem.backward), "");
  }

  Case expected_{spec()};

 private:
  std::unique_ptr<ForceKernel> forced_;
};

std::vector<std::string> all_kernels() {
  std::vector<std::string> all = cpu_kernels(), forward_only = forward_only_kernels();
  all.insert(all.end(), forward_only.begin(), forward_only.end());
  return all;
}

TEST_P(ExceptionsTest, OfAnExecutorPassUnchanged) {
  Case problem(spec());
  for (const When when : {When::before_workers, When::after_one_worker, When::after_all_workers}) {
    for (int spared = 0;; ++spared) {  // every parallel part of both directions in turn
      problem.poison();
      Throwing<Thrown> executor(when, {40 + spared}, spared);
      GuardedAllocator memory;
      const int thrown = thrown_by([&] { call(problem, {.executor = &executor, .allocator = &memory}); });
      EXPECT_EQ(memory.complaints(), "");
      if (thrown == 0) {
        EXPECT_EQ(executor.runs(), spared);
        EXPECT_GT(spared, has_backward() ? 1 : 0);
        expect_right(problem);
        break;
      }
      ASSERT_EQ(thrown, 40 + spared);
      EXPECT_EQ(executor.runs(), spared + 1) << "runs after the one that failed";
    }
  }
}

TEST_P(ExceptionsTest, OfConcurrencyPassUnchanged) {
  Case problem(spec()), untouched(spec());
  Throwing<Thrown> executor(When::asked_for_concurrency, {7});
  EXPECT_EQ(thrown_by([&] { tessera::forward(problem.attention, problem.forward, {.executor = &executor}); }),
            7);
  EXPECT_EQ(thrown_by([&] { (void)plan(problem.attention, problem.forward, {.executor = &executor}); }), 7);
  EXPECT_EQ(first_difference(untouched.forward, problem.forward), "");
}

TEST_P(ExceptionsTest, OfAnAllocatorPassUnchanged) {
  Case problem(spec()), untouched(spec());
  ThrowingAllocator none(true, false);
  EXPECT_EQ(thrown_by([&] { tessera::forward(problem.attention, problem.forward, {.allocator = &none}); }),
            1);
  EXPECT_EQ(first_difference(untouched.forward, problem.forward), "");

  ThrowingAllocator late(false, true);
  EXPECT_EQ(thrown_by([&] { tessera::forward(problem.attention, problem.forward, {.allocator = &late}); }),
            2);
  EXPECT_EQ(first_difference(expected_.forward, problem.forward), "") << "the result is complete";
  if (has_backward()) {
    EXPECT_EQ(
        thrown_by([&] { tessera::backward(problem.attention, problem.backward, {.allocator = &late}); }), 2);
  }
  expect_right(problem);
  EXPECT_EQ(late.memory().complaints(), "");
}

TEST_P(ExceptionsTest, TheFirstOfTwoCounts) {
  Case problem(spec());
  Throwing<Thrown> executor(When::after_one_worker, {8});
  ThrowingAllocator late(false, true);
  EXPECT_EQ(thrown_by([&] {
              tessera::forward(problem.attention, problem.forward,
                               {.executor = &executor, .allocator = &late});
            }),
            8);
  EXPECT_EQ(late.memory().complaints(), "");
}

// Also an Error of the caller's own passes; running out of memory has one form.
TEST_P(ExceptionsTest, OfKindsThatTheLibraryKnows) {
  Case problem(spec());
  auto code_of = [&](Executor& executor) -> std::optional<ErrorCode> {
    try {
      tessera::forward(problem.attention, problem.forward, {.executor = &executor});
    } catch (const Error& error) {
      return error.code();
    }
    return {};
  };
  Throwing<Error> own(Throwing<Error>::When::before_workers, Error(ErrorCode::unsupported, "not today"));
  EXPECT_EQ(code_of(own), ErrorCode::unsupported);
  Throwing<std::bad_alloc> memory(Throwing<std::bad_alloc>::When::before_workers, {});
  EXPECT_EQ(code_of(memory), ErrorCode::out_of_memory);
  Throwing<std::length_error> length(Throwing<std::length_error>::When::before_workers,
                                     std::length_error("too long"));
  EXPECT_EQ(code_of(length), ErrorCode::out_of_memory);
}

INSTANTIATE_TEST_SUITE_P(Cpu, ExceptionsTest, testing::ValuesIn(all_kernels()), kernel_test_name);

// --- through the C interface, with callbacks in C++ ----------------------------------------------

int three(void*) { return 3; }
int throws_in_concurrency(void*) { throw Thrown{1}; }
void throws_in_run(void*, int, void (*)(void*, int), void*) { throw std::runtime_error("no threads today"); }
void out_of_memory_in_run(void*, int, void (*)(void*, int), void*) { throw std::bad_alloc(); }
void* throws_in_allocate(void*, size_t, size_t, void*) { throw std::runtime_error("no memory today"); }
void* allocates(void*, size_t bytes, size_t alignment, void*) {
  return ::operator new(bytes, std::align_val_t{alignment});
}
void throws_in_deallocate(void*, void* data, size_t, size_t alignment, void*) {
  ::operator delete(data, std::align_val_t{alignment});
  throw std::runtime_error("too late");
}

TEST(ExceptionsInC, BecomeAStatus) {
  std::vector<float> in(64 * 8, 0.5F), out(in.size());
  const tsr_tensor input = tsr_tensor_contiguous(in.data(), TSR_FP32, 1, 64, 1, 8);
  const tsr_tensor output = tsr_tensor_contiguous(out.data(), TSR_FP32, 1, 64, 1, 8);
  tsr_forward_tensors tensors = TSR_FORWARD_TENSORS_INIT;
  tensors.q = tensors.k = tensors.v = &input;
  tensors.out = &output;
  auto status = [&](const tsr_executor* executor, const tsr_allocator* allocator) {
    tsr_execution execution = TSR_EXECUTION_INIT;
    execution.executor = executor;
    execution.allocator = allocator;
    return tsr_forward(nullptr, &tensors, &execution);
  };
  tsr_executor executor = TSR_EXECUTOR_INIT;
  executor.concurrency = throws_in_concurrency;
  executor.run = throws_in_run;
  EXPECT_EQ(status(&executor, nullptr), TSR_INTERNAL_ERROR);
  executor.concurrency = three;
  EXPECT_EQ(status(&executor, nullptr), TSR_INTERNAL_ERROR);
  EXPECT_STREQ(tsr_last_error(), "no threads today");
  executor.run = out_of_memory_in_run;
  EXPECT_EQ(status(&executor, nullptr), TSR_OUT_OF_MEMORY);
  tsr_allocator allocator = TSR_ALLOCATOR_INIT;
  allocator.allocate = throws_in_allocate;
  allocator.deallocate = throws_in_deallocate;
  EXPECT_EQ(status(nullptr, &allocator), TSR_INTERNAL_ERROR);
  EXPECT_STREQ(tsr_last_error(), "no memory today");
  allocator.allocate = allocates;
  EXPECT_EQ(status(nullptr, &allocator), TSR_INTERNAL_ERROR);
  EXPECT_STREQ(tsr_last_error(), "too late");
  EXPECT_EQ(status(nullptr, nullptr), TSR_OK);
  EXPECT_EQ(out, in);
}

}  // namespace
}  // namespace tessera::test
