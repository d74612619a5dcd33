#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "cuda/common/host/gpus.h"
#include "cuda/common/host/memory.h"
#include "lab/baselines/baseline.h"
#include "lab/measure/machine/counting_allocator.h"
#include "lab/measure/machine/gpu_timer.h"
#include "lab/measure/measure.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

// The loss sum(out * grad_out) changes with each input as its gradient says.
TEST(Linformer, GradientsAreThoseOfItsForward) {
  Problem problem;
  problem.seq = 24, problem.heads = 2, problem.dim = 8;
  const Operation operation(problem);
  Tensors tensors(operation.shapes(), Direction::backward, Device::cpu());
  tensors.allocate(5);
  CountingAllocator allocator(std::size_t{1} << 30);
  const Execution execution{.allocator = &allocator};
  const auto linformer = make_baseline("linformer");
  try {
    (void)linformer->plan(operation, tensors, Direction::forward, execution);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const BackwardTensors t = tensors.backward();
  const std::size_t count = 24 * 2 * 8;
  auto loss = [&] {
    linformer->run(operation, tensors, Direction::forward, execution);
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sum += double{static_cast<const float*>(t.out.data)[i]} * static_cast<const float*>(t.grad_out.data)[i];
    }
    return sum;
  };
  loss();
  linformer->run(operation, tensors, Direction::backward, execution);
  for (const auto& [input, gradient] :
       {std::pair{t.k, t.grad_k}, std::pair{t.v, t.grad_v}, std::pair{t.q, t.grad_q}}) {
    float& element = static_cast<float*>(const_cast<void*>(static_cast<const void*>(input.data)))[37];
    const float before = element;
    constexpr float kStep = 0.05F;
    element = before + kStep;
    const double above = loss();
    element = before - kStep;
    const double below = loss();
    element = before;
    const double slope = static_cast<const float*>(gradient.data)[37];
    EXPECT_NEAR((above - below) / (2 * double{kStep}), slope, 0.02 * std::abs(slope) + 2e-3);
  }
}

// The same numbers from the same seeds, in fp32; products are summed in another order.
TEST(Linformer, AGpuComputesWhatTheCpuDoes) {
  if (const std::string reason = cuda::unusable(0); !reason.empty()) GTEST_SKIP() << reason;
  Problem problem;
  problem.batch = 2, problem.seq = 320, problem.heads = 2, problem.dim = 16;
  const Operation operation(problem);
  const auto bytes = static_cast<std::size_t>(2 * 320 * 2 * 16) * sizeof(float);
  auto results = [&](Device device, MeasuringAllocator& allocator, void* stream) {
    Tensors tensors(operation.shapes(), Direction::backward, device);
    tensors.allocate(5);
    const Execution execution{.stream = stream, .allocator = &allocator};
    const auto linformer = make_baseline("linformer");
    (void)linformer->plan(operation, tensors, Direction::backward, execution);
    linformer->run(operation, tensors, Direction::forward, execution);
    linformer->run(operation, tensors, Direction::backward, execution);
    const BackwardTensors t = tensors.backward();
    std::vector<std::vector<float>> all;
    for (const Tensor* one : {&t.out, &t.grad_q, &t.grad_k, &t.grad_v}) {
      all.emplace_back(bytes / sizeof(float));
      if (device.type == DeviceType::cuda) cuda::download(0, one->data, all.back().data(), bytes);
      else std::memcpy(all.back().data(), one->data, bytes);
    }
    return all;
  };
  CountingAllocator host(std::size_t{1} << 30);
  GpuTimer timer(0);
  GpuPool pool(0, std::size_t{1} << 30);
  std::vector<std::vector<float>> expected;
  try {
    expected = results(Device::cpu(), host, nullptr);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();  // no OpenBLAS
  }
  const auto actual = results(Device::cuda(0), pool, timer.stream());
  for (std::size_t t = 0; t < actual.size(); ++t) {
    double largest = 0;
    for (const float x : expected[t]) largest = std::max(largest, std::abs(double{x}));
    EXPECT_GT(largest, 0);
    for (std::size_t i = 0; i < actual[t].size(); ++i)
      ASSERT_NEAR(actual[t][i], expected[t][i], 1e-4 * largest) << "tensor " << t << ", element " << i;
  }
}

TEST(Linformer, WithoutAGpuTheRowSaysWhy) {
  if (cuda::unusable(0).empty()) GTEST_SKIP() << "there is a GPU here";
  Problem problem;
  problem.seq = 24, problem.heads = 2, problem.dim = 8;
  problem.device = Device::cuda(0);
  const auto rows = measure(problem, {{.baseline = "linformer"}}, {.memory_budget = std::size_t{1} << 30},
                            [](double) { return true; });
  ASSERT_TRUE(rows && rows->size() == 1);
  EXPECT_EQ(rows->front().status, Status::unsupported);
  EXPECT_NE(rows->front().reason.find("cuda:0"), std::string::npos) << rows->front().reason;
}

}  // namespace
}  // namespace tessera::lab
