// The kernels of GPUs on a GPU: contract, streams, threads, graphs, memory.
// Compiled in every build; where there is no GPU every test says so and is skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <thread>

#include "core/band.h"
#include "core/base/environment.h"
#include "cuda/common/host/gpus.h"
#include "cuda/common/host/launch.h"
#include "reference/cases/device_case.h"
#include "reference/tolerance/check.h"
#include "support/build.h"
#include "support/gpu.h"
#include "support/kernels.h"
#include "support/one_key.h"
#include "support/poison.h"
#include "support/tensors.h"
#include "tessera/error.h"

namespace tessera::test {
namespace {

// ---- the contract -------------------------------------------------------------------------------

class GpuContract : public Gpu, public testing::WithParamInterface<DType> {};

// The oracle is slower than any GPU: a thread for each case.
std::vector<reference::Expected> expect_all(const std::vector<CaseSpec>& specs) {
  std::vector<std::future<reference::Expected>> pending;
  for (const CaseSpec& spec : specs) {
    pending.push_back(std::async(std::launch::async, [&spec] { return expect(Case(spec)); }));
  }
  std::vector<reference::Expected> expected;
  for (std::future<reference::Expected>& result : pending) expected.push_back(result.get());
  return expected;
}

// Every kernel by name, and the automatic choice (no name). A kernel may say that
// it does not serve a case; the automatic choice serves all without a boolean mask, which no kernel
// for GPUs supports. One that serves one direction of a case alone shares it with another kernel.
TEST_P(GpuContract, AgreesWithOracle) {
  const DType dtype = GetParam();
  if (dtype == DType::fp64) GTEST_SKIP() << "no kernel for GPUs has fp64";
  std::vector<std::string> names = gpu_kernels();
  names.emplace_back();
  std::map<std::string, int> checked, shared;
  std::map<std::string, std::set<std::string>> refusals;
  const std::vector<CaseSpec> specs = reference::feature_matrix(dtype);
  const std::vector<reference::Expected> oracle = expect_all(specs);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    Case problem(specs[i]);
    for (const std::string& kernel : names) {
      SCOPED_TRACE((kernel.empty() ? "automatic choice" : kernel) + " " + describe(specs[i]));
      problem.poison();
      try {
        reference::run(problem, kernel, {}, Device::cuda(0));
        const reference::Verdict verdict = judge(problem, oracle[i]);
        EXPECT_TRUE(verdict.ok) << verdict.message;
        ++checked[kernel];
      } catch (const Error& error) {
        const bool may_refuse = !kernel.empty() || specs[i].visible != reference::VisibleKind::none;
        const bool refused = may_refuse && error.code() == ErrorCode::unsupported;
        EXPECT_TRUE(refused) << name(error.code()) << ": " << error.what();
        if (!refused) continue;
        refusals[kernel].insert(reference::what_it_lacks(kernel, error.what()));
        problem.poison();
        if (!run_where_served(problem, kernel)) continue;
        const reference::Verdict verdict = judge(problem, oracle[i]);
        EXPECT_TRUE(verdict.ok) << "with another kernel: " << verdict.message;
        ++shared[kernel];
      }
    }
  }
  EXPECT_EQ(checked[""], std::count_if(specs.begin(), specs.end(), [](const CaseSpec& spec) {
              return spec.visible == reference::VisibleKind::none;
            }));
  for (const std::string& kernel : names) {
    std::cout << "note: " << (kernel.empty() ? "automatic choice" : kernel) << " in " << name(dtype) << ": "
              << checked[kernel] << " of " << specs.size() << " cases, one direction of " << shared[kernel]
              << " more\n";
    for (const std::string& reason : refusals[kernel]) std::cout << "note:   else: " << reason << '\n';
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GpuContract, testing::ValuesIn(kDTypes), dtype_test_name);

// Rows that are not aligned, gaps, other orders of dimensions, inputs that run
// backwards. DeviceCase sees what is written beside the results.
TEST_F(Gpu, AnyMemoryLayout) {
  const MemoryLayout layouts[] = {
      {.offset = 1},           {.gap = 3},         {.order = {0, 2, 1, 3}, .gap = 5, .offset = 7},
      {.order = {2, 1, 0, 3}}, {.reversed = true}, {.garbage_strides = true}};
  for_each_lane([&](const std::string& kernel, DType dtype) {
    for (const std::int64_t batch : {1, 2}) {
      Case problem({.dtype = dtype,
                    .batch = batch,
                    .q_length = 70,
                    .k_length = 83,
                    .q_heads = 4,
                    .kv_heads = 2,
                    .qk_dim = 40,
                    .v_dim = 24,
                    .right = 0});
      if (!serves(kernel, problem, Direction::forward)) continue;
      const bool with_backward = serves(kernel, problem, Direction::backward);
      const reference::Expected expected = expect(problem);
      for (const MemoryLayout& layout : layouts) {
        SCOPED_TRACE("offset " + std::to_string(layout.offset) + ", gap " + std::to_string(layout.gap));
        RelaidCase relaid(problem, layout);
        DeviceCase copy(relaid.attention, relaid.forward, relaid.backward, Device::cuda(0));
        const ForceKernel forced(kernel);
        try {
          forward(copy.attention, copy.forward);
          if (with_backward) backward(copy.attention, copy.backward);
        } catch (const Error& error) {  // Hopper's copy engine has its rules
          EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
          EXPECT_EQ(kernel, "cuda.hopper") << error.what();
          continue;
        }
        EXPECT_EQ(copy.fetch(), "");
        EXPECT_EQ(relaid.damage(), "");
        auto judge = [](const char* what, const Tensor& actual, const auto& exact, const auto& model,
                        double factor, const auto& rounding) {
          const reference::TensorError error =
              reference::compare(what, actual, exact, model, factor, rounding);
          EXPECT_TRUE(error.ok) << what << ": " << error.reason;
        };
        const reference::Forward &exact = expected.exact, &model = expected.model;
        const reference::Rounding& rounding = expected.rounding;
        judge("out", relaid.forward.out, exact.out, model.out, reference::kForwardFactor,
              rounding.forward.out);
        judge("lse", relaid.forward.lse, exact.lse, model.lse, reference::kForwardFactor,
              rounding.forward.lse);
        if (!with_backward) continue;
        const reference::Gradients &right = expected.exact_gradients, &low = expected.model_gradients;
        const BackwardTensors& t = relaid.backward;
        constexpr double kFactor = reference::kGradientFactor;
        judge("grad_q", t.grad_q, right.q, low.q, kFactor, rounding.gradients.q);
        judge("grad_k", t.grad_k, right.k, low.k, kFactor, rounding.gradients.k);
        judge("grad_v", t.grad_v, right.v, low.v, kFactor, rounding.gradients.v);
      }
    }
  });
}

// Tiles in the middle of long rows, where kernels take their fast paths: every
// width, every mask, peaked scores.
TEST_F(Gpu, LongRowsOfEveryWidth) {
  std::vector<CaseSpec> specs;
  for (const auto& [qk_dim, v_dim] :
       {std::pair{64, 64}, {128, 128}, {256, 256}, {136, 200}, {48, 96}, {96, 88}, {192, 128}}) {
    CaseSpec spec{
        .q_length = 150, .k_length = 650, .q_heads = 2, .kv_heads = 1, .qk_dim = qk_dim, .v_dim = v_dim};
    auto add = [&](const char* name, auto&& change) {
      CaseSpec changed = spec;
      changed.name = name;
      change(changed);
      specs.push_back(changed);
    };
    add("full", [](CaseSpec&) {});
    add("peaked", [](CaseSpec& c) { c.input_scale = 3.5; });
    add("causal", [](CaseSpec& c) { c.right = 0, c.q_length = 600, c.batch = 1; });
    add("window", [](CaseSpec& c) { c.left = 470, c.right = 20; });
    add("block-sparse",
        [](CaseSpec& c) { c.blocks = reference::BlockKind::random, c.block_q = 64, c.block_k = 128; });
    add("packed", [](CaseSpec& c) { c.packed = true, c.batch = 3, c.right = 0; });
    add("many queries", [](CaseSpec& c) { c.q_length = 700, c.k_length = 280, c.right = 30, c.batch = 1; });
  }
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    for (CaseSpec& spec : specs) spec.dtype = dtype;
    const std::vector<reference::Expected> oracle = expect_all(specs);
    for (const std::string kernel : {"cuda.hopper", "cuda.flash2", "cuda.flash2_sm75"}) {
      for (std::size_t i = 0; i < specs.size(); ++i) {
        SCOPED_TRACE(kernel + " " + describe(specs[i]));
        Case problem(specs[i]);
        if (!run_where_served(problem, kernel)) continue;
        const reference::Verdict verdict = judge(problem, oracle[i]);
        EXPECT_TRUE(verdict.ok) << verdict.message;
      }
    }
  }
}

// An infinite value reaches the rows that see it, and no other: also where a whole
// tile is computed again because of it.
TEST_F(Gpu, AnInfiniteValueStaysInItsRows) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    if (kernel.find("flash2") == std::string::npos && kernel != "cuda.hopper") return;
    for (const std::int64_t dim : {64, 96, 128, 256}) {
      SCOPED_TRACE("head_dim " + std::to_string(dim));
      constexpr std::int64_t kLength = 800, kKey = 700;
      Case problem({.dtype = dtype,
                    .batch = 1,
                    .q_length = kLength,
                    .k_length = kLength,
                    .q_heads = 1,
                    .kv_heads = 1,
                    .qk_dim = dim,
                    .v_dim = dim,
                    .right = 0});
      if (!serves(kernel, problem, Direction::forward)) continue;
      reference::write(problem.forward.v, 0, kKey, 0, 3, std::numeric_limits<double>::infinity());
      DeviceCase copy(problem.attention, problem.forward, {}, Device::cuda(0));
      const ForceKernel forced(kernel);
      forward(copy.attention, copy.forward);
      EXPECT_EQ(copy.fetch(), "");
      std::int64_t wrong = 0;
      for (std::int64_t row = 0; row < kLength; ++row) {
        for (std::int64_t column = 0; column < dim; ++column) {
          const bool finite = std::isfinite(reference::read(problem.forward.out, 0, row, 0, column));
          wrong += finite == (row >= kKey && column == 3);
        }
      }
      EXPECT_EQ(wrong, 0);
    }
  });
}

