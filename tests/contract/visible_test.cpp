// The boolean mask `visible`: what it shares with a bias of -infinity, what its layout may not
// change, and what lies behind it. feature_matrix.cpp has its cases for the oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "reference/oracle/elements.h"
#include "reference/tolerance/check.h"
#include "support/kernels.h"
#include "support/tensors.h"

namespace tessera::test {
namespace {

using reference::Case;
using reference::CaseSpec;
using reference::ForceKernel;
using reference::read;
using reference::values;
using reference::VisibleKind;
using reference::write;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename Visit>
void for_each_index(const Extents& shape, Visit&& visit) {
  for (std::int64_t a = 0; a < shape[0]; ++a) {
    for (std::int64_t b = 0; b < shape[1]; ++b) {
      for (std::int64_t c = 0; c < shape[2]; ++c) {
        for (std::int64_t d = 0; d < shape[3]; ++d) visit(a, b, c, d);
      }
    }
  }
}

// The same call with results of its own and another mask.
struct Variant {
  Attention attention;
  ForwardTensors forward;
  BackwardTensors backward;
  std::vector<OwnedTensor> results;

  Variant(const Case& problem, const Tensor& visible)
      : attention(problem.attention), forward(problem.forward), backward(problem.backward) {
    results.reserve(8);
    auto fresh = [&](Tensor& t) { t = results.emplace_back(t.dtype, t.shape, MemoryLayout{}).view(); };
    fresh(forward.out), fresh(forward.lse);
    for (Tensor* t : {&backward.grad_q, &backward.grad_k, &backward.grad_v}) fresh(*t);
    forward.visible = backward.visible = visible;
  }

  // Backward gets the output and LSE of `of`, so that each direction is judged for itself.
  void run(const ForwardTensors& of, int threads) {
    tessera::forward(attention, forward, {.threads = threads});
    backward.out = of.out;
    backward.lse = of.lse;
    tessera::backward(attention, backward, {.threads = threads});
  }
};

class Visible : public testing::TestWithParam<TypeAndKernel> {
 protected:
  void SetUp() override { forced_ = std::make_unique<ForceKernel>(std::get<1>(GetParam())); }
  DType dtype() const { return std::get<0>(GetParam()); }
  const std::string& kernel() const { return std::get<1>(GetParam()); }

  CaseSpec spec(VisibleKind kind) const {
    return {.dtype = dtype(),
            .q_length = 150,
            .k_length = 210,
            .q_heads = 4,
            .kv_heads = 2,
            .qk_dim = 16,
            .v_dim = 24,
            .seed = 3,
            .visible = kind};
  }

  // Roundings of the type.
  double tolerance() const {
    return dtype() == DType::fp64   ? 1e-12
           : dtype() == DType::fp32 ? 2e-5
           : dtype() == DType::fp16 ? 8e-3
                                    : 6e-2;
  }

  void expect_close(const char* name, const Tensor& a, const Tensor& b) const {
    const std::vector<double> first = values(a), second = values(b);
    for (std::size_t e = 0; e < first.size(); ++e) {
      if (first[e] == second[e]) continue;  // also where both are -inf
      ASSERT_NEAR(first[e], second[e], tolerance() * (1 + std::abs(first[e]))) << name << " element " << e;
    }
  }

