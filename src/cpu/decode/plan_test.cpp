// How decode cuts a problem: splits by head_dim and type alone, tasks for the workers.
#include "cpu/decode/plan.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera::cpu {
namespace {

core::Problem problem_of(std::int64_t keys, std::int64_t kv_heads, std::int64_t batch) {
  core::Problem p;
  p.dtype = DType::fp32;
  p.batch = batch;
  p.q_heads = 4 * kv_heads;
  p.kv_heads = kv_heads;
  p.q_length = 1;
  p.k_length = keys;
  p.qk_dim = p.v_dim = 128;
  p.k.row_stride = p.v.row_stride = 128;
  p.k.head_stride = p.v.head_stride = 128 * keys;
  return p;
}

constexpr Reading kKept{.cached_bytes = 1 << 20, .passing = false};
constexpr Reading kPassing{.cached_bytes = 1 << 30, .passing = true};

// Neither workers, nor batch, nor heads change the cut, which decides the bits of a row.
TEST(DecodePlan, SplitsFollowFromHeadDimAndTypeAlone) {
  const DecodePlan first = decode_plan(problem_of(100000, 1, 1), Target::avx2, 8, 1, kKept);
  for (const int workers : {2, 7, 64}) {
    for (const std::int64_t heads : {1, 3, 8}) {
      for (const std::int64_t batch : {1, 5}) {
        const DecodePlan plan =
            decode_plan(problem_of(100000, heads, batch), Target::avx2, 8, workers, kKept);
        EXPECT_EQ(plan.split_keys, first.split_keys);
        EXPECT_EQ(plan.step_keys, first.step_keys);
        EXPECT_EQ(plan.splits, first.splits);
      }
    }
  }
  EXPECT_EQ(first.split_keys % first.step_keys, 0);
}

// Tasks cover all splits of all heads, and there are enough of them for the workers where splits
// allow it.
TEST(DecodePlan, TasksCoverEverySplit) {
  for (const std::int64_t keys : {1, 255, 256, 1000, 50000}) {
    for (const std::int64_t heads : {1, 2, 5}) {
      for (const int workers : {1, 3, 16}) {
        core::Problem p = problem_of(keys, heads, 2);
        for (const bool side_by_side : {false, true}) {
          if (side_by_side) {
            p.k.head_stride = p.v.head_stride = 128;
            p.k.row_stride = p.v.row_stride = 128 * heads;
          }
          const DecodePlan plan = decode_plan(p, Target::avx2, 8, workers, kKept);
          EXPECT_GE(plan.task_splits * plan.split_tasks, plan.splits);
          EXPECT_LT(plan.task_splits * (plan.split_tasks - 1), plan.splits);
          EXPECT_GE(plan.task_heads * plan.head_tasks, heads);
          EXPECT_GE(task_count(p, plan), std::min<std::int64_t>(workers, 2 * heads * plan.splits) / 2);
        }
      }
    }
  }
}

TEST(DecodePlan, ReadingDoesNotChangeTheCut) {
  for (const std::int64_t keys : {1, 300, 50000}) {
    for (const std::int64_t queries : {1, 16}) {
      core::Problem p = problem_of(keys, 2, 1);
      p.q_length = queries;
      const DecodePlan a = decode_plan(p, Target::avx2, 8, 2, kKept);
      const DecodePlan b = decode_plan(p, Target::avx2, 8, 2, kPassing);
      EXPECT_EQ(a.step_keys, b.step_keys);
      EXPECT_EQ(a.split_keys, b.split_keys);
      EXPECT_FALSE(a.passing);
      EXPECT_TRUE(b.passing);
      EXPECT_EQ(a.reread, keys == 50000) << "K and V beyond the caches";
      EXPECT_FALSE(b.reread);
    }
  }
}

TEST(DecodePlan, ProductsOfBf16TakeWholeVectors) {
  core::Problem p = problem_of(1000, 1, 1);
  p.dtype = DType::bf16;
  EXPECT_TRUE(decode_plan(p, Target::amx, 16, 1, kKept).bf16_dot);
  EXPECT_FALSE(decode_plan(p, Target::avx512, 16, 1, kKept).bf16_dot);
  p.v_dim = 72;
  EXPECT_FALSE(decode_plan(p, Target::amx, 16, 1, kKept).bf16_dot);
}

}  // namespace
}  // namespace tessera::cpu
