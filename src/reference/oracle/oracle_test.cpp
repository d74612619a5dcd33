// The oracle against results worked out by hand; finite differences are in
// tests/numerics/gradient_test.cpp.
#include "reference/oracle/oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/cases/case.h"
#include "reference/tolerance/check.h"
#include "reference/tolerance/low_precision.h"

namespace tessera::reference {
namespace {

// One query of 1 against keys 0 and ln 2 with values 3 and 6: probabilities 1/3 and 2/3.
struct ByHand {
  double q[1] = {1}, k[2] = {0, std::log(2.0)}, v[2] = {3, 6}, grad_out[1] = {1};
  Attention attention{.scale = 1};
  ForwardTensors forward{
      .q = tensor(q, {1, 1, 1, 1}), .k = tensor(k, {1, 2, 1, 1}), .v = tensor(v, {1, 2, 1, 1})};
  BackwardTensors backward{
      .q = forward.q, .k = forward.k, .v = forward.v, .grad_out = tensor(grad_out, {1, 1, 1, 1})};
};

TEST(Oracle, TwoKeys) {
  const ByHand problem;
  const Forward result = oracle_forward(problem.attention, problem.forward);
  EXPECT_DOUBLE_EQ(result.out[0], 5);
  EXPECT_DOUBLE_EQ(result.lse[0], std::log(3.0));
  // dS = P (v - 5) = (-2/3, 2/3); dQ = dS . k, dK = dS q, dV = P.
  const Gradients gradients = oracle_backward(problem.attention, problem.backward);
  EXPECT_DOUBLE_EQ(gradients.q[0], 2.0 / 3 * std::log(2.0));
  EXPECT_DOUBLE_EQ(gradients.k[0], -2.0 / 3);
  EXPECT_DOUBLE_EQ(gradients.k[1], 2.0 / 3);
  EXPECT_DOUBLE_EQ(gradients.v[0], 1.0 / 3);
  EXPECT_DOUBLE_EQ(gradients.v[1], 2.0 / 3);
}

TEST(Oracle, DefaultScaleAndSoftcapAndBias) {
  ByHand problem;
  problem.attention.scale = {};  // 1 / sqrt(1)
  EXPECT_DOUBLE_EQ(oracle_forward(problem.attention, problem.forward).out[0], 5);
  problem.attention.softcap = 0.5;
  const double capped = 0.5 * std::tanh(2 * std::log(2.0));
  EXPECT_DOUBLE_EQ(oracle_forward(problem.attention, problem.forward).lse[0], std::log(1 + std::exp(capped)));
  problem.attention.softcap = 0;
  double bias[2] = {std::log(2.0), 0};  // makes both scores equal
  problem.forward.bias = tensor(bias, {1, 1, 1, 2});
  EXPECT_DOUBLE_EQ(oracle_forward(problem.attention, problem.forward).out[0], 4.5);
}

TEST(Oracle, AlibiCountsFromTheDiagonal) {
  ByHand problem;
  const float slope = 0.5F;
  problem.attention.alibi.slopes = &slope;
  // Bottom right: the query meets key 1, key 0 is one step away.
  EXPECT_DOUBLE_EQ(oracle_forward(problem.attention, problem.forward).lse[0], std::log(std::exp(-0.5) + 2));
  problem.attention.mask.align = Align::top_left;
  EXPECT_DOUBLE_EQ(oracle_forward(problem.attention, problem.forward).lse[0],
                   std::log(1 + 2 * std::exp(-0.5)));
}

TEST(Oracle, DiagonalsAndOrigins) {
  ByHand problem;
  problem.attention.mask = causal(Align::top_left);
  EXPECT_EQ(oracle_forward(problem.attention, problem.forward).out[0], 3);
  problem.attention.mask = causal();
  EXPECT_EQ(oracle_forward(problem.attention, problem.forward).out[0], 5);
  problem.attention.mask = causal_at(-1);
  const Forward nothing = oracle_forward(problem.attention, problem.forward);
  EXPECT_EQ(nothing.out[0], 0);
  EXPECT_EQ(nothing.lse[0], -std::numeric_limits<double>::infinity());
  // Query 8 of the whole against keys 7 and 8: with d = 0 it sees both, with d = -1 the first.
  problem.attention.origin = {.row = 8, .column = 7};
  problem.attention.mask = causal_at(0);
  EXPECT_EQ(oracle_forward(problem.attention, problem.forward).out[0], 5);
  problem.attention.mask = causal_at(-1);
  EXPECT_EQ(oracle_forward(problem.attention, problem.forward).out[0], 3);
}

TEST(Oracle, DropoutLeavesTheDenominatorAlone) {
  ByHand problem;
  problem.attention.dropout.probability = 0.5;
  bool seen[4] = {};
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    problem.attention.dropout.seed = seed;
    const Forward result = oracle_forward(problem.attention, problem.forward);
    EXPECT_DOUBLE_EQ(result.lse[0], std::log(3.0));
    // Kept values count twice: 2 * (1/3 * 3) and 2 * (2/3 * 6), each there or not.
    const double possible[] = {0, 2, 8, 10};
    int match = 0;
    while (match < 4 && std::abs(result.out[0] - possible[match]) > 1e-12) ++match;
    ASSERT_LT(match, 4) << result.out[0];
    seen[match] = true;
  }
  for (const bool each : seen) EXPECT_TRUE(each);
}

TEST(Oracle, SampledRowsAreTheSameRows) {
  for (const bool packed : {false, true}) {
    const Case problem({.dtype = DType::bf16,
                        .batch = 3,
                        .q_heads = 4,
                        .kv_heads = 2,
                        .right = 0,
                        .packed = packed,
                        .dropout = 0.2});
    const Forward all = oracle_forward(problem.attention, problem.forward);
    const Lengths& lengths = problem.attention.mask.lengths;
    std::vector<RowIndex> rows;
    std::vector<std::int64_t> batches, tokens;
    for (std::int64_t s = 0; s < 3; ++s) {
      const std::int64_t length = packed ? lengths.q[s + 1] - lengths.q[s] : 65;
      if (length == 0) continue;
      rows.push_back({.sequence = s, .head = s, .row = length / 2});
      batches.push_back(packed ? 0 : s);
      tokens.push_back((packed ? lengths.q[s] : 0) + length / 2);
    }
    const Forward some = forward_rows(problem.attention, problem.forward, rows);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::int64_t head = rows[r].head;
      EXPECT_EQ(some.lse[r], all.lse[dense_index(problem.forward.lse.shape, batches[r], head, tokens[r], 0)]);
      for (std::int64_t d = 0; d < 32; ++d) {
        EXPECT_EQ(some.out[r * 32 + d],
                  all.out[dense_index(problem.forward.out.shape, batches[r], tokens[r], head, d)]);
      }
    }
  }
}

