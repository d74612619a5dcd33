#include "core/kernel.h"

#include <gtest/gtest.h>

namespace tessera::core {
namespace {

Problem problem() {
  Problem p;
  p.batch = p.q_heads = p.kv_heads = 1;
  p.q_length = p.k_length = 10;
  p.qk_dim = p.v_dim = 8;
  return p;
}

TEST(Features, EveryRequirementHasItsOwnFeature) {
  const Features plain = required(problem());
  auto adds = [&](auto change, Feature feature) {
    Problem p = problem();
    change(p);
    EXPECT_TRUE(required(p).contains(feature)) << names(feature).at(0);
    EXPECT_FALSE(plain.contains(feature)) << names(feature).at(0);
    EXPECT_EQ(names(required(p)).size(), names(plain).size() + 1) << names(feature).at(0);
  };
  adds([](Problem& p) { p.right = 0; }, Feature::causal);
  adds([](Problem& p) { p.left = 3; }, Feature::window);
  adds([](Problem& p) { p.right = 3; }, Feature::window);
  adds([](Problem& p) { p.packed = true; }, Feature::packed);
  adds([](Problem& p) { p.q_heads = 2; }, Feature::gqa);
  adds([](Problem& p) { p.v_dim = 4; }, Feature::value_dim);
  adds([](Problem& p) { p.has_bias = true; }, Feature::bias);
  adds([](Problem& p) { p.has_grad_bias = true; }, Feature::bias_gradient);
  adds([](Problem& p) { p.has_visible = true; }, Feature::visible);
  adds([](Problem& p) { p.softcap = 5; }, Feature::softcap);
  adds([](Problem& p) { p.dropout = true; }, Feature::dropout);
  adds([](Problem& p) { p.has_grad_lse = true; }, Feature::lse_gradient);
  adds([](Problem& p) { p.origin.column = 7; }, Feature::shard);
  const float slope = 1;
  adds([&](Problem& p) { p.alibi_slopes = &slope; }, Feature::alibi);
  const std::int64_t offsets[] = {0, 0};
  adds([&](Problem& p) { p.blocks.row_offsets = offsets; }, Feature::block_sparse);
}

struct First {
  int number = 0;
  const char* text = nullptr;
};
struct Second {
  int number = 0;
};

TEST(Decision, HoldsTheValueOfAnyKernel) {
  const Decision decision = First{7, "seven"};
  const Decision copy = decision;
  EXPECT_EQ(copy.as<First>().number, 7);
  EXPECT_STREQ(copy.as<First>().text, "seven");
}

TEST(Decision, OfAnotherKernelIsAnError) {
  const Decision decision = First{7, "seven"};
  EXPECT_THROW((void)decision.as<Second>(), std::logic_error);
  EXPECT_THROW((void)Decision().as<First>(), std::logic_error);
}

}  // namespace
}  // namespace tessera::core
