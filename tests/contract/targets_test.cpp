// Every vector instruction set that this CPU can execute, forced one by one,
// against the oracle: the best one is what all other tests use.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "cpu/machine/target.h"
#include "reference/tolerance/check.h"
#include "support/build.h"
#include "support/kernels.h"
#include "support/tensors.h"
#include "tessera/error.h"

namespace tessera {
namespace {

using test::ForcedTarget;

using Parameters = std::tuple<DType, cpu::Target, std::string>;

class Targets : public testing::TestWithParam<Parameters> {};

// Rows of a bias whose keys are all hidden.
void hide_a_few_rows(const Tensor& bias) {
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{31}, bias.shape[2] - 1}) {
    for (std::int64_t h = 0; h < bias.shape[1]; ++h) {
      for (std::int64_t j = 0; j < bias.shape[3]; ++j) {
        reference::write(bias, 0, h, row, j, -std::numeric_limits<double>::infinity());
      }
    }
  }
}

TEST_P(Targets, PassTheFeatureMatrix) {
  const auto& [dtype, target, kernel] = GetParam();
  const cpu::Target used = target_for_type(target, dtype);
  if (used != target) GTEST_SKIP() << "runs as " << name(used);
  const int step = test::scaled(1, 30, "one case in `step` per target", 60);
  if (step == 1 && used == target_for_type(cpu::available_targets().front(), dtype))
    GTEST_SKIP() << "contract_test runs every case on the best instruction set";
  const ForcedTarget forced(name(target));
  if (const std::string why = test::obstacle(kernel); !why.empty()) GTEST_SKIP() << why;
  int index = step - 7 * static_cast<int>(dtype) % step;  // other cases for every type
  for (const reference::CaseSpec& spec : reference::feature_matrix(dtype)) {
    if (index++ % step != 0) continue;
    const reference::Verdict verdict = reference::verify(spec, kernel);
    EXPECT_TRUE(verdict.ok) << spec.name << ": " << verdict.message;
  }
}

// Workspace comes as it is: whatever lies in it, NaN of every type among it, a
// result has the same bits.
TEST_P(Targets, IgnoreWhatLiesInTheWorkspace) {
  const auto& [dtype, target, kernel] = GetParam();
  const cpu::Target used = target_for_type(target, dtype);
  if (used != target) GTEST_SKIP() << "runs as " << name(used);
  const ForcedTarget forced(name(target));
  if (const std::string why = test::obstacle(kernel); !why.empty()) GTEST_SKIP() << why;
  const reference::ForceKernel force(kernel);
  // Several chunks of keys, steps and tiles of queries that are full, cut by a mask and at the end.
  const int rows = test::scaled(600, 100, "queries", 40);
  for (const int dim : {33, 128}) {
    for (const int right : {-1, 0, 5}) {
      reference::CaseSpec spec{.dtype = dtype,
                               .batch = 1,
                               .q_length = rows,
                               .k_length = 600,
                               .q_heads = 2,
                               .kv_heads = 1,
                               .qk_dim = dim,
                               .v_dim = dim,
                               .right = right};
      const bool features = right == 5 && dim == 33;
      if (right == 5 && !features) continue;
      if (features) spec.bias = reference::BiasKind::per_head, spec.softcap = 3, spec.dropout = 0.2;
      reference::Case zeros(spec), ones(spec);
      for (const reference::Case* problem : {&zeros, &ones}) {
        if (features) hide_a_few_rows(problem->forward.bias);
      }
      auto call = [&](reference::Case& problem, int byte) {
        const std::size_t bytes = std::max(plan(problem.attention, problem.forward).workspace_bytes,
                                           plan(problem.attention, problem.backward).workspace_bytes);
        const std::unique_ptr<void, decltype(&std::free)> memory(
            std::aligned_alloc(256, (bytes + 255) / 256 * 256), std::free);
        const Execution execution{.workspace = {memory.get(), bytes}};
        std::memset(memory.get(), byte, bytes);
        forward(problem.attention, problem.forward, execution);
        std::memset(memory.get(), byte, bytes);
        backward(problem.attention, problem.backward, execution);
      };
      call(zeros, 0x00);
      call(ones, 0xFF);
      EXPECT_EQ(test::first_difference(zeros.forward, ones.forward), "") << "head_dim " << dim;
      EXPECT_EQ(test::first_difference(zeros.backward, ones.backward), "") << "head_dim " << dim;
    }
  }
}

// Like "bf16_avx2_flash1".
std::string parameters_name(const testing::TestParamInfo<Parameters>& info) {
  const auto& [dtype, target, kernel] = info.param;
  return std::string(name(dtype)) + "_" + name(target) + "_" + kernel.substr(kernel.find('.') + 1);
}

INSTANTIATE_TEST_SUITE_P(Every, Targets,
                         testing::Combine(testing::ValuesIn(test::kDTypes),
                                          testing::ValuesIn(cpu::available_targets()),
                                          testing::ValuesIn(test::cpu_kernels())),
                         parameters_name);

TEST(Target, APlanNamesTheOneThatIsUsed) {
  for (const cpu::Target target : cpu::available_targets()) {
    const ForcedTarget forced(name(target));
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      for (const KernelInfo& kernel : kernels()) {
        if (kernel.device != DeviceType::cpu || kernel.direction != direction) continue;
        if (!test::obstacle(kernel.name).empty()) continue;
        // Only flash2 has instructions of its own for bf16.
        const cpu::Target used =
            kernel.algorithm == Algorithm::flash2 ? target : target_for_type(target, DType::fp32);
        const Shapes shapes{.q_length = 64, .k_length = 64, .dtype = DType::bf16};
        const Plan chosen = plan({.algorithm = kernel.algorithm}, shapes, Device::cpu(), direction);
        EXPECT_NE(chosen.details.find(std::string("instruction set ") + name(used)), std::string::npos)
            << chosen.kernel << ": " << chosen.details;
      }
    }
  }
}

TEST(Target, AnUnknownOneIsRefusedByName) {
  const ForcedTarget forced("mmx");
  try {
    (void)plan({}, Shapes{.q_length = 64, .k_length = 64});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(std::string(error.what()).find("TESSERA_TARGET is 'mmx'; on this CPU it must be one of: "), 0U)
        << error.what();
  }
}

}  // namespace
}  // namespace tessera
