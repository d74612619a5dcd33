// Every vector instruction set that this CPU can execute, forced one by one, against the oracle: the best one
// is what all other tests use.
#include <gtest/gtest.h>

#include <string>

#include "cpu/target.h"
#include "reference/check.h"
#include "support/build.h"
#include "support/kernels.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using test::ForcedTarget;

using Parameters = std::tuple<DType, cpu::Target>;

class Targets : public testing::TestWithParam<Parameters> {};

TEST_P(Targets, PassTheFeatureMatrix) {
  const auto [dtype, target] = GetParam();
  const ForcedTarget forced(name(target));
  const int step = test::scaled(1, 30, "one case in `step` per target");
  int index = 0;
  for (const reference::CaseSpec& spec : reference::feature_matrix(dtype)) {
    if (index++ % step != 0) continue;
    const reference::Verdict verdict = reference::verify(spec, "cpu.flash2");
    EXPECT_TRUE(verdict.ok) << spec.name << ": " << verdict.message;
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Targets,
                         testing::Combine(testing::ValuesIn(test::kDTypes),
                                          testing::ValuesIn(cpu::available_targets())),
                         [](const testing::TestParamInfo<Parameters>& parameters) {
                           return std::string(name(std::get<0>(parameters.param))) + "_" +
                                  name(std::get<1>(parameters.param));
                         });

TEST(Target, APlanNamesTheOneThatIsUsed) {
  for (const cpu::Target target : cpu::available_targets()) {
    const ForcedTarget forced(name(target));
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      const Plan chosen = plan({}, Shapes{.q_length = 64, .k_length = 64, .dtype = DType::bf16}, Device::cpu(), direction);
      EXPECT_NE(chosen.details.find(std::string("instruction set ") + name(target)), std::string::npos)
          << chosen.details;
    }
  }
}

TEST(Target, AnUnknownOneIsRefusedByName) {
  const ForcedTarget forced("mmx");
  try {
    plan({}, Shapes{.q_length = 64, .k_length = 64});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(std::string(error.what()).find("TESSERA_TARGET is 'mmx'; on this CPU it must be one of: "), 0U)
        << error.what();
  }
}

}  // namespace
}  // namespace tessera