// Forward by another kernel: cuda.hopper has dropout in its backward alone.
TEST_F(Gpu, HopperDropsWhatForwardDropped) {
  std::vector<CaseSpec> specs;
  for (const auto& [q_length, k_length] :
       {std::pair{1, 1}, {1, 200}, {64, 32}, {128, 128}, {203, 129}, {130, 517}, {400, 400}}) {
    const CaseSpec spec{
        .q_length = q_length, .k_length = k_length, .qk_dim = 64, .v_dim = 64, .dropout = 0.2};
    auto add = [&](const char* name, auto&& change) {
      CaseSpec changed = spec;
      changed.name = name;
      change(changed);
      specs.push_back(changed);
    };
    add("plain", [](CaseSpec&) {});
    add("most of it", [](CaseSpec& c) { c.dropout = 0.9, c.seed = 77; });
    add("GQA", [](CaseSpec& c) { c.kv_heads = 1, c.right = 0; });
    add("origin", [](CaseSpec& c) { c.origin = {.row = 37, .column = 96, .batch = 3, .head = 2}; });
    add("window", [](CaseSpec& c) { c.left = 60, c.right = 17, c.qk_dim = 40, c.v_dim = 56; });
    add("packed", [](CaseSpec& c) { c.packed = true, c.batch = 4, c.kv_heads = 2; });
  }
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    for (CaseSpec& spec : specs) spec.dtype = dtype;
    if (!serves("cuda.hopper", Case(specs[0]), Direction::backward))
      GTEST_SKIP() << "no GPU of compute capability 9.0";
    const std::vector<reference::Expected> oracle = expect_all(specs);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      SCOPED_TRACE(describe(specs[i]));
      Case problem(specs[i]);
      EXPECT_TRUE(serves("cuda.hopper", problem, Direction::backward));
      EXPECT_TRUE(run_where_served(problem, "cuda.hopper"));
      const reference::Verdict verdict = judge(problem, oracle[i]);
      EXPECT_TRUE(verdict.ok) << verdict.message;
    }
  }
}

