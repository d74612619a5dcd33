#include "lab/commands/options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lab/problem/operation.h"
#include "lab/problem/tensors.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

TEST(Options, DefaultsAreOneProblem) {
  const std::vector<Problem> problems = parse_problems({});
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(to_string(problems[0]), "batch 1, seq 1024, heads 8, dim 64, fp32, full");
  EXPECT_TRUE(parse_algorithms({}).empty());
  EXPECT_EQ(problems[0].direction, Pass::forward);
  EXPECT_EQ(problems[0].device, Device::cpu());
}

TEST(Options, ListsMultiply) {
  ProblemOptions options;
  options.batch = {"1,2"};
  options.seq = {"64..256"};
  options.causal = {"no,yes"};
  options.window = {"none", "16,0"};
  options.dtype = {"bf16"};
  options.algorithm = {"standard", "flash2,standard"};
  options.direction = {"backward"};
  options.device = "cuda:1";
  const std::vector<Problem> problems = parse_problems(options);
  EXPECT_EQ(problems.size(), 2U * 3 * 2 * 2);
  EXPECT_EQ(problems.front().dtype, DType::bf16);
  EXPECT_EQ(to_string(problems.back()), "batch 2, seq 256, heads 8, dim 64, bf16, causal+window:16,0");
  EXPECT_EQ(parse_algorithms(options), (std::vector<Algorithm>{Algorithm::standard, Algorithm::flash2}));
  EXPECT_EQ(problems.back().direction, Pass::backward);
  EXPECT_EQ(problems.back().device, Device::cuda(1));
}

TEST(Problem, TextNamesWhatIsNotTheDefault) {
  Problem problem;
  problem.seq_k = 2048;
  problem.kv_heads = 2;
  problem.v_dim = 32;
  problem.causal = true;
  problem.align = Align::top_left;
  problem.block_mask = {"local", {2}};
  problem.block_size = 64;
  problem.visible = problem.bias = problem.alibi = true;
  problem.softcap = 30;
  problem.dropout = 0.1;
  EXPECT_EQ(to_string(problem),
            "batch 1, seq 1024 x 2048, heads 8 (kv 2), dim 64 (v 32), fp32, "
            "causal+top_left+local:2/64, boolean mask, bias, alibi, softcap 30, dropout 0.1");
}

TEST(Operation, BecomesTheLibrarysDescription) {
  Problem problem;
  problem.seq = 96;
  problem.seq_k = 128;
  problem.kv_heads = 4;
  problem.causal = true;
  problem.window = {31, -1};
  problem.block_mask = {"local", {1}};
  problem.block_size = 32;
  problem.alibi = true;
  problem.softcap = 5;
  problem.dropout = 0.25;
  const Operation operation(problem);
  const Attention attention = operation.attention(Algorithm::flash2);
  EXPECT_EQ(attention.mask.left, 31);
  EXPECT_EQ(attention.mask.right, 0);
  EXPECT_EQ(attention.mask.blocks.q_blocks(), 3);
  EXPECT_EQ(attention.mask.blocks.k_blocks(), 4);
  EXPECT_EQ(attention.softcap, 5);
  EXPECT_EQ(attention.dropout.probability, 0.25);
  EXPECT_EQ(attention.algorithm, Algorithm::flash2);
  ASSERT_NE(attention.alibi.slopes, nullptr);
  EXPECT_FLOAT_EQ(attention.alibi.slopes[0], 0.5F);
  EXPECT_EQ(operation.shapes().kv_heads, 4);
  EXPECT_EQ(operation.shapes().k_length, 128);
}

TEST(Operation, RefusesWhatCannotBe) {
  Problem problem;
  problem.kv_heads = 3;
  EXPECT_THROW(Operation{problem}, UsageError);
  problem = {};
  problem.block_mask = {"strided", {0}};
  EXPECT_THROW(Operation{problem}, UsageError);
  problem = {};
  problem.batch = problem.seq = std::int64_t{1} << 40;
  EXPECT_THROW(Operation{problem}, UsageError);
}

TEST(Tensors, NoMemoryBeforeAllocateAndSeededDataAfter) {
  Problem problem;
  problem.seq = 50;
  problem.bias = true;
  const Operation operation(problem);
  Tensors one(operation.shapes(), Direction::backward, Device::cpu());
  const std::size_t tokens = 50 * 8 * 64 * sizeof(float);
  EXPECT_EQ(one.bytes(), 8 * tokens + 2 * 50 * 50 * sizeof(float) + 50 * 8 * sizeof(float));
  EXPECT_EQ(one.backward().q.data, nullptr);
  EXPECT_TRUE(one.backward().grad_bias.given());

  Tensors two(operation.shapes(), Direction::backward, Device::cpu());
  one.allocate(7);
  two.allocate(7);
  const auto* a = static_cast<const float*>(one.forward().q.data);
  const auto* b = static_cast<const float*>(two.forward().q.data);
  const auto* k = static_cast<const float*>(one.forward().k.data);
  double sum = 0, squares = 0, product = 0;
  const int count = 50 * 8 * 64;
  for (int i = 0; i < count; ++i) {
    ASSERT_EQ(a[i], b[i]);
    sum += a[i];
    squares += a[i] * a[i];
    product += a[i] * k[i];
  }
  EXPECT_NEAR(sum / count, 0, 0.02);
  EXPECT_NEAR(squares / count, 1, 0.02);
  EXPECT_NEAR(product / count, 0, 0.02) << "q and k are independent";
}

}  // namespace
}  // namespace tessera::lab
