// How backward cuts the keys of a sequence: the same way beside any other one, and within the memory that was planned.
#include "cpu/flash2/backward_plan.h"

#include <gtest/gtest.h>

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

// Beside a longer sequence, whose splits are planned for: no task has more keys or chunks than it has room for.
TEST(BackwardChunks, ShorterSequencesFitIntoTheMemoryOfLongerOnes) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t longest : kLengths) {
      core::Problem p;
      p.packed = true;
      p.k_length = longest;
      BackwardPlan plan;
      plan.causal = causal;
      for (plan.splits = 1; plan.splits <= key_chunks(longest, causal).count; plan.splits *= 2) {
        const TaskKeys room = largest_task(p, plan);
        for (const std::int64_t length : kLengths) {
          if (length > longest) continue;
          for (std::int64_t split = 0; split < plan.splits; ++split) {
            const TaskKeys own = task_keys(plan, split, plan.splits, length);
            EXPECT_LE(own.range.end - own.range.begin, room.range.end) << length << " beside " << longest;
            EXPECT_LE(own.chunks, room.chunks) << length << " beside " << longest;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cpu