// ---- gradients and what is not finite -----------------------------------------------------------

// Through tiles that are masked in part, with keys and rows before, in and after them.
TEST_F(Gpu, WhatIsNotFiniteReachesTheGradientsOfWhoSeesIt) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                   kInfinity = std::numeric_limits<double>::infinity();
  struct Band {
    std::int64_t left, right;
  };
  for_each_lane([&](const std::string& kernel, DType dtype) {
    if (kernel.find("flash2") == std::string::npos && kernel != "cuda.hopper") return;
    for (const std::int64_t dim : {64, 128}) {
      for (const auto& [left, right] : {Band{-1, 0}, Band{70, 10}, Band{9, 0}, Band{-1, -1}}) {
        const CaseSpec spec{.dtype = dtype,
                            .q_length = 290,
                            .k_length = 310,
                            .q_heads = 4,
                            .kv_heads = 2,
                            .qk_dim = dim,
                            .v_dim = dim,
                            .left = left,
                            .right = right};
        Case clean(spec);
        if (!serves(kernel, clean, Direction::backward)) continue;
        ASSERT_TRUE(run_where_served(clean, kernel));
        for (const Poison::Where where : {Poison::q, Poison::k, Poison::v, Poison::grad_out}) {
          for (const double value : {kNan, kInfinity}) {
            for (const std::int64_t row : {5, 150, 289}) {
              constexpr const char* kNames[] = {"q", "k", "v", "grad_out"};
              SCOPED_TRACE(describe(spec) + ": " + std::to_string(value) + " in row " + std::to_string(row) +
                           " of " + kNames[where]);
              const Poison poison{where, value, row};
              const Reach reach(spec, poison);
              Case poisoned(spec);
              poison.write(poisoned);
              ASSERT_TRUE(run_where_served(poisoned, kernel));
              // A NaN lasts; a score of -inf rightly hides the key. P has it from Q
              // and K, dS from all four.
              const Columns all = std::isnan(value) ? Columns::all : Columns::none;
              const Columns in_p = where == Poison::q || where == Poison::k            ? all
                                   : where == Poison::grad_out && all != Columns::none ? Columns::poisoned
                                                                                       : Columns::none;
              const BackwardTensors &before = clean.backward, &after = poisoned.backward;
              std::set<std::int64_t> heads = {Poison::kHead};
              if (poison.of_keys()) heads = {2, 3};  // that read kKeyHead
              expect_only_reached("grad_q", before.grad_q, after.grad_q, reach.queries, heads, all);
              heads = {Poison::kKeyHead};
              expect_only_reached("grad_k", before.grad_k, after.grad_k, reach.keys, heads, all);
              expect_only_reached("grad_v", before.grad_v, after.grad_v, reach.keys, heads, in_p);
            }
          }
        }
      }
    }
  });
}

// A row that sees one key returns its value bit for bit, however large the score.
TEST_F(Gpu, OneKeyIsReturnedBitForBit) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    for (const std::int64_t dim : {64, 96, 128, 256}) {
      for (const double scale : {1.0, 1e4}) {
        Case problem({.dtype = dtype,
                      .q_length = 300,
                      .k_length = 300,
                      .q_heads = 2,
                      .kv_heads = 2,
                      .qk_dim = dim,
                      .v_dim = dim,
                      .left = 0,
                      .right = 0});
        problem.attention.scale = scale;
        write_special_values(problem.forward.v);
        if (!serves(kernel, problem, Direction::forward)) continue;
        DeviceCase copy(problem.attention, problem.forward, {}, Device::cuda(0));
        const ForceKernel forced(kernel);
        forward(copy.attention, copy.forward);
        EXPECT_EQ(copy.fetch(), "");
        EXPECT_EQ(first_wrong_value(problem, false), "") << "head_dim " << dim << ", scale " << scale;
      }
    }
  });
}

