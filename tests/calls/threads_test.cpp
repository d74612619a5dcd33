// Threads never show in a result: any number of them, any executor, calls side by side
// and inside each other. ThreadSanitizer runs this program too, so sizes are small.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "cpu/machine/cores.h"
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

std::vector<CaseSpec> specs(DType dtype) {
  std::vector<CaseSpec> all = {
      {.q_length = 150,
       .k_length = 170,
       .q_heads = 4,
       .kv_heads = 2,
       .qk_dim = 16,
       .v_dim = 24,
       .right = 0,
       .bias = BiasKind::per_head,
       .dropout = 0.1,
       .grad_lse = true},
      {.batch = 5,
       .q_length = 90,
       .k_length = 80,
       .q_heads = 3,
       .kv_heads = 1,
       .qk_dim = 8,
       .v_dim = 8,
       .left = 20,
       .right = 4,
       .packed = true,
       .alibi = true},
      {.batch = 1,
       .q_length = 200,
       .k_length = 200,
       .q_heads = 2,
       .kv_heads = 2,
       .qk_dim = 16,
       .v_dim = 16,
       .blocks = BlockKind::random_per_head,
       .block_q = 24,
       .block_k = 40,
       .bias = BiasKind::row,
       .softcap = 5},
      {.batch = 1,
       .q_length = 300,
       .k_length = 400,
       .q_heads = 2,
       .kv_heads = 1,
       .qk_dim = 8,
       .v_dim = 8,
       .visible = reference::VisibleKind::per_head},
  };
  for (CaseSpec& spec : all) spec.dtype = dtype;
  return all;
}

void call(Case& problem, const Execution& execution) {
  tessera::forward(problem.attention, problem.forward, execution);
  tessera::backward(problem.attention, problem.backward, execution);
}

std::string difference(const Case& a, const Case& b) {
  return first_difference(a.forward, b.forward) + first_difference(a.backward, b.backward);
}

// Every worker on a thread of its own.
class FreshThreads final : public Executor {
 public:
  explicit FreshThreads(int concurrency) : concurrency_(concurrency) {}
  [[nodiscard]] int concurrency() const override { return concurrency_; }
  void run(int workers, void (*body)(void*, int), void* context) override {
    runs_ += 1;
    std::vector<std::thread> threads;
    for (int w = 0; w < workers; ++w) threads.emplace_back([=] { body(context, w); });
    for (std::thread& thread : threads) thread.join();
  }
  [[nodiscard]] int runs() const { return runs_; }

 private:
  int concurrency_;
  std::atomic<int> runs_ = 0;
};

// One worker after the other, the last first, on the calling thread.
class BackwardsInTurn final : public Executor {
 public:
  [[nodiscard]] int concurrency() const override { return 5; }
  void run(int workers, void (*body)(void*, int), void* context) override {
    for (int w = workers - 1; w >= 0; --w) body(context, w);
  }
};

