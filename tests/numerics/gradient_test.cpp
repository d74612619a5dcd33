// Gradients in fp64 against finite differences of the forward: of each kernel's own
// forward, and of the oracle's. Nothing analytic is trusted here.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "reference/tolerance/check.h"
#include "support/kernels.h"

namespace tessera::test {
namespace {

using reference::BiasKind;
using reference::BlockKind;
using reference::Case;
using reference::CaseSpec;
using reference::oracle_backward;
using reference::oracle_forward;
using reference::values;

constexpr double kTolerance = 1e-6;

// The scalar whose gradient `backward` computes: <grad_out, out> + <grad_lse, lse>.
double loss(const Case& problem, const std::vector<double>& out, const std::vector<double>& lse) {
  const std::vector<double> grad_out = values(problem.backward.grad_out);
  double sum = 0;
  for (std::size_t e = 0; e < out.size(); ++e) sum += grad_out[e] * out[e];
  if (!problem.backward.grad_lse.given()) return sum;
  const std::vector<double> grad_lse = values(problem.backward.grad_lse);
  for (std::size_t e = 0; e < lse.size(); ++e) {
    if (std::isfinite(lse[e])) sum += grad_lse[e] * lse[e];  // a row that sees nothing has no gradient
  }
  return sum;
}

using Forward = std::function<double()>;  // runs forward on the case as it now is and returns the loss

// The derivative of the loss along `direction` in one tensor, by the five-point rule: its error
// is of order step^4, so at this step neither truncation nor rounding reaches the tolerance.
double difference(const Forward& forward, const Tensor& tensor, const std::vector<double>& direction) {
  constexpr double kStep = 1e-3;
  const std::vector<double> start = values(tensor);
  auto at = [&](double t) {
    auto* data = static_cast<double*>(tensor.data);
    for (std::size_t e = 0; e < start.size(); ++e) data[e] = start[e] + t * direction[e];
    return forward();
  };
  const double slope = (8 * (at(kStep) - at(-kStep)) - (at(2 * kStep) - at(-2 * kStep))) / (12 * kStep);
  at(0);
  return slope;
}

// One tensor's gradient: along random directions that move every element, and for single elements.
void check_gradient(const char* name, const Forward& forward, const Tensor& tensor,
                    const std::vector<double>& gradient) {
  if (!tensor.given() || gradient.empty()) return;
  SCOPED_TRACE(name);
  ASSERT_EQ(gradient.size(), values(tensor).size());
  double squares = 0, largest = 0;
  for (const double g : gradient) {
    squares += g * g;
    largest = std::max(largest, std::abs(g));
  }
  std::mt19937_64 engine(7);
  for (int round = 0; round < 2; ++round) {
    std::vector<double> direction(gradient.size());
    double expected = 0;
    for (std::size_t e = 0; e < direction.size(); ++e) {
      direction[e] = engine() % 2 == 0 ? 1 : -1;
      expected += direction[e] * gradient[e];
    }
    // The size such a sum has when its terms are independent: the natural unit of its error.
    const double unit = std::max(std::sqrt(squares), 1e-3);
    EXPECT_NEAR(difference(forward, tensor, direction) / unit, expected / unit, kTolerance);
  }
  for (int round = 0; round < 3; ++round) {
    const std::size_t element = engine() % gradient.size();
    std::vector<double> direction(gradient.size());
    direction[element] = 1;
    const double unit = std::max(largest, 1e-3);
    EXPECT_NEAR(difference(forward, tensor, direction) / unit, gradient[element] / unit, kTolerance)
        << "element " << element;
  }
}

void check_gradients(Case& problem, const Forward& forward, const reference::Gradients& gradients) {
  check_gradient("grad_q", forward, problem.forward.q, gradients.q);
  check_gradient("grad_k", forward, problem.forward.k, gradients.k);
  check_gradient("grad_v", forward, problem.forward.v, gradients.v);
  check_gradient("grad_bias", forward, problem.forward.bias, gradients.bias);
}

std::vector<CaseSpec> gradient_cases() {
  const Origin origin{.row = 40, .column = 33, .batch = 2, .head = 1};
  std::vector<CaseSpec> specs = {
      {.name = "dense"},
      {.name = "value_dim", .v_dim = 3},
      {.name = "causal", .right = 0},
      {.name = "causal_empty_rows", .q_length = 25, .k_length = 14, .right = 0},
      {.name = "causal_top_left", .q_length = 14, .k_length = 25, .right = 0, .align = Align::top_left},
      {.name = "window", .left = 6, .right = 2},
      {.name = "window_left", .left = 4},
      {.name = "diagonal", .right = 0, .diagonal = -3},
      {.name = "blocks", .blocks = BlockKind::random, .block_q = 4, .block_k = 6},
      {.name = "blocks_per_head",
       .right = 0,
       .blocks = BlockKind::random_per_head,
       .block_q = 8,
       .block_k = 4},
      {.name = "grouped_heads", .q_heads = 4, .kv_heads = 2, .right = 0},
      {.name = "one_kv_head", .q_heads = 3, .kv_heads = 1},
      {.name = "packed", .batch = 4, .packed = true},
      {.name = "packed_causal", .batch = 4, .right = 0, .packed = true, .seed = 2},
      {.name = "bias_full", .bias = BiasKind::full},
      {.name = "bias_per_head", .bias = BiasKind::per_head},
      {.name = "bias_per_batch", .right = 0, .bias = BiasKind::per_batch},
      {.name = "bias_row", .bias = BiasKind::row},
      {.name = "bias_packed", .batch = 3, .packed = true, .bias = BiasKind::full},
      {.name = "bias_packed_per_head", .batch = 3, .packed = true, .bias = BiasKind::per_head, .seed = 3},
      {.name = "visible", .visible = reference::VisibleKind::full},
      {.name = "visible_packed",
       .batch = 3,
       .right = 0,
       .packed = true,
       .visible = reference::VisibleKind::per_head},
      {.name = "alibi", .alibi = true},
      {.name = "alibi_causal", .q_length = 14, .k_length = 25, .right = 0, .alibi = true},
      {.name = "softcap", .softcap = 2, .input_scale = 2},
      {.name = "softcap_bias", .right = 0, .bias = BiasKind::row, .softcap = 3, .input_scale = 2},
      {.name = "dropout", .dropout = 0.2},
      {.name = "dropout_causal", .right = 0, .dropout = 0.5},
      {.name = "grad_lse", .grad_lse = true},
      {.name = "grad_lse_empty_rows", .q_length = 25, .k_length = 14, .right = 0, .grad_lse = true},
      {.name = "scale", .grad_lse = true, .scale = -0.7},
      {.name = "origin",
       .left = 9,
       .right = 3,
       .diagonal = -6,
       .alibi = true,
       .dropout = 0.3,
       .origin = origin},
      {.name = "everything",
       .batch = 2,
       .q_length = 23,
       .k_length = 19,
       .q_heads = 4,
       .kv_heads = 2,
       .qk_dim = 6,
       .v_dim = 9,
       .left = 14,
       .right = 3,
       .blocks = BlockKind::random_per_head,
       .block_q = 8,
       .block_k = 6,
       .bias = BiasKind::per_head,
       .alibi = true,
       .softcap = 4,
       .dropout = 0.15,
       .grad_lse = true,
       .origin = {.batch = 3, .head = 2},
       .seed = 5},
  };
  for (CaseSpec& spec : specs) {
    spec.dtype = DType::fp64;
    const CaseSpec defaults;
    if (spec.q_length == defaults.q_length) spec.q_length = 21;
    if (spec.k_length == defaults.k_length) spec.k_length = 21;
    if (spec.q_heads == defaults.q_heads && spec.kv_heads == defaults.kv_heads)
      spec.q_heads = spec.kv_heads = 2;
    if (spec.qk_dim == defaults.qk_dim) spec.qk_dim = 5;
    if (spec.v_dim == defaults.v_dim) spec.v_dim = 5;
  }
  return specs;
}

using Parameter = std::tuple<std::size_t, std::string>;  // which case, which kernel

class GradientTest : public testing::TestWithParam<Parameter> {};

TEST_P(GradientTest, MatchesFiniteDifferencesOfTheForward) {
  const auto& [index, kernel] = GetParam();
  Case problem(gradient_cases().at(index));
  if (kernel == "oracle") {
    const reference::Gradients gradients = oracle_backward(problem.attention, problem.backward);
    check_gradients(
        problem,
        [&] {
          const reference::Forward result = oracle_forward(problem.attention, problem.forward);
          return loss(problem, result.out, result.lse);
        },
        gradients);
    return;
  }
  run(problem, kernel);
  const BackwardTensors& t = problem.backward;
  const reference::Gradients gradients{values(t.grad_q), values(t.grad_k), values(t.grad_v),
                                       values(t.grad_bias)};
  const reference::ForceKernel forced(kernel);
  check_gradients(
      problem,
      [&] {
        tessera::forward(problem.attention, problem.forward);
        return loss(problem, values(problem.forward.out), values(problem.forward.lse));
      },
      gradients);
}

std::vector<std::string> kernels_and_oracle() {
  std::vector<std::string> all = cpu_kernels();
  all.emplace_back("oracle");
  return all;
}

std::string gradient_test_name(const testing::TestParamInfo<Parameter>& info) {
  const std::string& kernel = std::get<1>(info.param);
  return gradient_cases().at(std::get<0>(info.param)).name + "_" +
         (kernel.starts_with("cpu.") ? kernel.substr(4) : kernel);
}

INSTANTIATE_TEST_SUITE_P(Fp64, GradientTest,
                         testing::Combine(testing::Range<std::size_t>(0, gradient_cases().size()),
                                          testing::ValuesIn(kernels_and_oracle())),
                         gradient_test_name);

// Any subset of the gradients may be asked for, and each is bitwise what the full call gives.
TEST(GradientSubsets, AreBitwiseTheSame) {
  for (const std::string& kernel : cpu_kernels()) {
    const reference::ForceKernel forced(kernel);
    Case problem({.dtype = DType::fp32, .right = 0, .bias = BiasKind::per_head, .dropout = 0.1});
    run(problem, kernel);
    const BackwardTensors all = problem.backward;
    const std::vector<std::vector<double>> full = {values(all.grad_q), values(all.grad_k), values(all.grad_v),
                                                   values(all.grad_bias)};
    for (unsigned subset = 1; subset < 16; ++subset) {
      problem.poison();
      tessera::forward(problem.attention, problem.forward);
      BackwardTensors some = all;
      Tensor* outputs[] = {&some.grad_q, &some.grad_k, &some.grad_v, &some.grad_bias};
      for (unsigned t = 0; t < 4; ++t) {
        if ((subset >> t & 1) == 0) *outputs[t] = {};
      }
      tessera::backward(problem.attention, some);
      for (unsigned t = 0; t < 4; ++t) {
        if (!outputs[t]->given()) continue;
        EXPECT_EQ(values(*outputs[t]), full[t]) << kernel << " subset " << subset;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test
