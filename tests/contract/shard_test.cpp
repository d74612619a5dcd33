// Shards of a longer problem: with their origin set, parts computed alone and
// merged by their LSE are the whole. Context parallelism rests on this.
#include <gtest/gtest.h>

#include <cmath>

#include "core/online_softmax.h"
#include "reference/tolerance/check.h"
#include "support/kernels.h"
#include "support/tensors.h"

namespace tessera::test {
namespace {

using reference::BiasKind;
using reference::Case;
using reference::CaseSpec;
using reference::dense_index;
using reference::ForceKernel;
using reference::read;
using reference::values;
using reference::VisibleKind;

constexpr std::int64_t kRowCuts[] = {0, 17, 50};
constexpr std::int64_t kColumnCuts[] = {0, 31, 45, 70};

std::vector<CaseSpec> specs() {
  const CaseSpec base{.q_length = 50, .k_length = 70, .q_heads = 4, .kv_heads = 2, .qk_dim = 16, .v_dim = 12};
  std::vector<CaseSpec> all(10, base);
  all[0].name = "dense";
  all[1].name = "causal", all[1].right = 0;
  all[2].name = "window", all[2].left = 12, all[2].right = 3;
  all[3].name = "ALiBi", all[3].right = 0, all[3].alibi = true;
  all[4].name = "dropout", all[4].dropout = 0.3;
  all[5].name = "bias, softcap", all[5].bias = BiasKind::full, all[5].softcap = 5;
  all[6].name = "grad_lse", all[6].right = 0, all[6].grad_lse = true;
  all[7].name = "empty rows", all[7].right = 0, all[7].diagonal = -20;
  all[8].name = "all of it", all[8].left = 40, all[8].right = 2, all[8].alibi = true, all[8].dropout = 0.2;
  all[8].bias = BiasKind::per_head, all[8].grad_lse = true;
  all[8].origin = {.row = 1000, .column = 990, .batch = 3, .head = 5};
  all[9].name = "boolean mask", all[9].right = 0, all[9].visible = VisibleKind::full;
  return all;
}

// The description of the part that begins at (row, column), with the diagonal of
// the whole made explicit.
Attention part_of(const Case& whole, std::int64_t row, std::int64_t column) {
  Attention part = whole.attention;
  if (!part.mask.diagonal) {  // bottom right, in indices that count from the whole's first row and column
    const Origin& origin = whole.attention.origin;
    part.mask.diagonal = whole.spec().k_length - whole.spec().q_length - origin.row + origin.column;
  }
  part.origin.row += row;
  part.origin.column += column;
  return part;
}

class ShardTest : public testing::TestWithParam<TypeAndKernel> {
 protected:
  void SetUp() override { forced_ = std::make_unique<ForceKernel>(std::get<1>(GetParam())); }
  DType dtype() const { return std::get<0>(GetParam()); }
  // Sums are taken in another order: a few roundings of the type.
  double tolerance() const { return dtype() == DType::fp64 ? 1e-13 : 1e-5; }

  void expect_close(const char* name, const std::vector<double>& whole,
                    const std::vector<double>& merged) const {
    ASSERT_EQ(whole.size(), merged.size());
    for (std::size_t e = 0; e < whole.size(); ++e) {
      if (whole[e] == merged[e]) continue;  // also where both are -inf
      ASSERT_NEAR(whole[e], merged[e], tolerance() * (1 + std::abs(whole[e]))) << name << " element " << e;
    }
  }

