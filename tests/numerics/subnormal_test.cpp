// Zeros of both signs and subnormal numbers: a -0 is a 0, and numbers below the
// smallest normal one count, as far as the type holds them.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cpu/machine/target.h"
#include "reference/tolerance/check.h"
#include "support/kernels.h"
#include "support/tensors.h"

namespace tessera::test {
namespace {

using reference::Case;
using reference::CaseSpec;
using reference::values;

class SubnormalTest : public testing::TestWithParam<TypeAndKernel> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  const std::string& kernel() const { return std::get<1>(GetParam()); }
};

// Every third element of each input is a zero of the given sign.
Case with_zeros(const CaseSpec& spec, double zero) {
  Case problem(spec);
  for (const Tensor& t :
       {problem.forward.q, problem.forward.k, problem.forward.v, problem.backward.grad_out}) {
    for (std::int64_t e = 0; e < reference::count(t.shape); e += 3) reference::write(t, 0, 0, 0, e, zero);
  }
  return problem;
}

TEST_P(SubnormalTest, TheSignOfAZeroDoesNotMatter) {
  for (const std::int64_t q_length : {3, 40}) {
    const CaseSpec spec{.dtype = dtype(), .q_length = q_length, .k_length = 70, .right = 0, .grad_lse = true};
    Case positive = with_zeros(spec, 0.0), negative = with_zeros(spec, -0.0);
    run(positive, kernel());
    run(negative, kernel());
    for (const auto& [a, b] : {std::pair{positive.forward.out, negative.forward.out},
                               {positive.forward.lse, negative.forward.lse},
                               {positive.backward.grad_q, negative.backward.grad_q},
                               {positive.backward.grad_k, negative.backward.grad_k},
                               {positive.backward.grad_v, negative.backward.grad_v}}) {
      EXPECT_EQ(values(a), values(b));  // as numbers: 0 == -0
    }
  }
}

// The smallest normal number of a type, and the distance between its subnormal ones.
struct Smallest {
  double normal, step;
};

Smallest smallest(DType dtype) {
  switch (dtype) {
    case DType::fp64: return {0x1p-1022, 0x1p-1074};
    case DType::fp32: return {0x1p-126, 0x1p-149};
    case DType::fp16: return {0x1p-14, 0x1p-24};
    case DType::bf16:
    case DType::boolean: break;
  }
  return {0x1p-126, 0x1p-133};
}

// Uniform weights, so that each result is a mean of subnormal numbers: of v in the
// output, of grad_out in its gradient. Each of the few numbers added may be rounded
// once. Instructions that multiply bf16 take subnormal numbers as 0.
TEST_P(SubnormalTest, SubnormalNumbersCount) {
  constexpr std::int64_t kRows = 8;
  const auto [normal, step] = smallest(dtype());
  Case problem(
      {.dtype = dtype(), .batch = 1, .q_length = kRows, .k_length = kRows, .q_heads = 1, .kv_heads = 1});
  for (std::int64_t e = 0; e < reference::count(problem.forward.q.shape); ++e) {
    reference::write(problem.forward.q, 0, 0, 0, e, e % 2 == 0 ? 3 * step : 0.0);  // scores of 0
    reference::write(problem.forward.v, 0, 0, 0, e, normal * static_cast<double>(e % 61) / 64);
    reference::write(problem.backward.grad_out, 0, 0, 0, e, -normal * static_cast<double>(e % 59) / 64);
  }
  run(problem, kernel());
  const cpu::Target target = target_for_type(cpu::active_target(), dtype());
  const bool flushes = target == cpu::Target::avx512_bf16 || target == cpu::Target::amx;
  const double tolerance = flushes ? normal : 2 * kRows * step;
  auto expect_means = [&](const Tensor& result, const Tensor& of) {
    double largest = 0;
    for (std::int64_t d = 0; d < 32; ++d) {
      double mean = 0;
      for (std::int64_t i = 0; i < kRows; ++i) mean += reference::read(of, 0, i, 0, d) / kRows;
      largest = std::max(largest, std::abs(mean));
      for (std::int64_t i = 0; i < kRows; ++i) {
        EXPECT_NEAR(reference::read(result, 0, i, 0, d) / step, mean / step, tolerance / step)
            << "column " << d;
      }
    }
    EXPECT_GT(largest, 4 * kRows * step);  // else zeros would pass
  };
  expect_means(problem.forward.out, problem.forward.v);
  expect_means(problem.backward.grad_v, problem.backward.grad_out);
}

INSTANTIATE_TEST_SUITE_P(Cpu, SubnormalTest,
                         testing::Combine(testing::ValuesIn(kDTypes), testing::ValuesIn(cpu_kernels())),
                         test_name);

}  // namespace
}  // namespace tessera::test