// Scores that rise by `rise` with every 64 keys, or fall; 0: logits of deviation 12.
Case ramp_case(DType dtype, std::int64_t dim, double rise, bool masked) {
  constexpr std::int64_t kQueries = 260, kKeys = 1100;
  CaseSpec spec{.dtype = dtype,
                .batch = 1,
                .q_length = kQueries,
                .k_length = kKeys,
                .q_heads = 1,
                .kv_heads = 1,
                .qk_dim = dim,
                .v_dim = dim};
  if (masked) spec.right = 0;
  if (rise == 0) spec.input_scale = 3.5;
  Case problem(spec);
  if (rise == 0) return problem;
  const double factor = std::abs(rise) * std::sqrt(static_cast<double>(dim)) / 8;
  for (std::int64_t i = 0; i < kQueries; ++i) reference::write(problem.forward.q, 0, i, 0, 0, factor);
  for (std::int64_t j = 0; j < kKeys; ++j) {
    const std::int64_t block = rise > 0 ? j / 64 : kKeys / 64 - j / 64;
    reference::write(problem.forward.k, 0, j, 0, 0, 8.0 * static_cast<double>(block));
  }
  return problem;
}

// Scores that outgrow every guess, rise or fall from block to block, or are huge:
// speculation, which the 16-bit kernels have, is a matter of speed alone. The lazy
// form has to agree with the oracle as well.
TEST_F(Gpu, NoInputOutwitsSpeculation) {
  const std::vector<std::int64_t> all_dims = {64, 128, 96, 256};
  const std::vector<double> all_rises = {45, -200, 0, 200, 12, -12};
  const auto dims = std::span(all_dims).first(static_cast<std::size_t>(scaled(4, 2, "widths of a head:")));
  const auto rises = std::span(all_rises).first(static_cast<std::size_t>(scaled(6, 3, "kinds of scores:")));
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    for (const std::int64_t dim : dims) {
      for (const bool masked : {false, true}) {
        std::vector<std::future<reference::Expected>> oracle;
        for (const double rise : rises) {
          oracle.push_back(
              std::async(std::launch::async, [=] { return expect(ramp_case(dtype, dim, rise, masked)); }));
        }
        for (std::size_t i = 0; i < rises.size(); ++i) {
          Case problem = ramp_case(dtype, dim, rises[i], masked);
          const reference::Expected expected = oracle[i].get();
          for (const std::string kernel : {"cuda.hopper", "cuda.flash2"}) {
            SCOPED_TRACE(kernel + " in " + name(dtype) + ", head_dim " + std::to_string(dim) + ", rise " +
                         std::to_string(rises[i]) + (masked ? ", causal" : ""));
            if (!serves(kernel, problem, Direction::forward)) continue;
            DeviceCase copy(problem.attention, problem.forward, {}, Device::cuda(0));
            const ForceKernel forced(kernel);
            for (const bool lazy : {false, true}) {
              const core::EnvironmentOverride maximum(&core::Environment::lazy_maximum,
                                                      lazy ? std::optional<std::string>("1") : std::nullopt);
              forward(copy.attention, copy.forward);
              EXPECT_EQ(copy.fetch(), "");
              const reference::TensorError out =
                  reference::compare("out", problem.forward.out, expected.exact.out, expected.model.out,
                                     reference::kForwardFactor, expected.rounding.forward.out);
              EXPECT_TRUE(out.ok) << (lazy ? "lazy: " : "") << out.reason;
              const reference::TensorError lse =
                  reference::compare("lse", problem.forward.lse, expected.exact.lse, expected.model.lse,
                                     reference::kForwardFactor, expected.rounding.forward.lse);
              EXPECT_TRUE(lse.ok) << (lazy ? "lazy: " : "") << lse.reason;
            }
          }
        }
      }
    }
  }
}

// Entries that fill the GPU together, and do not alone.
TEST_F(Gpu, RowsDoNotDependOnTheBatch) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    Case all({.dtype = dtype,
              .batch = 17,
              .q_length = 300,
              .k_length = 200,
              .qk_dim = 64,
              .v_dim = 64,
              .right = 0});
    reference::run(all, kernel);
    const ForceKernel forced(kernel);
    const Case alone(all.spec());
    for (const std::int64_t b : {0, 8, 16}) {
      auto entry = [&](const Tensor& tensor) { return slice(tensor, 0, b, 1); };
      auto entries = [&](const ForwardTensors& t) {
        return ForwardTensors{
            .q = entry(t.q), .k = entry(t.k), .v = entry(t.v), .out = entry(t.out), .lse = entry(t.lse)};
      };
      const ForwardTensors part = entries(alone.forward);
      DeviceCase copy(alone.attention, part, {}, Device::cuda(0));
      forward(copy.attention, copy.forward);
      EXPECT_EQ(copy.fetch(), "");
      EXPECT_EQ(first_difference(entries(all.forward), part), "") << "entry " << b;
    }
  });
}

// ---- errors -------------------------------------------------------------------------------------

TEST_F(Gpu, ThereIsNoHundredthGpu) {
  try {
    (void)plan({}, Shapes{}, Device::cuda(99));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("device is cuda:99"), std::string::npos) << error.what();
  }
}

#if TESSERA_HAVE_CUDA

using cuda::check;

