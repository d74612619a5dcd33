// How forward cuts the keys of a sequence: by its own length, whatever the longest one is.
#include "cpu/flash2/forward_plan.h"

#include <gtest/gtest.h>

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
  plan.asked_keys = 40;
  EXPECT_EQ(plan.keys_per_step(1 << 20), 40);
}

}  // namespace
}  // namespace tessera::cpu