// The model errs as its type does: more with every lost digit, and not at all where nothing is
// rounded.
TEST(Model, ErrsAsItsTypeDoes) {
  double before = 0;
  for (const DType dtype : {DType::fp64, DType::fp32, DType::fp16, DType::bf16}) {
    Case problem({.dtype = dtype, .right = 0});
    const Forward exact = oracle_forward(problem.attention, problem.forward);
    const Forward model = model_forward(problem.attention, problem.forward);
    double largest = 0;
    for (std::size_t e = 0; e < exact.out.size(); ++e) {
      largest = std::max(largest, std::abs(exact.out[e] - model.out[e]));
    }
    EXPECT_LT(largest, 8 * epsilon(dtype)) << name(dtype);
    EXPECT_GE(largest, 3 * before) << name(dtype);
    before = largest;
  }
}

TEST(Elements, RoundOnceToNearest) {
  // Just above the middle of two fp16 values, by less than fp32 can tell: rounding twice would fall
  // back.
  EXPECT_EQ(round_to(DType::fp16, 1 + 0x1p-11 + 0x1p-40), 1 + 0x1p-10);
  EXPECT_EQ(round_to(DType::fp16, 1 + 0x1p-11), 1);
  EXPECT_EQ(round_to(DType::fp16, -1 - 0x1p-11 - 0x1p-40), -1 - 0x1p-10);
  EXPECT_EQ(round_to(DType::bf16, 1 + 0x1p-8 + 0x1p-40), 1 + 0x1p-7);
  EXPECT_EQ(round_to(DType::bf16, 1 + 0x1p-8), 1);
  EXPECT_EQ(round_to(DType::fp16, 1e6), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(round_to(DType::bf16, std::nan(""))));
}

TEST(Cases, DependOnTheirSpecAlone) {
  const CaseSpec spec{.dtype = DType::fp16, .batch = 4, .packed = true, .bias = BiasKind::full};
  const Case first(spec), second(spec);
  EXPECT_EQ(values(first.forward.q), values(second.forward.q));
  EXPECT_EQ(values(first.forward.bias), values(second.forward.bias));
  EXPECT_EQ(first.forward.q.shape, second.forward.q.shape);
  for (const double x : values(first.forward.out)) EXPECT_TRUE(std::isnan(x));
}

}  // namespace
}  // namespace tessera::reference