std::size_t bytes_of(const Tensor& t) {
  return static_cast<std::size_t>(t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3]) * size_of(t.dtype);
}

// Where gradients of two runs are further apart than sums in another order make
// them, in words; empty: nowhere.
std::string largest_gradient_difference(const BackwardTensors& a, const BackwardTensors& b) {
  using T = BackwardTensors;
  for (const auto& [name, member] :
       {std::pair{"grad_q", &T::grad_q}, {"grad_k", &T::grad_k}, {"grad_v", &T::grad_v}}) {
    const std::vector<double> x = reference::values(a.*member), y = reference::values(b.*member);
    double largest = 0;
    for (const double value : x) largest = std::max(largest, std::abs(value));
    const double allowed = std::max(2 * reference::epsilon((a.*member).dtype), 1e-5) * largest;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::abs(x[i] - y[i]) <= allowed) continue;
      return std::string(name) + ", element " + std::to_string(i) + ": " + std::to_string(x[i]) + " and " +
             std::to_string(y[i]);
    }
  }
  return {};
}

// ---- determinism --------------------------------------------------------------------------------

int runs(int usual) {
  const char* text = std::getenv("TESSERA_GPU_RUNS");
  return text == nullptr ? usual : std::atoi(text);
}

// Memory of the host that the GPU writes to directly.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::size_t bytes) { check(cudaMallocHost(&data_, bytes), "cudaMallocHost"); }
  ~PinnedMemory() { cudaFreeHost(data_); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

// Every run of a call leaves the same bits in its results, which are NaN before it.
// Tensors without gaps.
void expect_the_same_every_time(const std::vector<Tensor>& results, const std::function<void()>& call) {
  std::size_t bytes = 0;
  for (const Tensor& tensor : results) bytes += bytes_of(tensor);
  const PinnedMemory first(bytes), again(bytes);
  auto run_into = [&](std::byte* copy) {
    for (const Tensor& tensor : results) {
      check(cudaMemsetAsync(tensor.data, 0xFF, bytes_of(tensor), nullptr), "cudaMemsetAsync");
    }
    call();
    for (const Tensor& tensor : results) {
      check(cudaMemcpyAsync(copy, tensor.data, bytes_of(tensor), cudaMemcpyDeviceToHost, nullptr),
            "cudaMemcpyAsync");
      copy += bytes_of(tensor);
    }
    cuda::synchronize(0);
  };
  run_into(first.data());
  for (int run = 0; run < runs(50); ++run) {
    run_into(again.data());
    ASSERT_EQ(std::memcmp(first.data(), again.data(), bytes), 0) << "run " << run;
  }
}

TEST_F(Gpu, ForwardIsTheSameEveryTime) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    Case problem({.dtype = dtype, .q_length = 257, .k_length = 300, .qk_dim = 64, .v_dim = 64, .right = 0});
    DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
    const ForceKernel forced(kernel);
    expect_the_same_every_time({copy.forward.out, copy.forward.lse},
                               [&] { forward(copy.attention, copy.forward); });
    EXPECT_EQ(copy.fetch(), "");
  });
}

TEST_F(Gpu, DeterministicBackwardIsTheSameEveryTime) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    Case problem({.dtype = dtype, .q_length = 257, .k_length = 300, .qk_dim = 64, .v_dim = 64, .right = 0});
    problem.attention.deterministic = true;
    if (!serves(kernel, problem, Direction::backward)) return;
    DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
    const ForceKernel forced(kernel);
    forward(copy.attention, copy.forward);
    expect_the_same_every_time({copy.backward.grad_q, copy.backward.grad_k, copy.backward.grad_v},
                               [&] { backward(copy.attention, copy.backward); });
    EXPECT_EQ(copy.fetch(), "");
  });
}

// Where dQ is added up in any order, dK and dV are the same all the same, and dQ is
// right every time.
TEST_F(Gpu, BackwardAgainAndAgain) {
  for (const DType dtype : {DType::fp16, DType::bf16}) {
    for (const std::int64_t dim : {64, 128}) {
      for (const double dropout : {0.0, 0.2}) {
        Case problem({.dtype = dtype,
                      .q_length = 700,
                      .k_length = 500,
                      .q_heads = 4,
                      .kv_heads = 2,
                      .qk_dim = dim,
                      .v_dim = dim,
                      .right = 40,
                      .dropout = dropout});
        if (!serves("cuda.hopper", problem, Direction::backward)) continue;
        SCOPED_TRACE(describe(problem.spec()));
        Case first(problem.spec());
        ASSERT_TRUE(run_where_served(first, "cuda.hopper"));
        DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
        forward(copy.attention, copy.forward);
        const ForceKernel forced("cuda.hopper");
        expect_the_same_every_time({copy.backward.grad_k, copy.backward.grad_v}, [&] {
          const Tensor& grad_q = copy.backward.grad_q;
          check(cudaMemsetAsync(grad_q.data, 0xFF, bytes_of(grad_q), nullptr), "cudaMemsetAsync");
          backward(copy.attention, copy.backward);
        });
        EXPECT_EQ(copy.fetch(), "");
        EXPECT_EQ(largest_gradient_difference(first.backward, problem.backward), "");
      }
    }
  }
}

// ---- errors, streams, threads, graphs -----------------------------------------------------------

void host_function() {}