// Before each worker does its part it makes a whole call of its own.
class CallsInside final : public Executor {
 public:
  explicit CallsInside(const CaseSpec& spec) : spec_(spec) {
    Case expected(spec);
    call(expected, {.threads = 1});
    expected_ = reference::values(expected.backward.grad_k);
  }
  [[nodiscard]] int concurrency() const override { return 3; }
  void run(int workers, void (*body)(void*, int), void* context) override {
    std::vector<std::thread> threads;
    for (int w = 0; w < workers; ++w) {
      threads.emplace_back([this, body, context, w] {
        Case inner(spec_);
        call(inner, {.threads = 2});
        if (reference::values(inner.backward.grad_k) != expected_) wrong_ += 1;
        body(context, w);
        calls_ += 1;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  [[nodiscard]] int wrong() const { return wrong_; }
  [[nodiscard]] int calls() const { return calls_; }

 private:
  CaseSpec spec_;
  std::vector<double> expected_;
  std::atomic<int> wrong_ = 0, calls_ = 0;
};

class ThreadsTest : public testing::TestWithParam<TypeAndKernel> {
 protected:
  // The kernel stays forced for the whole test: the environment must not change while threads run.
  void SetUp() override { forced_ = std::make_unique<ForceKernel>(std::get<1>(GetParam())); }
  DType dtype() const { return std::get<0>(GetParam()); }

 private:
  std::unique_ptr<ForceKernel> forced_;
};

TEST_P(ThreadsTest, AnyNumberOfThreadsGivesTheSameBits) {
  for (const CaseSpec& spec : specs(dtype())) {
    SCOPED_TRACE(describe(spec));
    Case one(spec), many(spec);
    call(one, {.threads = 1});
    for (const int threads : {2, 3, 4, 5, 6, 7, 8, 0}) {
      many.poison();
      call(many, {.threads = threads});
      EXPECT_EQ(difference(one, many), "") << threads << " threads";
    }
  }
}

// Long enough that keys are split among workers: queries are then packed once for all of them,
// and dQ is a sum of partial ones, of which there are only those that a tile of queries sees.
TEST_P(ThreadsTest, AnyNumberOfThreadsGivesTheSameBitsWhereKeysAreSplit) {
  const std::int64_t keys = scaled(1300, 600, "keys of a head that is split:");
  std::vector<CaseSpec> all = {
      {.q_length = 70, .k_length = keys, .q_heads = 3, .kv_heads = 3, .qk_dim = 8, .v_dim = 5, .right = 40},
      {.batch = 1,
       .q_length = 700,
       .k_length = keys,
       .q_heads = 2,
       .kv_heads = 1,
       .qk_dim = 8,
       .v_dim = 8,
       .right = 0},
      {.batch = 1,
       .q_length = 300,
       .k_length = keys,
       .q_heads = 1,
       .kv_heads = 1,
       .qk_dim = 4,
       .v_dim = 8,
       .right = 0,
       .align = Align::top_left},
      {.batch = 1,
       .q_length = 300,
       .k_length = keys,
       .q_heads = 3,
       .kv_heads = 3,
       .qk_dim = 4,
       .v_dim = 8,
       .left = 90,
       .right = 10,
       .grad_lse = true},
      {.batch = 3,
       .q_length = 200,
       .k_length = keys,
       .q_heads = 1,
       .kv_heads = 1,
       .qk_dim = 8,
       .v_dim = 8,
       .right = 0,
       .packed = true},
      {.batch = 1,
       .q_length = 150,
       .k_length = keys,
       .q_heads = 2,
       .kv_heads = 2,
       .qk_dim = 8,
       .v_dim = 8,
       .blocks = BlockKind::random_per_head,
       .block_q = 20,
       .block_k = 40},
  };
  for (CaseSpec& spec : all) {
    spec.dtype = dtype();
    SCOPED_TRACE(describe(spec));
    Case one(spec), many(spec);
    call(one, {.threads = 1});
    for (int threads = 2; threads <= 8; ++threads) {
      many.poison();
      call(many, {.threads = threads});
      EXPECT_EQ(difference(one, many), "") << threads << " threads";
    }
  }
}

TEST_P(ThreadsTest, RepeatedRunsGiveTheSameBits) {
  const int rounds = scaled(30, 4, "repeated runs:");
  for (const CaseSpec& spec : specs(dtype())) {
    SCOPED_TRACE(describe(spec));
    Case first(spec), again(spec);
    call(first, {.threads = 4});
    for (int round = 0; round < rounds; ++round) {
      again.poison();
      call(again, {.threads = 4});
      ASSERT_EQ(difference(first, again), "") << "round " << round;
    }
  }
}

TEST_P(ThreadsTest, AnyExecutorGivesTheSameBits) {
  for (const CaseSpec& spec : specs(dtype())) {
    SCOPED_TRACE(describe(spec));
    Case one(spec), other(spec);
    call(one, {.threads = 1});
    FreshThreads fresh(4);
    call(other, {.executor = &fresh});
    EXPECT_EQ(difference(one, other), "") << "fresh threads";
    EXPECT_GT(fresh.runs(), 0) << "the executor was not used";
    BackwardsInTurn in_turn;
    other.poison();
    call(other, {.executor = &in_turn});
    EXPECT_EQ(difference(one, other), "") << "one after the other, backwards";
    other.poison();
    call(other, {.threads = 2, .executor = &fresh});
    EXPECT_EQ(difference(one, other), "") << "fewer workers than the executor offers";
  }
}

TEST_P(ThreadsTest, ConcurrentCalls) {
  const std::vector<CaseSpec> all = specs(dtype());
  std::vector<Case> expected;
  for (const CaseSpec& spec : all) {
    expected.emplace_back(spec);
    call(expected.back(), {.threads = 1});
  }
  const int rounds = scaled(10, 2, "rounds of concurrent calls:");
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < rounds; ++round) {
        const std::size_t which = static_cast<std::size_t>(caller + round) % all.size();
        Case mine(all[which]);
        call(mine, {.threads = round % 3 + 1});
        if (!difference(expected[which], mine).empty()) wrong += 1;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0) << "calls of " << 4 * rounds;
}

// The library's pool is shared: calls on the same description and the same inputs,
// each with its own outputs.
TEST_P(ThreadsTest, ConcurrentCallsShareInputs) {
  const CaseSpec spec = specs(dtype()).front();
  Case shared(spec);
  tessera::forward(shared.attention, shared.forward);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      const OwnedTensor out(dtype(), shared.forward.out.shape, {});
      const OwnedTensor lse(shared.forward.lse.dtype, shared.forward.lse.shape, {});
      ForwardTensors mine = shared.forward;
      mine.out = out.view();
      mine.lse = lse.view();
      tessera::forward(shared.attention, mine);
      if (!first_difference(shared.forward, mine).empty()) wrong += 1;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(ThreadsTest, CallsInsideAnExecutor) {
  const std::vector<CaseSpec> all = specs(dtype());
  Case outer(all[0]), expected(all[0]);
  call(expected, {.threads = 1});
  CallsInside executor(all[1]);
  call(outer, {.executor = &executor});
  EXPECT_EQ(difference(expected, outer), "");
  EXPECT_EQ(executor.wrong(), 0);
  EXPECT_GT(executor.calls(), 0);
}

// An allocator of the caller's is used from the calls that run side by side, and
// everything comes back.
TEST_P(ThreadsTest, SharedAllocator) {
  GuardedAllocator allocator;
  const CaseSpec spec = specs(dtype()).front();
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      Case mine(spec);
      call(mine, {.threads = 2, .allocator = &allocator});
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(allocator.complaints(), "");
}

// A short call wakes no thread unless the caller names a number or brings an executor.
TEST(DefaultThreads, FollowFromTheWork) {
  const Shapes shorter{.q_length = 16, .k_length = 16, .q_heads = 12};
  const Shapes longer{.q_length = 1024, .k_length = 1024, .q_heads = 64};
  const Shapes cache{.q_length = 1, .k_length = 65536, .q_heads = 32, .qk_dim = 128};
  const int all = cpu::available_cores();
  EXPECT_EQ(plan({}, shorter).threads, 1);
  EXPECT_EQ(plan({}, longer).threads, all);
  EXPECT_EQ(plan({}, cache).threads, all);
  EXPECT_EQ(plan({}, shorter, Device::cpu(), Direction::forward, {.threads = 3}).threads, 3);
}

INSTANTIATE_TEST_SUITE_P(Cpu, ThreadsTest,
                         testing::Combine(testing::Values(DType::fp32, DType::bf16, DType::fp64),
                                          testing::ValuesIn(cpu_kernels())),
                         test_name);

}  // namespace
}  // namespace tessera::test
