// How forward cuts a problem into tasks, and the keys of a sequence into steps.
#include "cpu/flash2/forward_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tessera::cpu {
namespace {

// Few enough steps for a row of a million keys; a shorter one beside it keeps its own.
TEST(ForwardSteps, FollowFromTheLengthOfTheSequence) {
  ForwardPlan plan;
  plan.fitting_keys = 100;
  plan.block_k = 512;  // of the longest
  EXPECT_EQ(plan.keys_per_step(300), 96);
  EXPECT_EQ(plan.keys_per_step(1 << 18), 128);
  EXPECT_EQ(plan.keys_per_step(1 << 20), 512);
  plan.forced_block_k = 40;
  EXPECT_EQ(plan.keys_per_step(1 << 20), 40);
}

core::Problem problem_of(std::int64_t heads, std::int64_t length, DType dtype) {
  core::Problem p;
  p.dtype = dtype;
  p.batch = 1;
  p.q_heads = p.kv_heads = heads;
  p.q_length = p.k_length = length;
  p.qk_dim = p.v_dim = 64;
  p.k.row_stride = p.v.row_stride = 64;
  return p;
}

// Every tile of every head belongs to one task.
TEST(ForwardPlan, TasksCoverEveryTileOnce) {
  for (const std::int64_t heads : {0, 1, 3, 8, 13}) {
    for (const int workers : {1, 2, 5, 16}) {
      for (const std::int64_t length : {0, 1, 64, 1000, 5000}) {
        const ForwardPlan plan =
            forward_plan(problem_of(heads, length, DType::fp32), Target::avx2, 64, {}, workers);
        std::vector<int> visits(static_cast<std::size_t>(heads * plan.tiles));
        for (std::int64_t t = 0; t < task_count(plan, heads); ++t) {
          const ForwardTask task = task_of(plan, heads, t);
          for (std::int64_t tile = task.first_tile; tile < std::min(task.end_tile, plan.tiles); ++tile) {
            ++visits[static_cast<std::size_t>(task.head * plan.tiles + tile)];
          }
        }
        for (const int times : visits) EXPECT_EQ(times, 1);
      }
    }
  }
}

// The scores of a step take two thirds of the first-level cache where vectors would wait for the
// second.
TEST(ForwardPlan, StepsFitTheCaches) {
  const Tuning one{.l1_bytes = 32 << 10, .l2_bytes = 1 << 20};
  const Tuning two{.l1_bytes = 32 << 10, .l2_bytes = 1 << 20, .has_two_avx512_units = true};
  const core::Problem p = problem_of(1, 4096, DType::fp32);
  EXPECT_EQ(forward_plan(p, Target::avx512, 64, one, 1).block_k, 512);
  EXPECT_EQ(forward_plan(p, Target::avx512, 64, two, 1).block_k, 64);
  const Tuning larger{.l1_bytes = 48 << 10, .l2_bytes = 1 << 20, .has_two_avx512_units = true};
  EXPECT_EQ(forward_plan(p, Target::avx512, 64, larger, 1).block_k, 128);
  const core::Problem bf16 = problem_of(1, 4096, DType::bf16);
  EXPECT_EQ(forward_plan(bf16, Target::amx, 64, two, 1).block_k, 512);
}

TEST(ForwardPlan, CopiesRowsThatAreNotContiguousAccumulators) {
  core::Problem p = problem_of(1, 4096, DType::fp32);
  EXPECT_FALSE(forward_plan(p, Target::avx2, 64, {}, 1).copy_k);
  p.k.row_stride = 512;
  EXPECT_TRUE(forward_plan(p, Target::avx2, 64, {}, 1).copy_k);
  EXPECT_FALSE(forward_plan(p, Target::avx2, 64, {}, 1).copy_v);
  p.q_length = 64;  // one tile: nobody reads the copy twice
  EXPECT_FALSE(forward_plan(p, Target::avx2, 64, {}, 1).copy_k);
  EXPECT_TRUE(forward_plan(problem_of(1, 64, DType::bf16), Target::avx2, 64, {}, 1).copy_v);
}

}  // namespace
}  // namespace tessera::cpu