// A launch that CUDA refuses is an error with its words, and the next call works.
TEST_F(Gpu, AFailedLaunchLeavesTheLibraryUsable) {
  int argument = 0;
  try {
    cuda::launch({.kernel = reinterpret_cast<const void*>(&host_function), .arguments = &argument},
                 "no kernel", 1, 32, 0, nullptr);
    FAIL() << "the launch was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device_failure);
    EXPECT_NE(std::string(error.what()).find("no kernel: cudaError"), std::string::npos) << error.what();
  }
  for_each_lane([](const std::string& kernel, DType dtype) {
    const reference::Verdict verdict =
        reference::verify({.dtype = dtype, .q_length = 40, .k_length = 40}, kernel);
    EXPECT_TRUE(verdict.ok) << verdict.message;
  });
}

// The inputs arrive on the stream, late; the result is taken from the stream. A
// kernel on any other stream would see the zeros that were there before.
TEST_F(Gpu, TheCallersStreamIsHonoured) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    Case problem({.dtype = dtype, .q_length = 100, .k_length = 100, .qk_dim = 64, .v_dim = 64});
    DeviceCase expected(problem.attention, problem.forward, problem.backward, Device::cuda(0));
    DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
    const ForceKernel forced(kernel);
    forward(expected.attention, expected.forward);
    cuda::synchronize(0);

    const Tensor* sources[] = {&expected.forward.q, &expected.forward.k, &expected.forward.v};
    const Tensor* inputs[] = {&copy.forward.q, &copy.forward.k, &copy.forward.v};
    constexpr std::size_t kLarge = std::size_t{1} << 30;
    const cuda::DeviceBuffer delay(0, kLarge), result(0, bytes_of(copy.forward.out));
    for (const Tensor* input : inputs) check(cudaMemset(input->data, 0, bytes_of(*input)), "cudaMemset");
    cuda::synchronize(0);
    const Stream stream;
    for (int i = 0; i < 10; ++i) check(cudaMemsetAsync(delay.data(), i, kLarge, stream), "cudaMemsetAsync");
    for (int i = 0; i < 3; ++i) {
      check(cudaMemcpyAsync(inputs[i]->data, sources[i]->data, bytes_of(*inputs[i]), cudaMemcpyDeviceToDevice,
                            stream),
            "cudaMemcpyAsync");
    }
    forward(copy.attention, copy.forward, {.stream = stream});
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady) << "the call waited for the stream";
    check(cudaMemcpyAsync(result.data(), copy.forward.out.data, result.bytes(), cudaMemcpyDeviceToDevice,
                          stream),
          "cudaMemcpyAsync");
    stream.wait();
    std::vector<std::byte> got(result.bytes()), wanted(result.bytes());
    result.download(got.data(), got.size());
    cuda::download(0, expected.forward.out.data, wanted.data(), wanted.size());
    EXPECT_TRUE(got == wanted);
  });
}

// Kernels may begin beside the one before them in the stream. Queries of a call are
// the output of the call before; the result is that of calls that are waited for.
TEST_F(Gpu, ACallReadsWhatTheOneBeforeItWrote) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    constexpr int kCalls = 40;
    Case problem({.dtype = dtype, .q_length = 700, .k_length = 700, .qk_dim = 64, .v_dim = 64, .right = 0});
    const ForceKernel forced(kernel);
    std::vector<std::byte> results[2];
    for (const bool wait : {true, false}) {
      DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
      const Stream stream;
      ForwardTensors tensors = copy.forward;
      for (int call = 0; call < kCalls; ++call) {
        forward(copy.attention, tensors, {.stream = stream});
        if (wait) stream.wait();
        std::swap(tensors.q, tensors.out);
      }
      stream.wait();
      std::vector<std::byte>& result = results[wait];
      result.resize(bytes_of(tensors.q));
      cuda::download(0, tensors.q.data, result.data(), result.size());
    }
    EXPECT_TRUE(results[0] == results[1]);
  });
}

TEST_F(Gpu, ThreadsAndStreamsSideBySide) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    constexpr int kThreads = 8, kCalls = 10;
    const CaseSpec spec{
        .dtype = dtype, .q_length = 200, .k_length = 230, .qk_dim = 64, .v_dim = 64, .right = 0};
    Case expected(spec);
    reference::run(expected, kernel);
    const ForceKernel forced(kernel);
    std::vector<std::string> problems(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        try {
          Case problem(spec);
          DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
          const Stream stream;
          for (int call = 0; call < kCalls; ++call) forward(copy.attention, copy.forward, {.stream = stream});
          stream.wait();
          std::string& found = problems[static_cast<std::size_t>(t)];
          found = copy.fetch();
          found += first_difference(expected.forward, problem.forward);
        } catch (const std::exception& error) {
          problems[static_cast<std::size_t>(t)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& problem : problems) EXPECT_EQ(problem, "");
  });
}

// The backward of every kernel, by several threads on streams of their own:
// workspaces and counters do not meet.
TEST_F(Gpu, BackwardOfThreadsAndStreamsSideBySide) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    constexpr int kThreads = 8, kCalls = 10;
    const CaseSpec spec{.dtype = dtype,
                        .q_length = 300,
                        .k_length = 430,
                        .kv_heads = 2,
                        .qk_dim = 64,
                        .v_dim = 64,
                        .right = 0};
    Case expected(spec);
    if (!serves(kernel, expected, Direction::backward)) return;
    reference::run(expected, kernel);
    const ForceKernel forced(kernel);
    std::vector<std::string> problems(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::string& found = problems[static_cast<std::size_t>(t)];
        try {
          Case problem(spec);
          DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
          const Stream stream;
          forward(copy.attention, copy.forward, {.stream = stream});
          for (int call = 0; call < kCalls; ++call)
            backward(copy.attention, copy.backward, {.stream = stream});
          stream.wait();
          found = copy.fetch();
          found += largest_gradient_difference(expected.backward, problem.backward);
        } catch (const std::exception& error) {
          found = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& problem : problems) EXPECT_EQ(problem, "");
  });
}

