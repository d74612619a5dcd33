// Selection is a pure function of a table and a problem: tested on tables of its own.
#include "registry/registry.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tessera/error.h"

namespace tessera::registry {
namespace {

using core::Problem;

Configuration no_configuration(const Problem&, int) { return {}; }
void no_run(const Problem&, const Configuration&, const Resources&) {}
bool too_long(const Problem& p, core::Reason reason) {
  return p.q_length > 100 && reason.give("at most 100 queries");
}

Kernel kernel(const char* name, Algorithm algorithm, int priority, Features features,
              bool (*limits)(const Problem&, core::Reason) = nullptr,
              Direction direction = Direction::forward, DeviceType device = DeviceType::cpu) {
  return {name, algorithm, direction, device, priority, features, limits, no_configuration, nullptr, no_run};
}

const std::vector<Kernel> kTable = {
    kernel("fast", Algorithm::flash2, 3, Features(Feature::fp32) | Feature::causal, too_long),
    kernel("gpu", Algorithm::flash3, 2, Features::all(), nullptr, Direction::forward, DeviceType::cuda),
    kernel("slow", Algorithm::standard, 1, Features::all()),
    kernel("slow", Algorithm::standard, 1, Features::all(), nullptr, Direction::backward),
};

Problem problem() {
  Problem p;
  p.batch = p.q_heads = p.kv_heads = 1;
  p.q_length = p.k_length = 10;
  p.qk_dim = p.v_dim = 8;
  return p;
}

std::string refusal(const Problem& p, std::string_view forced, ErrorCode code) {
  try {
    const Kernel& chosen = select(kTable, p, forced);
    ADD_FAILURE() << "chose " << chosen.name;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return {};
}

TEST(Registry, TakesTheHighestPriorityThatServes) {
  Problem p = problem();
  EXPECT_EQ(select(kTable, p, "").name, "fast");
  p.right = 0;
  EXPECT_EQ(select(kTable, p, "").name, "fast");
  p.softcap = 1;
  EXPECT_EQ(select(kTable, p, "").name, "slow");
  p = problem();
  p.q_length = 101;
  EXPECT_EQ(select(kTable, p, "").name, "slow");
  p = problem();
  p.algorithm = Algorithm::standard;
  EXPECT_EQ(select(kTable, p, "").name, "slow");
}

TEST(Registry, ForcedKernelIsTakenOrRefusedNeverReplaced) {
  Problem p = problem();
  EXPECT_EQ(select(kTable, p, "slow").name, "slow");
  p.softcap = 1;
  EXPECT_NE(refusal(p, "fast", ErrorCode::unsupported).find("fast: lacks softcap"), std::string::npos);
  const std::string unknown = refusal(p, "fsat", ErrorCode::invalid_argument);
  EXPECT_EQ(unknown, "TESSERA_KERNEL is 'fsat'; it must be one of: fast, gpu, slow");
}

TEST(Registry, AKernelYieldsUnlessAskedForByName) {
  std::vector<Kernel> table(std::begin(kTable), std::end(kTable));
  table.front().yields = [](const Problem&, core::Reason reason) {
    return reason.give("is for few queries");
  };
  const Problem p = problem();
  const Kernel& chosen = select(table, p, "");
  EXPECT_EQ(chosen.name, "slow");
  EXPECT_EQ(rejections(table, p, chosen, "").front().reason, "is for few queries");
  EXPECT_EQ(select(table, p, "fast").name, "fast");
}

TEST(Registry, UnsupportedSaysForEachKernelWhatIsMissing) {
  Problem p = problem();
  p.algorithm = Algorithm::flash3;
  p.dropout = true;
  p.kv_heads = 1;
  p.q_heads = 4;
  const std::string text = refusal(p, "", ErrorCode::unsupported);
  EXPECT_EQ(text,
            "no kernel serves this forward on cpu in fp32\n"
            "  fast: implements flash2, flash3 is asked for, lacks grouped heads, dropout\n"
            "  gpu: runs on CUDA devices, the data is on cpu\n"
            "  slow: implements standard, flash3 is asked for");
}

TEST(Registry, RejectionsCoverEveryOtherKernelOfTheDirection) {
  Problem p = problem();
  const auto rejected = rejections(kTable, p, select(kTable, p, ""), "");
  ASSERT_EQ(rejected.size(), 2U);
  EXPECT_EQ(rejected[0].reason, "runs on CUDA devices, the data is on cpu");
  EXPECT_EQ(rejected[1].reason, "serves it, but fast comes first");
}

TEST(Registry, EveryRequirementHasItsOwnFeature) {
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
  adds([](Problem& p) { p.softcap = 5; }, Feature::softcap);
  adds([](Problem& p) { p.dropout = true; }, Feature::dropout);
  adds([](Problem& p) { p.has_grad_lse = true; }, Feature::lse_gradient);
  adds([](Problem& p) { p.origin.column = 7; }, Feature::shard);
  const float slope = 1;
  adds([&](Problem& p) { p.alibi_slopes = &slope; }, Feature::alibi);
  const std::int64_t offsets[] = {0, 0};
  adds([&](Problem& p) { p.blocks.row_offsets = offsets; }, Feature::block_sparse);
}

// Rows of one name share the work by type: no type has two.
TEST(Registry, BuiltInTableIsSortedAndHasNoTwins) {
  const auto table = kernels();
  ASSERT_FALSE(table.empty());
  auto share_a_type = [](const Kernel& a, const Kernel& b) {
    for (const Feature type : {Feature::fp64, Feature::fp32, Feature::fp16, Feature::bf16}) {
      if (a.features.contains(type) && b.features.contains(type)) return true;
    }
    return false;
  };
  for (std::size_t i = 0; i < table.size(); ++i) {
    EXPECT_TRUE(i == 0 || table[i - 1].priority >= table[i].priority);
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(table[i].name == table[j].name && table[i].direction == table[j].direction &&
                   share_a_type(table[i], table[j]))
          << table[i].name;
    }
  }
}

}  // namespace
}  // namespace tessera::registry