 private:
  std::unique_ptr<ForceKernel> forced_;
};

TEST_P(Visible, AgreesWithABiasOfMinusInfinity) {
  for (const std::int64_t right : {-1, 0}) {
    CaseSpec own = spec(VisibleKind::full);
    own.right = right;
    const Case problem(own);
    const OwnedTensor bias(accumulator_of(dtype()), problem.forward.visible.shape, {});
    for_each_index(bias.view().shape, [&](auto a, auto b, auto c, auto d) {
      write(bias.view(), a, b, c, d, read(problem.forward.visible, a, b, c, d) != 0 ? 0 : -kInfinity);
    });
    tessera::forward(problem.attention, problem.forward);
    tessera::backward(problem.attention, problem.backward);
    Variant biased(problem, {});
    biased.forward.bias = biased.backward.bias = bias.view();
    biased.run(problem.forward, 0);
    expect_close("out", problem.forward.out, biased.forward.out);
    expect_close("lse", problem.forward.lse, biased.forward.lse);
    expect_close("grad_q", problem.backward.grad_q, biased.backward.grad_q);
    expect_close("grad_k", problem.backward.grad_k, biased.backward.grad_k);
    expect_close("grad_v", problem.backward.grad_v, biased.backward.grad_v);
  }
}

// Equal elements give equal bits, whatever their bytes, strides and sizes of 1 are and however many
// threads there are.
TEST_P(Visible, BitsFollowFromTheElements) {
  for (const VisibleKind kind :
       {VisibleKind::per_head, VisibleKind::per_batch, VisibleKind::row, VisibleKind::padding}) {
    const CaseSpec own = spec(kind);
    SCOPED_TRACE(describe(own));
    const Case problem(own);
    tessera::forward(problem.attention, problem.forward);
    tessera::backward(problem.attention, problem.backward);
    const Tensor& mask = problem.forward.visible;
    const Extents whole{own.batch, own.q_heads, own.q_length, own.k_length};
    const OwnedTensor ones(DType::boolean, whole, {}), gaps(DType::boolean, whole, {.gap = 5, .offset = 3});
    for_each_index(whole, [&](auto a, auto b, auto c, auto d) {
      auto in = [&](int dimension, std::int64_t index) { return mask.shape[dimension] == 1 ? 0 : index; };
      const double seen = read(mask, in(0, a), in(1, b), in(2, c), d);
      write(ones.view(), a, b, c, d, seen);
      const Tensor& t = gaps.view();
      static_cast<std::uint8_t*>(t.data)[a * t.strides[0] + b * t.strides[1] + c * t.strides[2] + d] =
          seen != 0 ? static_cast<std::uint8_t>(1 + (a + b + c + d) % 255) : 0;
    });
    Tensor expanded = mask;
    expanded.shape = whole;
    for (int i = 0; i < 3; ++i) {
      if (mask.shape[i] == 1) expanded.strides[i] = 0;
    }
    int threads = 1;
    for (const Tensor& same : {ones.view(), gaps.view(), expanded}) {
      Variant other(problem, same);
      other.run(problem.forward, threads++);
      EXPECT_EQ(first_difference(problem.forward, other.forward), "");
      EXPECT_EQ(first_difference(problem.backward, other.backward), "");
    }
  }
}

// A NaN behind a hidden key reaches nothing, and its own gradients are 0.
TEST_P(Visible, NothingReachesAcrossIt) {
  const CaseSpec own = spec(VisibleKind::padding);
  const Case clean(own);
  Case problem(own);
  const Tensor& mask = problem.forward.visible;
  auto hidden = [&](std::int64_t b, std::int64_t j) { return read(mask, b, 0, 0, j) == 0; };
  const double bad[] = {std::numeric_limits<double>::quiet_NaN(), kInfinity};
  for (const Tensor& t : {problem.forward.k, problem.forward.v}) {
    for_each_index(t.shape, [&](auto b, auto j, auto h, auto d) {
      if (hidden(b, j)) write(t, b, j, h, d, bad[(j + d) % 2]);
    });
  }
  tessera::forward(clean.attention, clean.forward);
  tessera::backward(clean.attention, clean.backward);
  tessera::forward(problem.attention, problem.forward);
  tessera::backward(problem.attention, problem.backward);
  expect_close("out", clean.forward.out, problem.forward.out);
  expect_close("lse", clean.forward.lse, problem.forward.lse);
  expect_close("grad_q", clean.backward.grad_q, problem.backward.grad_q);
  expect_close("grad_k", clean.backward.grad_k, problem.backward.grad_k);
  expect_close("grad_v", clean.backward.grad_v, problem.backward.grad_v);
  for (const Tensor& t : {problem.backward.grad_k, problem.backward.grad_v}) {
    for_each_index(t.shape, [&](auto b, auto j, auto h, auto d) {
      if (hidden(b, j)) {
        ASSERT_EQ(read(t, b, j, h, d), 0);
      }
    });
  }
}

TEST_P(Visible, RowsThatSeeNothingAreZero) {
  const Case problem(spec(VisibleKind::full));
  const Tensor& mask = problem.forward.visible;
  for_each_index(mask.shape, [&](auto a, auto b, auto c, auto d) {
    if (c % 3 == 0 || a == 1) write(mask, a, b, c, d, 0);
  });
  tessera::forward(problem.attention, problem.forward);
  tessera::backward(problem.attention, problem.backward);
  for_each_index(problem.forward.out.shape, [&](auto b, auto i, auto h, auto d) {
    if (i % 3 != 0 && b != 1) return;
    ASSERT_EQ(read(problem.forward.out, b, i, h, d), 0);
    ASSERT_EQ(read(problem.forward.lse, b, h, i, 0), -kInfinity);
  });
  for_each_index(problem.backward.grad_q.shape, [&](auto b, auto i, auto h, auto d) {
    if (i % 3 == 0 || b == 1) {
      ASSERT_EQ(read(problem.backward.grad_q, b, i, h, d), 0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Cpu, Visible, testing::ValuesIn(pairs_with_types(cpu_kernels())), test_name);

}  // namespace
}  // namespace tessera::test
