#include "cpu/baselines/flash1/plan.h"

#include <gtest/gtest.h>

namespace tessera::cpu {
namespace {

// The paper's rule: K and V (backward: their gradients too) take half of the cache; at least one
// step, at most 512 keys.
TEST(Flash1Plan, KeysThatStayFitHalfOfTheCache) {
  core::Problem p;
  p.dtype = DType::fp32;
  p.qk_dim = p.v_dim = 128;
  EXPECT_EQ(flash1_forward_plan(p, 64, 1 << 20).block_k, 512);
  EXPECT_EQ(flash1_forward_plan(p, 64, 256 << 10).block_k, 128);
  EXPECT_EQ(flash1_forward_plan(p, 64, 1 << 10).block_k, 64);
  EXPECT_EQ(flash1_backward_plan(p, 64, 1 << 20).block_k, 256);
  EXPECT_EQ(flash1_backward_plan(p, 64, 1 << 10).block_k, 128);
  EXPECT_EQ(flash1_backward_plan(p, 64, 1 << 20).step_keys, 128);
}

}  // namespace
}  // namespace tessera::cpu
