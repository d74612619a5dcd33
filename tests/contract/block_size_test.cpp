// TESSERA_BLOCK_K: keys per step, whatever they are, change neither the result nor the contract.
#include <gtest/gtest.h>

#include <string>

#include "core/base/environment.h"
#include "cpu/machine/target.h"
#include "reference/tolerance/check.h"
#include "support/build.h"
#include "support/kernels.h"
#include "tessera/error.h"

namespace tessera {
namespace {

struct ForcedBlock : core::EnvironmentOverride {
  explicit ForcedBlock(const std::string& keys) : EnvironmentOverride(&core::Environment::block_k, keys) {}
};

class BlockSize : public testing::TestWithParam<DType> {};

TEST_P(BlockSize, AnyNumberOfKeysPerStepKeepsTheContract) {
  const int step = test::scaled(6, 40, "one case in `step` per size");
  for (const int keys : {1, 2, 15, 64, 100, 8192}) {
    const ForcedBlock forced(std::to_string(keys));
    int index = 0;
    for (const reference::CaseSpec& spec : reference::feature_matrix(GetParam())) {
      if (index++ % step != 0) continue;
      const reference::Verdict verdict = reference::verify(spec, "cpu.flash2");
      EXPECT_TRUE(verdict.ok) << keys << " keys per step, " << spec.name << ": " << verdict.message;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, BlockSize, testing::ValuesIn(test::kDTypes),
                         [](const testing::TestParamInfo<DType>& dtype) { return name(dtype.param); });

TEST(BlockSize, APlanSaysWhatIsUsed) {
  if (cpu::active_target() == cpu::Target::portable) GTEST_SKIP() << "the portable kernel has fixed blocks";
  const ForcedBlock forced("48");
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    EXPECT_EQ(plan({}, Shapes{.q_length = 640, .k_length = 640}, Device::cpu(), direction).block_k, 48);
  }
}

TEST(BlockSize, WhatIsNoNumberOfKeysIsRefused) {
  for (const char* value : {"", "0", "-5", "8193", "12x", "many"}) {
    const ForcedBlock forced(value);
    try {
      (void)plan({}, Shapes{.q_length = 64, .k_length = 64});
      FAIL() << "accepted '" << value << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_EQ(std::string(error.what()),
                std::string("TESSERA_BLOCK_K is '") + value + "'; it must be a number of keys, 1 to 8192");
    }
  }
}

}  // namespace
}  // namespace tessera
