// What the cases of the contract do not reach, in the model of a GPU: instances that no small
// problem chooses, non-finite values, determinism, and limits of smaller GPUs.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "api/problem_of.h"
#include "core/base/environment.h"
#include "cuda/common/host/gpus.h"
#include "cuda/common/host/memory.h"
#include "cuda/sm90/backward/launch.h"
#include "cuda/sm90/forward/launch.h"
#include "gpu_model/machine/machine.h"
#include "reference/oracle/elements.h"
#include "support/gpu_cases.h"
#include "support/poison.h"

namespace tessera::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The tensors of a judged case that are not right, of one direction.
std::string wrong_of(const Case& problem, Direction direction) {
  std::string wrong;
  for (const reference::TensorError& error : judge(problem, expect(problem)).tensors) {
    if (error.tensor.starts_with("grad") != (direction == Direction::backward) || error.ok) continue;
    wrong += error.tensor + ": " + error.reason + "; ";
  }
  return wrong;
}

std::vector<std::byte> bytes_of(const Tensor& t) {
  const auto count = static_cast<std::size_t>(reference::count(t.shape)) * size_of(t.dtype);
  const auto* data = static_cast<const std::byte*>(t.data);
  return {data, data + count};
}

// Runs an instance of cuda.hopper that the registry would not choose.
template <typename Run>
void on_gpu(Case& problem, Run&& run) {
  DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
  run(copy);
  EXPECT_EQ(copy.fetch(), "");
}

void run_forward(const cuda::sm90::forward::Instance& instance, Case& problem) {
  on_gpu(problem, [&](DeviceCase& copy) {
    const core::Problem p = api::problem_of(copy.attention, copy.forward, api::Data::required);
    const auto decision = cuda::sm90::forward::decide(instance, p, gpu_model::multiprocessors());
    const cuda::DeviceBuffer workspace(0, decision.workspace_bytes() + 256);
    cuda::sm90::forward::enqueue(decision, p, workspace.data(), nullptr);
  });
}

// By the automatic choice; the backward pass then has what it reads.
void run_forward(Case& problem) {
  on_gpu(problem, [](DeviceCase& copy) { forward(copy.attention, copy.forward); });
}
void run_backward(Case& problem, const std::string& kernel, bool deterministic = false) {
  const ForceKernel forced(kernel);
  on_gpu(problem, [&](DeviceCase& copy) {
    copy.attention.deterministic = deterministic;
    backward(copy.attention, copy.backward);
  });
}

class SpecialOnModel : public testing::Test {
 protected:
  void SetUp() override { gpu_model::set_gpu(90, 2); }
};

// Every instance of the Hopper forward kernel, with as many keys as turn its rings over twice.
TEST_F(SpecialOnModel, EveryHopperForwardInstance) {
  unsigned seed = 0;
  for (const auto& instance : cuda::hopper_forward_bf16()) {
    const auto& c = instance.config;
    const CaseSpec spec{.dtype = DType::bf16,
                        .batch = 1,
                        .q_length = 2L * c.block_q() + 30,
                        .k_length = 7L * c.block_k + 13,
                        .q_heads = 2,
                        .kv_heads = 1,
                        .qk_dim = c.qk_dim,
                        .v_dim = c.v_dim};
    auto check = [&](const char* name, auto&& change) {
      CaseSpec changed = spec;
      change(changed);
      Case problem(changed);
      gpu_model::set_seed(seed++ % 4);
      run_forward(instance, problem);
      EXPECT_EQ(wrong_of(problem, Direction::forward), "")
          << name << ", head_dim " << c.qk_dim << ", block_k " << c.block_k << ", seed " << gpu_model::seed();
    };
    check("full", [](CaseSpec&) {});
    check("peaked", [](CaseSpec& s) { s.input_scale = 12; });
    check("peaked, causal", [](CaseSpec& s) { s.input_scale = 12, s.right = 0, s.q_length = s.k_length; });
    check("packed, window", [](CaseSpec& s) { s.packed = true, s.batch = 3, s.left = 100, s.right = 9; });
  }
}

