// How backward cuts a problem into tasks: the keys of a sequence in the same way beside any other
// one, and within the memory that is planned.
#include "cpu/flash2/backward_plan.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace tessera::cpu {
namespace {

constexpr std::int64_t kLengths[] = {0,    1,    64,   511,  512,  513,  600,  1023, 1024,  1025,  2048,
                                     3000, 4095, 4096, 4097, 4160, 5000, 8191, 8192, 10000, 100000};

// Whatever the splits: one after the other, without gaps, each of whole chunks.
TEST(BackwardChunks, SplitsCoverASequenceInOrder) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t length : kLengths) {
      const KeyChunks chunks = key_chunks(length, causal);
      BackwardPlan plan;
      plan.causal = causal;
      for (std::int64_t splits = 1; splits <= 32; splits *= 2) {
        std::int64_t covered = 0;
        for (std::int64_t split = 0; split < splits; ++split) {
          const TaskKeys own = task_keys(plan, split, splits, length);
          EXPECT_EQ(own.range.begin, covered) << length << " keys, split " << split << " of " << splits;
          EXPECT_EQ(own.chunk_keys, chunks.keys);
          if (own.range.end < length) {
            EXPECT_EQ((own.range.end - covered) % chunks.keys, 0);
          }
          covered = own.range.end;
        }
        EXPECT_EQ(covered, length) << splits << " splits";
      }
    }
  }
}

// Beside a longer sequence, whose splits are planned for: no task has more keys or chunks than it
// has room for.
TEST(BackwardChunks, ShorterSequencesFitIntoTheMemoryOfLongerOnes) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t longest : kLengths) {
      core::Problem p;
      p.packed = true;
      p.k_length = longest;
      BackwardPlan plan;
      plan.causal = causal;
      for (plan.splits_per_head = 1; plan.splits_per_head <= key_chunks(longest, causal).count;
           plan.splits_per_head *= 2) {
        const TaskKeys room = largest_task(p, plan);
        for (const std::int64_t length : kLengths) {
          if (length > longest) continue;
          for (std::int64_t split = 0; split < plan.splits_per_head; ++split) {
            const TaskKeys own = task_keys(plan, split, plan.splits_per_head, length);
            EXPECT_LE(own.range.end - own.range.begin, room.range.end) << length << " beside " << longest;
            EXPECT_LE(own.chunks, room.chunks) << length << " beside " << longest;
          }
        }
      }
    }
  }
}

core::Problem problem_of(std::int64_t batch, std::int64_t kv_heads, std::int64_t length) {
  core::Problem p;
  p.dtype = DType::fp32;
  p.batch = batch;
  p.q_heads = 2 * kv_heads;
  p.kv_heads = kv_heads;
  p.q_length = p.k_length = length;
  p.qk_dim = p.v_dim = 64;
  p.k.row_stride = p.v.row_stride = 64;
  return p;
}

// Every split of every head is one task, and whole heads are tasks of their own.
TEST(BackwardPlan, TasksAreEverySplitOfEveryHeadOnce) {
  for (const std::int64_t heads : {0, 1, 3, 8, 13}) {
    for (const int workers : {1, 2, 5, 16}) {
      for (const std::int64_t length : {0, 100, 1000, 5000}) {
        const core::Problem p = problem_of(1, heads, length);
        const BackwardPlan plan = backward_plan(p, 64, {}, workers);
        std::set<std::pair<std::int64_t, std::int64_t>> seen;
        for (std::int64_t t = 0; t < task_count(plan, heads); ++t) {
          const BackwardTask task = task_of(plan, heads, t);
          EXPECT_EQ(task.splits, task.head < plan.unsplit_heads ? 1 : plan.splits_per_head);
          EXPECT_LT(task.split, task.splits);
          EXPECT_TRUE(seen.emplace(task.head, task.split).second);
        }
        EXPECT_EQ(static_cast<std::int64_t>(seen.size()),
                  plan.unsplit_heads + (heads - plan.unsplit_heads) * plan.splits_per_head);
      }
    }
  }
}

TEST(BackwardPlan, SplitsHeadsOnlyWhereWorkersWouldIdle) {
  const Tuning tuning;
  EXPECT_EQ(backward_plan(problem_of(2, 4, 4096), 64, tuning, 4).unsplit_heads, 8);
  EXPECT_EQ(backward_plan(problem_of(1, 1, 4096), 64, tuning, 1).unsplit_heads, 1);
  const BackwardPlan split = backward_plan(problem_of(1, 1, 4096), 64, tuning, 4);
  EXPECT_EQ(split.unsplit_heads, 0);
  EXPECT_EQ(split.splits_per_head, 8);                                              // two tasks per worker
  EXPECT_EQ(backward_plan(problem_of(1, 1, 256), 64, tuning, 4).unsplit_heads, 1);  // one chunk
}

// Under a causal mask the first tiles of queries do not see the last keys.
TEST(BackwardPlan, VisibleTilesFollowTheMask) {
  core::Problem p = problem_of(1, 1, 4096);
  p.right = 0;
  const BackwardPlan plan = backward_plan(p, 64, {}, 4);
  std::int64_t slots = 0;
  for (std::int64_t split = 0; split < plan.splits_per_head; ++split) {
    const core::Interval keys = task_keys(plan, split, plan.splits_per_head, p.k_length).range;
    const core::Interval tiles = visible_tiles(p, plan, split);
    EXPECT_EQ(tiles.begin, keys.begin / 64);
    EXPECT_EQ(tiles.end, 64);
    EXPECT_EQ(first_grad_q_slot(p, plan, split), slots - tiles.begin);
    slots += tiles.length();
  }
}

TEST(BackwardPlan, TakesTheForcedStep) {
  EXPECT_EQ(backward_plan(problem_of(1, 1, 64), 64, {}, 1).block_k, 128);
  EXPECT_EQ(backward_plan(problem_of(1, 1, 64), 64, {.forced_block_k = 40}, 1).block_k, 40);
}

}  // namespace
}  // namespace tessera::cpu
