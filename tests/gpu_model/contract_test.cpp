// The kernels for GPUs in the model of a GPU, against the fp64 oracle: every case of `tessera
// verify`, and long ones that turn every ring of buffers over.
//
// TESSERA_GPU_MODEL_SEEDS=4 plays each case with seeds 0 to 3; the default plays it with one of
// them, another one for the next case. A failure names case and seed: TESSERA_GPU_MODEL_SEED=3
// TESSERA_GPU_MODEL_CASE="packed, window" plays it again, by any part of the case's description.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "gpu_model/machine/machine.h"
#include "reference/oracle/elements.h"
#include "support/gpu_cases.h"

namespace tessera::test {
namespace {

constexpr unsigned kSeeds = 4;

std::vector<unsigned> seeds_of(std::size_t index) {
  auto number = [](const char* text) { return static_cast<unsigned>(std::atoi(text)); };
  if (const char* one = std::getenv("TESSERA_GPU_MODEL_SEED")) return {number(one)};
  const char* count = std::getenv("TESSERA_GPU_MODEL_SEEDS");
  if (count == nullptr) return {static_cast<unsigned>(index) % kSeeds};
  std::vector<unsigned> all(number(count));
  std::iota(all.begin(), all.end(), 0U);
  return all;
}

bool wanted(const CaseSpec& spec) {
  const char* part = std::getenv("TESSERA_GPU_MODEL_CASE");
  return part == nullptr || describe(spec).find(part) != std::string::npos;
}

// Several steps and tiles of every instance: full, cut by masks, packed, and with scores that
// outgrow what speculation allows.
std::vector<CaseSpec> long_cases(DType dtype) {
  std::vector<CaseSpec> specs;
  for (const std::int64_t dim : {64, 96, 128, 192, 256}) {
    const CaseSpec spec{.dtype = dtype,
                        .batch = 1,
                        .q_length = 300,
                        .k_length = 420,
                        .q_heads = 2,
                        .kv_heads = 1,
                        .qk_dim = dim,
                        .v_dim = dim == 192 ? 128 : dim};
    auto add = [&](const char* name, auto&& change) {
      CaseSpec changed = spec;
      changed.name = name, changed.feature = "long rows";
      change(changed);
      specs.push_back(changed);
    };
    add("full", [](CaseSpec&) {});
    add("peaked, causal", [](CaseSpec& c) { c.right = 0, c.input_scale = 12, c.q_length = c.k_length; });
    add("packed, window",
        [](CaseSpec& c) { c.packed = true, c.batch = 3, c.left = 90, c.right = 20, c.k_length = 250; });
  }
  return specs;
}

const std::vector<CaseSpec>& cases(DType dtype) {
  static std::map<DType, std::vector<CaseSpec>> all;
  std::vector<CaseSpec>& specs = all[dtype];
  if (!specs.empty()) return specs;
  specs = reference::feature_matrix(dtype);
  for (const CaseSpec& spec : long_cases(dtype)) specs.push_back(spec);
  return specs;
}

const reference::Expected& expected(DType dtype, std::size_t index) {
  static std::map<std::pair<DType, std::size_t>, reference::Expected> all;
  auto found = all.find({dtype, index});
  if (found == all.end())
    found = all.emplace(std::pair(dtype, index), expect(Case(cases(dtype)[index]))).first;
  return found->second;
}

void fill_with(const Tensor& tensor, const std::vector<double>& values) {
  for (std::size_t e = 0; e < values.size(); ++e)
    reference::write(tensor, 0, 0, 0, static_cast<std::int64_t>(e), values[e]);
}

// One direction alone: the backward pass gets the oracle's output. Returns what is wrong.
std::string run(const std::string& kernel, Case& problem, Direction direction,
                const reference::Expected& exact) {
  problem.poison();
  if (direction == Direction::backward) {
    fill_with(problem.forward.out, exact.exact.out);
    fill_with(problem.forward.lse, exact.exact.lse);
  }
  DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
  const ForceKernel forced(kernel);
  try {
    if (direction == Direction::forward) forward(copy.attention, copy.forward);
    else backward(copy.attention, copy.backward);
  } catch (const Error& error) {
    return error.what();
  }
  std::string wrong = copy.fetch();
  for (const reference::TensorError& error : judge(problem, exact).tensors) {
    if (error.tensor.starts_with("grad") != (direction == Direction::backward) || error.ok) continue;
    wrong += (wrong.empty() ? "" : "; ") + error.tensor + ": " + error.reason;
  }
  return wrong;
}

class ContractOnModel : public testing::TestWithParam<std::tuple<std::string, DType, Direction>> {};

TEST_P(ContractOnModel, AgreesWithOracle) {
  const auto& [kernel, dtype, direction] = GetParam();
  gpu_model::set_gpu(90, 2);
  int done = 0;
  for (std::size_t i = 0; i < cases(dtype).size(); ++i) {
    Case problem(cases(dtype)[i]);
    if (!wanted(cases(dtype)[i]) || !serves(kernel, problem, direction)) continue;
    for (const unsigned seed : seeds_of(i)) {
      gpu_model::set_seed(seed);
      EXPECT_EQ(run(kernel, problem, direction, expected(dtype, i)), "")
          << describe(cases(dtype)[i]) << ", seed " << seed;
      ++done;
    }
  }
  if (done == 0) GTEST_SKIP() << kernel << " does not support " << name(dtype) << " in this direction";
  const gpu_model::Counts counts = gpu_model::counts();
  std::cout << "note: " << kernel << " " << name(dtype)
            << (direction == Direction::forward ? " forward" : " backward") << ": " << done
            << " runs; so far " << counts.launches << " launches, " << counts.blocks << " thread blocks, "
            << counts.switches << " switches\n";
}

INSTANTIATE_TEST_SUITE_P(Kernels, ContractOnModel,
                         testing::Combine(testing::ValuesIn(gpu_kernels()),
                                          testing::Values(DType::fp32, DType::fp16, DType::bf16),
                                          testing::Values(Direction::forward, Direction::backward)),
                         [](const auto& info) {
                           std::string text = std::get<0>(info.param).substr(5);
                           return text + "_" + name(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) == Direction::forward ? "_forward" : "_backward");
                         });

}  // namespace
}  // namespace tessera::test