TEST_F(SpecialOnModel, ALazyMaximumGivesTheSameResult) {
  const core::EnvironmentOverride lazy(&core::Environment::lazy_maximum, "1");
  for (const std::string kernel : {"cuda.hopper", "cuda.flash2"}) {
    for (const std::int64_t dim : {64, 128, 256}) {
      Case problem({.dtype = DType::bf16,
                    .batch = 1,
                    .q_length = 200,
                    .k_length = 470,
                    .q_heads = 1,
                    .kv_heads = 1,
                    .qk_dim = dim,
                    .v_dim = dim});
      const ForceKernel forced(kernel);
      run_forward(problem);
      EXPECT_EQ(wrong_of(problem, Direction::forward), "") << kernel << ", head_dim " << dim;
    }
  }
}

// An infinite value reaches the rows that see it, and no other.
TEST_F(SpecialOnModel, AnInfiniteValueStaysInItsRows) {
  unsigned seed = 0;
  for (const std::string kernel : {"cuda.hopper", "cuda.flash2"}) {
    for (const std::int64_t dim : {64, 96, 128, 256}) {
      constexpr std::int64_t kLength = 400, kKey = 290;
      Case problem({.dtype = DType::bf16,
                    .batch = 1,
                    .q_length = kLength,
                    .k_length = kLength,
                    .q_heads = 1,
                    .kv_heads = 1,
                    .qk_dim = dim,
                    .v_dim = dim,
                    .right = 0});
      reference::write(problem.forward.v, 0, kKey, 0, 3, kInfinity);
      gpu_model::set_seed(seed++ % 4);
      const ForceKernel forced(kernel);
      run_forward(problem);
      std::int64_t wrong = 0;
      for (std::int64_t row = 0; row < kLength; ++row) {
        for (std::int64_t column = 0; column < dim; ++column) {
          const bool finite = std::isfinite(reference::read(problem.forward.out, 0, row, 0, column));
          wrong += finite == (row >= kKey && column == 3);
        }
      }
      EXPECT_EQ(wrong, 0) << kernel << ", head_dim " << dim;
    }
  }
}

// Non-finite values in an operand of the backward pass reach only gradients of visible pairs.
TEST_F(SpecialOnModel, NonFiniteValuesStayInTheirGradients) {
  unsigned seed = 0;
  for (const std::string kernel : {"cuda.hopper", "cuda.flash2"}) {
    for (const std::int64_t dim : {64, 128}) {
      const CaseSpec spec{.dtype = DType::bf16,
                          .q_length = 150,
                          .k_length = 170,
                          .q_heads = 4,
                          .kv_heads = 2,
                          .qk_dim = dim,
                          .v_dim = dim,
                          .left = 70,
                          .right = 10};
      Case clean(spec);
      run_forward(clean);
      run_backward(clean, kernel);
      for (const Poison::Where where : {Poison::q, Poison::k, Poison::v, Poison::grad_out}) {
        const Poison poison{where, kNan, 80};
        const Reach reach(spec, poison);
        Case poisoned(spec);
        poison.write(poisoned);
        gpu_model::set_seed(seed++ % 4);
        SCOPED_TRACE(kernel + ", head_dim " + std::to_string(dim) + ", operand " + std::to_string(where));
        run_forward(poisoned);
        run_backward(poisoned, kernel);
        const BackwardTensors &before = clean.backward, &after = poisoned.backward;
        std::set<std::int64_t> heads = {Poison::kHead};
        if (poison.of_keys()) heads = {2, 3};  // that read kKeyHead
        expect_only_reached("grad_q", before.grad_q, after.grad_q, reach.queries, heads, Columns::all);
        expect_only_reached("grad_k", before.grad_k, after.grad_k, reach.keys, {Poison::kKeyHead},
                            Columns::all);
        expect_only_reached("grad_v", before.grad_v, after.grad_v, reach.keys, {Poison::kKeyHead},
                            Columns::none);
      }
    }
  }
}

