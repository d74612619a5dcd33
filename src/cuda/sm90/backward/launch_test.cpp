// Which instance of cuda.hopper's backward runs what: choose_instance is a pure function and
// requires no GPU.
#include "cuda/sm90/backward/launch.h"

#include <gtest/gtest.h>

namespace tessera::cuda {
namespace {

using sm90::backward::choose_instance;
using sm90::backward::Config;
using sm90::backward::Instance;

core::Problem problem(std::int64_t qk_dim, std::int64_t v_dim, bool dropout) {
  core::Problem p;
  p.direction = Direction::backward;
  p.qk_dim = qk_dim, p.v_dim = v_dim;
  p.dropout = dropout, p.dropout_threshold = dropout ? 1 << 14 : 0;
  return p;
}

TEST(HopperBackwardChoice, TheNarrowestInstanceThatHolds) {
  for (const auto instances : {hopper_backward_bf16(), hopper_backward_fp16()}) {
    for (std::int64_t qk_dim = 1; qk_dim <= 140; ++qk_dim) {
      for (const std::int64_t v_dim : {1, 64, 65, 128, 129}) {
        const std::int64_t dim = std::max(qk_dim, v_dim);
        for (const bool dropout : {false, true}) {
          const Instance* chosen = choose_instance(instances, problem(qk_dim, v_dim, dropout));
          ASSERT_EQ(chosen != nullptr, dim <= (dropout ? 64 : 128)) << qk_dim << ", " << v_dim;
          if (chosen == nullptr) continue;
          ASSERT_EQ(chosen->config.head_dim, dim <= 64 ? 64 : 128);
          ASSERT_EQ(chosen->config.dropout, dropout);
        }
      }
    }
  }
}

// A probability that nothing is dropped with takes the instance without.
TEST(HopperBackwardChoice, DropoutThatDropsNothing) {
  core::Problem p = problem(128, 128, true);
  EXPECT_EQ(choose_instance(hopper_backward_bf16(), p), nullptr);
  p.dropout_threshold = 0;
  const Instance* chosen = choose_instance(hopper_backward_bf16(), p);
  ASSERT_NE(chosen, nullptr);
  EXPECT_FALSE(chosen->config.dropout);
}

TEST(HopperBackwardChoice, InstancesAreOfTheirTypeAndDoNotGiveUp) {
  auto expect_all = [](std::span<const Instance> instances, ptx::Half16 type) {
    EXPECT_FALSE(instances.empty());
    for (const Instance& instance : instances) {
      EXPECT_EQ(instance.kernel != nullptr, TESSERA_HAVE_CUDA != 0);
      EXPECT_EQ(instance.config.type, type);
      EXPECT_FALSE(instance.config.bounded_waits);
      EXPECT_TRUE(valid(instance.config));
    }
  };
  expect_all(hopper_backward_bf16(), ptx::Half16::bf16);
  expect_all(hopper_backward_fp16(), ptx::Half16::fp16);
}

TEST(HopperBackwardConfig, WhatCannotRunIsNotValid) {
  constexpr Config kFits;
  EXPECT_TRUE(valid(kFits));
  auto changed = [&](auto&& change) {
    Config c = kFits;
    change(c);
    return valid(c);
  };
  EXPECT_FALSE(changed([](Config& c) { c.registers = 248; })) << "more registers than there are";
  EXPECT_FALSE(changed([](Config& c) { c.registers = 236; })) << "not a multiple of 8";
  EXPECT_FALSE(changed([](Config& c) { c.block_q = 64; })) << "half of dQ";
  EXPECT_FALSE(changed([](Config& c) { c.head_dim = 128; })) << "twice dQ, and too much memory";
  EXPECT_FALSE(changed([](Config& c) { c.head_dim = 256, c.block_q = 32; })) << "too much memory";
}

}  // namespace
}  // namespace tessera::cuda
