#include "lab/commands/options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lab/problem/workload.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

TEST(Sweep, DefaultsAreOnePoint) {
  const Sweep sweep = parse_sweep({});
  ASSERT_EQ(sweep.points.size(), 1U);
  EXPECT_EQ(to_string(sweep.points[0]), "batch 1, seq 1024, heads 8, dim 64, fp32, full");
  EXPECT_TRUE(sweep.algorithms.empty());
  EXPECT_EQ(sweep.directions, (std::vector<Direction>{Direction::forward}));
  EXPECT_EQ(sweep.device, Device::cpu());
}

TEST(Sweep, ListsMultiply) {
  ProblemOptions options;
  options.batch = {"1,2"};
  options.seq = {"64..256"};
  options.causal = {"no,yes"};
  options.window = {"none", "16,0"};
  options.dtype = {"bf16"};
  options.algorithm = {"standard", "flash2,standard"};
  options.direction = {"backward"};
  options.device = "cuda:1";
  const Sweep sweep = parse_sweep(options);
  EXPECT_EQ(sweep.points.size(), 2U * 3 * 2 * 2);
  EXPECT_EQ(sweep.points.front().dtype, DType::bf16);
  EXPECT_EQ(to_string(sweep.points.back()), "batch 2, seq 256, heads 8, dim 64, bf16, causal+window:16,0");
  EXPECT_EQ(sweep.algorithms, (std::vector<Algorithm>{Algorithm::standard, Algorithm::flash2}));
  EXPECT_EQ(sweep.directions, (std::vector<Direction>{Direction::backward}));
  EXPECT_EQ(sweep.device, Device::cuda(1));
}

TEST(Point, TextNamesWhatIsNotTheDefault) {
  Point point;
  point.seq_k = 2048;
  point.kv_heads = 2;
  point.v_dim = 32;
  point.causal = true;
  point.align = Align::top_left;
  point.block_mask = {"local", {2}};
  point.block_size = 64;
  point.bias = point.alibi = true;
  point.softcap = 30;
  point.dropout = 0.1;
  EXPECT_EQ(to_string(point),
            "batch 1, seq 1024 x 2048, heads 8 (kv 2), dim 64 (v 32), fp32, "
            "causal+top_left+local:2/64, bias, alibi, softcap 30, dropout 0.1");
}

TEST(Workload, BecomesTheLibrarysDescription) {
  Point point;
  point.seq = 96;
  point.seq_k = 128;
  point.kv_heads = 4;
  point.causal = true;
  point.window = {31, -1};
  point.block_mask = {"local", {1}};
  point.block_size = 32;
  point.alibi = true;
  point.softcap = 5;
  point.dropout = 0.25;
  const Workload workload(point);
  const Attention attention = workload.attention(Algorithm::flash2);
  EXPECT_EQ(attention.mask.left, 31);
  EXPECT_EQ(attention.mask.right, 0);
  EXPECT_EQ(attention.mask.blocks.q_blocks(), 3);
  EXPECT_EQ(attention.mask.blocks.k_blocks(), 4);
  EXPECT_EQ(attention.softcap, 5);
  EXPECT_EQ(attention.dropout.probability, 0.25);
  EXPECT_EQ(attention.algorithm, Algorithm::flash2);
  ASSERT_NE(attention.alibi.slopes, nullptr);
  EXPECT_FLOAT_EQ(attention.alibi.slopes[0], 0.5F);
  EXPECT_EQ(workload.shapes().kv_heads, 4);
  EXPECT_EQ(workload.shapes().k_length, 128);
}

TEST(Workload, RefusesWhatCannotBe) {
  Point point;
  point.kv_heads = 3;
  EXPECT_THROW(Workload{point}, UsageError);
  point = {};
  point.block_mask = {"strided", {0}};
  EXPECT_THROW(Workload{point}, UsageError);
  point = {};
  point.batch = point.seq = std::int64_t{1} << 40;
  EXPECT_THROW(Workload{point}, UsageError);
}

TEST(Tensors, NoMemoryBeforeAllocateAndSeededDataAfter) {
  Point point;
  point.seq = 50;
  point.bias = true;
  const Workload workload(point);
  Tensors one(workload.shapes(), Direction::backward, Device::cpu());
  const std::size_t tokens = 50 * 8 * 64 * sizeof(float);
  EXPECT_EQ(one.bytes(), 8 * tokens + 2 * 50 * 50 * sizeof(float) + 50 * 8 * sizeof(float));
  EXPECT_EQ(one.backward().q.data, nullptr);
  EXPECT_TRUE(one.backward().grad_bias.given());

  Tensors two(workload.shapes(), Direction::backward, Device::cpu());
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
