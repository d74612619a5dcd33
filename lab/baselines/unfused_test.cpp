#include <gtest/gtest.h>

#include <cmath>

#include "cpu/baselines/standard/blas.h"
#include "lab/baselines/baseline.h"
#include "lab/measure/machine/counting_allocator.h"
#include "lab/measure/measure.h"
#include "lab/terminal/errors.h"
#include "tessera/attention.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

// Masked, with dropout, of lengths that fill no panel.
Problem small_problem() {
  Problem problem{
      .batch = 2, .seq = 70, .seq_k = 90, .heads = 4, .kv_heads = 2, .dim = 24, .v_dim = 16, .causal = true};
  problem.dropout = 0.25;
  return problem;
}

TEST(Unfused, IsExact) {
  if (!cpu::blas_missing().empty()) GTEST_SKIP() << cpu::blas_missing();
  const MeasureOptions options{
      .repetitions = {.repetitions = 1}, .memory_budget = std::size_t{1} << 30, .check_rows = 200};
  const auto rows = measure(small_problem(), {{.algorithm = Algorithm::standard, .baseline = "unfused"}},
                            options, [](double) { return true; });
  ASSERT_EQ(rows->front().status, Status::ok) << rows->front().reason;
  EXPECT_LT(rows->front().error->largest, 1e-5);
  EXPECT_EQ(rows->front().peak_extra_bytes, rows->front().plan->workspace_bytes);
}

// A step leaves the output alone, except the last, which needs what the others left.
TEST(Unfused, AStepDoesItsPartAlone) {
  if (!cpu::blas_missing().empty()) GTEST_SKIP() << cpu::blas_missing();
  const Operation operation(small_problem());
  Tensors tensors(operation.shapes(), Direction::forward, Device::cpu());
  tensors.allocate(1);
  for (const std::string stage : kStages) {
    CountingAllocator allocator(std::size_t{1} << 30);
    const Execution execution{.allocator = &allocator};
    const auto baseline = make_baseline("unfused", stage);
    baseline->run(operation, tensors, Direction::forward, execution);
    auto* out = static_cast<float*>(tensors.forward().out.data);
    const float exact = out[0];
    out[0] = 7;
    baseline->run(operation, tensors, Direction::forward, execution);
    EXPECT_EQ(out[0], stage == kStages[4] ? exact : 7) << stage;
  }
}

TEST(Unfused, RefusesWhatItDoesNotSupport) {
  EXPECT_THROW(make_baseline("unfused", "matmul"), UsageError);
  Problem problem = small_problem();
  problem.direction = Pass::backward;
  const MeasureOptions options{.memory_budget = std::size_t{1} << 30};
  const auto rows = measure(problem, {{.algorithm = Algorithm::standard, .baseline = "unfused"}}, options,
                            [](double) { return true; });
  EXPECT_EQ(rows->front().status, Status::unsupported);
  EXPECT_NE(rows->front().reason.find("has no backward"), std::string::npos) << rows->front().reason;
}

}  // namespace
}  // namespace tessera::lab