 private:
  std::unique_ptr<ForceKernel> forced_;
};

// One row of the whole, gathered from the parts that hold its columns.
struct Merged {
  std::vector<double> out, lse;
};

TEST_P(ShardTest, ForwardMergesByLse) {
  for (CaseSpec spec : specs()) {
    spec.dtype = dtype();
    SCOPED_TRACE(describe(spec));
    Case whole(spec);
    const ForwardTensors& t = whole.forward;
    tessera::forward(whole.attention, t);
    const Extents &out_shape = t.out.shape, &lse_shape = t.lse.shape;
    Merged merged{std::vector<double>(values(t.out).size()),
                  std::vector<double>(values(t.lse).size(), core::kMinusInfinity<double>)};
    for (std::size_t r = 0; r + 1 < std::size(kRowCuts); ++r) {
      for (std::size_t c = 0; c + 1 < std::size(kColumnCuts); ++c) {
        const std::int64_t row = kRowCuts[r], rows = kRowCuts[r + 1] - row;
        const std::int64_t column = kColumnCuts[c], columns = kColumnCuts[c + 1] - column;
        const OwnedTensor out(dtype(), {spec.batch, rows, spec.q_heads, spec.v_dim}, {});
        const OwnedTensor lse(t.lse.dtype, {spec.batch, spec.q_heads, rows, 1}, {});
        tessera::forward(part_of(whole, row, column),
                         {.q = slice(t.q, 1, row, rows),
                          .k = slice(t.k, 1, column, columns),
                          .v = slice(t.v, 1, column, columns),
                          .bias = slice(slice(t.bias, 2, row, rows), 3, column, columns),
                          .out = out.view(),
                          .lse = lse.view(),
                          .visible = slice(slice(t.visible, 2, row, rows), 3, column, columns)});
        for (std::int64_t b = 0; b < spec.batch; ++b) {
          for (std::int64_t h = 0; h < spec.q_heads; ++h) {
            for (std::int64_t i = 0; i < rows; ++i) {
              double& total = merged.lse[dense_index(lse_shape, b, h, row + i, 0)];
              const auto weights = core::merge(total, read(lse.view(), b, h, i, 0));
              total = weights.lse;
              for (std::int64_t d = 0; d < spec.v_dim; ++d) {
                double& x = merged.out[dense_index(out_shape, b, row + i, h, d)];
                x = weights.first * x + weights.second * read(out.view(), b, i, h, d);
              }
            }
          }
        }
      }
    }
    expect_close("out", values(t.out), merged.out);
    expect_close("lse", values(t.lse), merged.lse);
  }
}

void add_to(std::vector<double>& sum, const Extents& shape, const Tensor& part, int dimension,
            std::int64_t begin) {
  for (std::int64_t a = 0; a < part.shape[0]; ++a) {
    for (std::int64_t b = 0; b < part.shape[1]; ++b) {
      for (std::int64_t c = 0; c < part.shape[2]; ++c) {
        for (std::int64_t d = 0; d < part.shape[3]; ++d) {
          const std::int64_t row = dimension == 1 ? b + begin : b;
          sum[dense_index(shape, a, row, c, d)] += read(part, a, b, c, d);
        }
      }
    }
  }
}

// With out and LSE of the whole, the gradients of the parts add up to those of the whole.
TEST_P(ShardTest, BackwardAddsUp) {
  for (CaseSpec spec : specs()) {
    spec.dtype = dtype();
    SCOPED_TRACE(describe(spec));
    Case whole(spec);
    const BackwardTensors& t = whole.backward;
    tessera::forward(whole.attention, whole.forward);
    tessera::backward(whole.attention, t);
    std::vector<double> q(values(t.q).size()), k(values(t.k).size()), v(values(t.v).size());
    for (std::size_t r = 0; r + 1 < std::size(kRowCuts); ++r) {
      for (std::size_t c = 0; c + 1 < std::size(kColumnCuts); ++c) {
        const std::int64_t row = kRowCuts[r], rows = kRowCuts[r + 1] - row;
        const std::int64_t column = kColumnCuts[c], columns = kColumnCuts[c + 1] - column;
        const OwnedTensor grad_q(dtype(), {spec.batch, rows, spec.q_heads, spec.qk_dim}, {});
        const OwnedTensor grad_k(dtype(), {spec.batch, columns, spec.kv_heads, spec.qk_dim}, {});
        const OwnedTensor grad_v(dtype(), {spec.batch, columns, spec.kv_heads, spec.v_dim}, {});
        tessera::backward(part_of(whole, row, column),
                          {.q = slice(t.q, 1, row, rows),
                           .k = slice(t.k, 1, column, columns),
                           .v = slice(t.v, 1, column, columns),
                           .bias = slice(slice(t.bias, 2, row, rows), 3, column, columns),
                           .out = slice(t.out, 1, row, rows),
                           .lse = slice(t.lse, 2, row, rows),
                           .grad_out = slice(t.grad_out, 1, row, rows),
                           .grad_lse = slice(t.grad_lse, 2, row, rows),
                           .grad_q = grad_q.view(),
                           .grad_k = grad_k.view(),
                           .grad_v = grad_v.view(),
                           .visible = slice(slice(t.visible, 2, row, rows), 3, column, columns)});
        add_to(q, t.q.shape, grad_q.view(), 1, row);
        add_to(k, t.k.shape, grad_k.view(), 1, column);
        add_to(v, t.v.shape, grad_v.view(), 1, column);
      }
    }
    expect_close("grad_q", values(t.grad_q), q);
    expect_close("grad_k", values(t.grad_k), k);
    expect_close("grad_v", values(t.grad_v), v);
  }
}

// A shard by batch and by heads needs no merge: it is bitwise the part of the whole,
// forward and backward. Over so many keys backward works in chunks;
// invariance_test.cpp reaches every other rule of cutting.
TEST_P(ShardTest, BatchAndHeadShardsAreBitwiseParts) {
  Case whole({.dtype = dtype(),
              .batch = 3,
              .q_length = 40,
              .k_length = 1100,
              .q_heads = 6,
              .kv_heads = 3,
              .right = 0,
              .alibi = true,
              .dropout = 0.2,
              .origin = {.batch = 4, .head = 7}});
  tessera::forward(whole.attention, whole.forward);
  tessera::backward(whole.attention, whole.backward);
  const BackwardTensors& t = whole.backward;
  for (std::int64_t b = 0; b < 3; ++b) {
    for (std::int64_t kv_head = 0; kv_head < 3; ++kv_head) {
      Attention part = whole.attention;
      part.origin.batch += b;
      part.origin.head += 2 * kv_head;
      part.alibi.slopes += 2 * kv_head;
      auto of_queries = [&](const Tensor& x) { return slice(slice(x, 0, b, 1), 2, 2 * kv_head, 2); };
      auto of_keys = [&](const Tensor& x) { return slice(slice(x, 0, b, 1), 2, kv_head, 1); };
      auto of_rows = [&](const Tensor& x) { return slice(slice(x, 0, b, 1), 1, 2 * kv_head, 2); };
      const OwnedTensor out(dtype(), {1, 40, 2, 32}, {}), lse(t.lse.dtype, {1, 2, 40, 1}, {});
      const OwnedTensor grad_q(dtype(), {1, 40, 2, 32}, {});
      const OwnedTensor grad_k(dtype(), {1, 1100, 1, 32}, {}), grad_v(dtype(), {1, 1100, 1, 32}, {});
      const BackwardTensors shard{.q = of_queries(t.q),
                                  .k = of_keys(t.k),
                                  .v = of_keys(t.v),
                                  .out = out.view(),
                                  .lse = lse.view(),
                                  .grad_out = of_queries(t.grad_out),
                                  .grad_q = grad_q.view(),
                                  .grad_k = grad_k.view(),
                                  .grad_v = grad_v.view()};
      tessera::forward(part, {.q = shard.q, .k = shard.k, .v = shard.v, .out = shard.out, .lse = shard.lse});
      tessera::backward(part, shard);
      SCOPED_TRACE("batch " + std::to_string(b) + " key head " + std::to_string(kv_head));
      EXPECT_EQ(first_difference(of_queries(t.out), shard.out), "");
      EXPECT_EQ(first_difference(of_rows(t.lse), shard.lse), "");
      EXPECT_EQ(first_difference(of_queries(t.grad_q), shard.grad_q), "");
      EXPECT_EQ(first_difference(of_keys(t.grad_k), shard.grad_k), "");
      EXPECT_EQ(first_difference(of_keys(t.grad_v), shard.grad_v), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ShardTest,
                         testing::Combine(testing::Values(DType::fp64, DType::fp32),
                                          testing::ValuesIn(cpu_kernels())),
                         test_name);

}  // namespace
}  // namespace tessera::test