// Forward and backward are captured with the library's own workspace, and replayed;
// a block mask reaches the GPU while the capture runs.
TEST_F(Gpu, GraphsReplay) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    for (const reference::BlockKind blocks : {reference::BlockKind::none, reference::BlockKind::random}) {
      Case expected(
          {.dtype = dtype, .q_length = 150, .k_length = 150, .qk_dim = 64, .v_dim = 64, .blocks = blocks});
      if (!serves(kernel, expected, Direction::forward)) continue;
      const bool with_backward = serves(kernel, expected, Direction::backward);
      expected.attention.deterministic = true;
      const bool same_bits = serves(kernel, expected, Direction::backward);
      expected.attention.deterministic = same_bits;
      run_where_served(expected, kernel);
      Case problem(expected.spec());
      problem.attention.deterministic = same_bits;
      DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
      const ForceKernel forced(kernel);
      const Stream stream;
      const Graph graph(stream, [&] {
        forward(copy.attention, copy.forward, {.stream = stream});
        if (with_backward) backward(copy.attention, copy.backward, {.stream = stream});
      });
      for (int replay = 0; replay < 3; ++replay) {
        problem.poison();
        graph.replay(stream);
        EXPECT_EQ(copy.fetch(), "");
        EXPECT_EQ(first_difference(expected.forward, problem.forward), "");
        if (same_bits) {
          EXPECT_EQ(first_difference(expected.backward, problem.backward), "");
        } else if (with_backward) {
          EXPECT_EQ(largest_gradient_difference(expected.backward, problem.backward), "");
        }
      }
    }
  });
}

// Seed and offset in device memory: every replay draws what a call with those numbers draws.
TEST_F(Gpu, GraphsDrawNewDropoutBits) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    Case problem({.dtype = dtype,
                  .q_length = 90,
                  .k_length = 90,
                  .qk_dim = 32,
                  .v_dim = 32,
                  .dropout = 0.3,
                  .dropout_state = true});
    if (!serves(kernel, problem, Direction::forward)) return;
    DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
    const ForceKernel forced(kernel);
    const Stream stream;
    const Graph graph(stream, [&] { forward(copy.attention, copy.forward, {.stream = stream}); });
    for (std::uint64_t step = 0; step < 3; ++step) {
      const std::uint64_t state[2] = {123 + step, 7 * step};
      check(cudaMemcpy(const_cast<std::uint64_t*>(copy.attention.dropout.state), state, sizeof state,
                       cudaMemcpyHostToDevice),
            "cudaMemcpy");
      cuda::synchronize(0);  // the copy may return before the numbers have arrived
      graph.replay(stream);
      copy.fetch();
      Case fresh(problem.spec());
      fresh.attention.dropout.state = nullptr;
      fresh.attention.dropout.seed = state[0];
      fresh.attention.dropout.offset = state[1];
      DeviceCase direct(fresh.attention, fresh.forward, fresh.backward, Device::cuda(0));
      forward(direct.attention, direct.forward);
      direct.fetch();
      EXPECT_EQ(first_difference(fresh.forward, problem.forward), "") << "step " << step;
    }
  });
}

// ---- memory -------------------------------------------------------------------------------------

class CountingPool final : public Allocator {
 public:
  void* allocate(std::size_t bytes, std::size_t alignment, void* stream) override {
    asked += bytes;
    return empty ? nullptr : pool_.allocate(bytes, alignment, stream);
  }
  void deallocate(void* data, std::size_t bytes, std::size_t alignment, void* stream) override {
    returned += bytes;
    pool_.deallocate(data, bytes, alignment, stream);
  }
  std::size_t asked = 0, returned = 0;
  bool empty = false;

 private:
  cuda::StreamAllocator pool_{0};
};

