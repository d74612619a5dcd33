#include "lab/measure/interleave.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>

#include "lab/measure/machine/counting_allocator.h"
#include "lab/terminal/progress.h"

namespace tessera::lab {
namespace {

TEST(Summarise, QuartilesAndSpread) {
  const Summary summary = summarise({5, 1, 4, 2, 3});
  EXPECT_EQ(summary.count, 5);
  EXPECT_DOUBLE_EQ(summary.median, 3);
  EXPECT_DOUBLE_EQ(summary.lower_quartile, 2);
  EXPECT_DOUBLE_EQ(summary.upper_quartile, 4);
  EXPECT_DOUBLE_EQ(summary.lowest, 1);
  EXPECT_DOUBLE_EQ(summary.highest, 5);
  EXPECT_DOUBLE_EQ(summary.spread(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(summarise({1, 2}).median, 1.5);
  EXPECT_DOUBLE_EQ(summarise({7}).upper_quartile, 7);
  EXPECT_EQ(summarise({}).count, 0);
  EXPECT_EQ(summarise({}).spread(), 0);
}

// What one call leaves behind in caches and clocks must not always affect the same other call.
TEST(Interleave, CallsTakeTurnsAndFollowEachOtherEquallyOften) {
  constexpr int kRounds = 100;
  std::string order;
  std::vector<TimedCall> calls;
  for (const char name : {'a', 'b', 'c'}) calls.push_back({[&order, name] { order += name; }});
  EXPECT_TRUE(interleave(calls, {.warmup = 0, .repetitions = kRounds}, [](double) { return true; }));
  std::map<std::string, int> pairs;
  for (std::size_t i = 0; i + 1 < order.size(); ++i) ++pairs[order.substr(i, 2)];
  EXPECT_EQ(pairs.size(), 6U) << "each after each other, none after itself";
  for (const auto& [pair, count] : pairs)
    EXPECT_NEAR(count, 3 * kRounds / 6, 12) << pair;  // a rotation: 67 and 33
  for (int round = 0; round < kRounds; ++round) {
    std::string turn = order.substr(static_cast<std::size_t>(3 * round), 3);
    std::sort(turn.begin(), turn.end());
    EXPECT_EQ(turn, "abc") << "round " << round;
  }
  for (const TimedCall& call : calls) {
    EXPECT_EQ(call.seconds.size(), static_cast<std::size_t>(kRounds));
    EXPECT_DOUBLE_EQ(call.total, std::accumulate(call.seconds.begin(), call.seconds.end(), 0.0));
  }
}

TEST(Interleave, ByTimeHasAFewestAndAMost) {
  std::vector<TimedCall> calls = {{[] {}}};
  interleave(calls, {.warmup = 0, .min_time = 0, .fewest = 5}, [](double) { return true; });
  EXPECT_EQ(calls[0].seconds.size(), 5U);
  calls = {{[] {}}};
  interleave(calls, {.warmup = 0, .min_time = 1e9, .fewest = 5, .most = 50}, [](double) { return true; });
  EXPECT_EQ(calls[0].seconds.size(), 50U);
}

TEST(Interleave, AFailureLeavesTheOthersRunning) {
  int called = 0;
  std::vector<TimedCall> calls = {{[&] {
                                    if (++called == 2) throw std::runtime_error("broken");
                                  }},
                                  {[] {}}};
  EXPECT_TRUE(interleave(calls, {.warmup = 0, .repetitions = 4}, [](double) { return true; }));
  EXPECT_TRUE(calls[0].failure);
  EXPECT_EQ(called, 2);
  EXPECT_EQ(calls[1].seconds.size(), 4U);
}

TEST(Interleave, ACallMayBringItsOwnClock) {
  std::vector<TimedCall> calls = {{.call = [] { FAIL() << "timed() calls"; }, .timed = [] { return 0.25; }}};
  EXPECT_TRUE(interleave(calls, {.warmup = 1, .repetitions = 3}, [](double) { return true; }));
  EXPECT_EQ(calls[0].seconds, std::vector<double>(3, 0.25));
}

TEST(Interleave, StopsWhenToldAndReportsItsShare) {
  int asked = 0;
  double last = 0;
  std::vector<TimedCall> calls = {{[] {}}};
  EXPECT_FALSE(interleave(calls, {.warmup = 0, .repetitions = 10}, [&](double share) {
    last = share;
    return ++asked <= 5;
  }));
  EXPECT_EQ(calls[0].seconds.size(), 5U);
  EXPECT_DOUBLE_EQ(last, 0.5);
}

TEST(CountingAllocator, CountsPeaksAndKeepsBlocks) {
  CountingAllocator allocator(1000);
  void* first = allocator.allocate(400, 256, nullptr);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 256, 0U);
  EXPECT_EQ(allocator.allocate(700, 256, nullptr), nullptr);
  void* second = allocator.allocate(500, 64, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(allocator.peak(), 900U);
  allocator.deallocate(first, 400, 256, nullptr);
  EXPECT_EQ(allocator.in_use(), 500U);
  EXPECT_EQ(allocator.allocate(400, 256, nullptr), first) << "the freed block is used again";
  allocator.deallocate(first, 400, 256, nullptr);
  allocator.reset_peak();
  EXPECT_EQ(allocator.peak(), 500U);
  void* third = allocator.allocate(450, 64, nullptr);  // only fits when the kept block goes
  EXPECT_NE(third, nullptr);
  EXPECT_EQ(allocator.peak(), 950U);
  allocator.deallocate(second, 500, 64, nullptr);
  allocator.deallocate(third, 450, 64, nullptr);
  EXPECT_EQ(allocator.in_use(), 0U);
}

TEST(Progress, SaysWhatHowFarAndHowLong) {
  EXPECT_EQ(progress_text("flash2, seq 1024", 0, 0), "[  0%] flash2, seq 1024");
  EXPECT_EQ(progress_text("flash2, seq 1024", 0.25, 10), "[ 25%] flash2, seq 1024 (0:30 left)");
  EXPECT_EQ(progress_text("x", 1.5, 10), "[100%] x (0:00 left)");
}

}  // namespace
}  // namespace tessera::lab