// Dropout of the Hopper backward kernel: the forward pass is another kernel's.
TEST_F(SpecialOnModel, HopperDropsWhatForwardDropped) {
  unsigned seed = 0;
  for (const auto& [q_length, k_length] : {std::pair{1, 200}, {203, 129}, {130, 517}}) {
    for (const bool packed : {false, true}) {
      Case problem({.dtype = DType::bf16,
                    .q_length = q_length,
                    .k_length = k_length,
                    .kv_heads = 2,
                    .qk_dim = 64,
                    .v_dim = 64,
                    .right = 0,
                    .packed = packed,
                    .dropout = 0.3,
                    .origin = {.row = 37, .column = 96, .batch = 3, .head = 2}});
      gpu_model::set_seed(seed++ % 4);
      run_forward(problem);
      run_backward(problem, "cuda.hopper");
      EXPECT_EQ(wrong_of(problem, Direction::backward), "") << describe(problem.spec());
    }
  }
}

// The gradients of deterministic mode, and all results of forward, do not depend on the order of
// warps and thread blocks.
TEST_F(SpecialOnModel, ResultsDoNotDependOnTheSchedule) {
  for (const std::string kernel : {"cuda.hopper", "cuda.flash2"}) {
    for (const std::int64_t dim : {64, 128, 256}) {
      std::optional<std::vector<std::byte>> out, grad_q, grad_k;
      for (unsigned seed = 0; seed < 5; ++seed) {
        SCOPED_TRACE(kernel + ", head_dim " + std::to_string(dim) + ", seed " + std::to_string(seed));
        gpu_model::set_seed(seed);
        Case problem({.dtype = DType::bf16,
                      .batch = 1,
                      .q_length = 200,
                      .k_length = 333,
                      .q_heads = 2,
                      .kv_heads = 1,
                      .qk_dim = dim,
                      .v_dim = dim,
                      .right = 0});
        {
          const ForceKernel forced(kernel);
          run_forward(problem);
        }
        if (out) EXPECT_EQ(bytes_of(problem.forward.out), *out);
        out = bytes_of(problem.forward.out);
        if (kernel != "cuda.flash2") continue;
        run_backward(problem, kernel, true);
        if (grad_q) EXPECT_EQ(bytes_of(problem.backward.grad_q), *grad_q);
        if (grad_k) EXPECT_EQ(bytes_of(problem.backward.grad_k), *grad_k);
        grad_q = bytes_of(problem.backward.grad_q), grad_k = bytes_of(problem.backward.grad_k);
      }
    }
  }
}

// GPUs with less shared memory take smaller instances.
TEST_F(SpecialOnModel, InstancesOfSmallerGpus) {
  unsigned seed = 0;
  for (const int capability : {75, 80, 86}) {
    const cuda::AssumedGpu gpu(capability);
    for (const std::int64_t dim : {64, 128, 256}) {
      for (const bool deterministic : {false, true}) {
        Case problem({.dtype = DType::fp16,
                      .batch = 1,
                      .q_length = 140,
                      .k_length = 210,
                      .q_heads = 2,
                      .kv_heads = 1,
                      .qk_dim = dim,
                      .v_dim = dim,
                      .right = 0,
                      .bias = deterministic ? reference::BiasKind::full : reference::BiasKind::none});
        gpu_model::set_seed(seed++ % 4);
        SCOPED_TRACE(std::to_string(capability) + ", head_dim " + std::to_string(dim));
        run_forward(problem);
        EXPECT_EQ(wrong_of(problem, Direction::forward), "");
        run_backward(problem, "", deterministic);
        EXPECT_EQ(wrong_of(problem, Direction::backward), "");
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test