TEST_F(Gpu, WorkspaceIsWhatThePlanDeclares) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    for (const std::int64_t length : {1, 100, 1000}) {
      Case problem({.dtype = dtype, .q_length = length, .k_length = length + 5, .qk_dim = 48, .v_dim = 64});
      const ForceKernel forced(kernel);
      DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
      const bool with_backward = serves(kernel, problem, Direction::backward);
      const Plan forward_plan = plan(copy.attention, copy.forward);
      std::size_t most = forward_plan.workspace_bytes;
      CountingPool pool;
      forward(copy.attention, copy.forward, {.allocator = &pool});
      EXPECT_EQ(pool.asked, forward_plan.workspace_bytes);
      if (with_backward) {
        const Plan backward_plan = plan(copy.attention, copy.backward);
        most = std::max(most, backward_plan.workspace_bytes);
        pool.asked = pool.returned = 0;
        backward(copy.attention, copy.backward, {.allocator = &pool});
        EXPECT_EQ(pool.asked, backward_plan.workspace_bytes);
      }
      EXPECT_EQ(pool.returned, pool.asked);
      EXPECT_EQ(copy.fetch(), "");

      // Lent, exactly as large, full of NaN, between guard bands.
      if (most == 0) continue;
      constexpr std::size_t kGuard = 4096;
      cuda::DeviceBuffer lent(0, kGuard + most + kGuard);
      const std::vector<std::byte> poison(lent.bytes(), std::byte{0xFF});
      lent.upload(poison.data(), poison.size());
      const Execution execution{.workspace = {lent.data() + kGuard, most}};
      Case again(problem.spec());
      DeviceCase lends(again.attention, again.forward, again.backward, Device::cuda(0));  // results are NaN
      forward(lends.attention, lends.forward, execution);
      if (with_backward) backward(lends.attention, lends.backward, execution);
      EXPECT_EQ(lends.fetch(), "");
      EXPECT_EQ(first_difference(problem.forward, again.forward), "");
      if (with_backward) {
        EXPECT_EQ(largest_gradient_difference(problem.backward, again.backward), "");
      }
      std::vector<std::byte> after(lent.bytes());
      lent.download(after.data(), after.size());
      EXPECT_TRUE(std::equal(after.begin(), after.begin() + kGuard, poison.begin()));
      EXPECT_TRUE(std::equal(after.end() - kGuard, after.end(), poison.begin()));

      CountingPool none;
      none.empty = true;
      if (forward_plan.workspace_bytes > 0) {
        EXPECT_THROW(forward(copy.attention, copy.forward, {.allocator = &none}), Error);
      }
      copy.fetch();
    }
  });
}

// A tensor of more than 2^31 elements: rows beyond that are as right as the first ones.
TEST_F(Gpu, MoreThanTwoToThe31Elements) {
  constexpr std::int64_t kHeads = 8, kDim = 64, kKeys = 64,
                         kRows = (std::int64_t{1} << 31) / (kHeads * kDim) + 100;
  constexpr std::int64_t kSample = 64;
  std::size_t available = 0, total = 0;
  check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  for_each_lane([&](const std::string& kernel, DType dtype) {
    const Extents large{1, kRows, kHeads, kDim};
    const Tensor shape = tensor(static_cast<void*>(nullptr), dtype, large);
    if (available < 2 * bytes_of(shape) + (std::size_t{1} << 30)) {
      std::cout << "note: " << kernel << " in " << name(dtype)
                << " skipped: the GPU has too little free memory\n";
      return;
    }
    Case sample({.dtype = dtype,
                 .batch = 1,
                 .q_length = kSample,
                 .k_length = kKeys,
                 .q_heads = kHeads,
                 .kv_heads = kHeads,
                 .qk_dim = kDim,
                 .v_dim = kDim});
    const reference::Expected expected = expect(sample);
    DeviceCase inputs(sample.attention, sample.forward, sample.backward, Device::cuda(0));
    const cuda::DeviceBuffer q(0, bytes_of(shape)), out(0, bytes_of(shape));
    check(cudaMemset(q.data(), 0, q.bytes()), "cudaMemset");
    const std::size_t rows = bytes_of(sample.forward.q);
    std::byte* last = q.data() + q.bytes() - rows;
    check(cudaMemcpy(last, inputs.forward.q.data, rows, cudaMemcpyDeviceToDevice), "cudaMemcpy");
    ForwardTensors tensors = inputs.forward;
    tensors.q = tensor(static_cast<void*>(q.data()), dtype, large, Device::cuda(0));
    tensors.out = tensor(static_cast<void*>(out.data()), dtype, large, Device::cuda(0));
    tensors.lse = {};
    const ForceKernel forced(kernel);
    try {
      forward(inputs.attention, tensors);
    } catch (const Error& error) {
      // The standard algorithm holds all scores: there may be no memory for them.
      ASSERT_TRUE(error.code() == ErrorCode::out_of_memory || error.code() == ErrorCode::unsupported)
          << error.what();
      std::cout << "note: " << kernel << " in " << name(dtype) << ": " << error.what() << '\n';
      return;
    }
    cuda::download(0, out.data() + out.bytes() - rows, sample.forward.out.data, rows);
    const reference::TensorError error =
        reference::compare("out", sample.forward.out, expected.exact.out, expected.model.out,
                           reference::kForwardFactor, expected.rounding.forward.out);
    EXPECT_TRUE(error.ok) << error.reason;
  });
}

// Several threads use a mask for the first time at once, and it outlives none of its copies.
TEST_F(Gpu, BlockMasksReachTheGpuOnce) {
  for (int round = 0; round < 20; ++round) {
    const BlockMask mask =
        BlockMask::random({.q_length = 4096, .k_length = 4096, .block_q = 64, .block_k = 64}, 0.3);
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) threads.emplace_back([&mask] { mask.prepare(Device::cuda(0)); });
    for (std::thread& thread : threads) thread.join();
  }
  std::size_t before = 0, after = 0, total = 0;
  check(cudaMemGetInfo(&before, &total), "cudaMemGetInfo");
  for (int round = 0; round < 200; ++round) {
    BlockMask::random({.q_length = 16384, .k_length = 16384, .block_q = 32, .block_k = 32}, 0.5)
        .prepare(Device::cuda(0));
  }
  check(cudaMemGetInfo(&after, &total), "cudaMemGetInfo");
  EXPECT_LE(before, after + (std::size_t{8} << 20)) << "copies of masks that are gone keep their memory";
}

#endif

}  // namespace
}  // namespace tessera::test
