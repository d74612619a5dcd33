// A CPU kernel decides once. Its run obeys the choice and not the environment, which may change in
// between, and takes no more workspace than the choice names.
#include "cpu/kernels.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "api/problem_of.h"
#include "core/base/environment.h"
#include "cpu/machine/float_environment.h"
#include "cpu/machine/target.h"
#include "cpu/machine/thread_pool.h"
#include "reference/cases/case.h"
#include "registry/registry.h"
#include "tessera/plan.h"

namespace tessera::cpu {
namespace {

using core::Choice;
using core::Kernel;

// Other values for all that the environment decides.
struct OtherEnvironment {
  core::EnvironmentOverride target{&core::Environment::target, name(Target::portable)};
  core::EnvironmentOverride block_k{&core::Environment::block_k, "32"};
};

std::vector<reference::CaseSpec> specs() {
  std::vector<reference::CaseSpec> all;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const reference::CaseSpec plain{
        .dtype = dtype, .batch = 1, .q_length = 300, .k_length = 700, .q_heads = 6, .kv_heads = 2};
    reference::CaseSpec decode = plain, rich = plain, packed = plain;
    decode.q_length = 3;
    rich.right = 0, rich.softcap = 5, rich.bias = reference::BiasKind::row, rich.dropout = 0.2;
    rich.visible = reference::VisibleKind::full;
    packed.batch = 5, packed.packed = true;
    for (const reference::CaseSpec& spec : {plain, decode, rich, packed}) all.push_back(spec);
  }
  return all;
}

// The bytes of everything that a call writes.
template <typename... Tensors>
std::string bytes_of(const Tensors&... tensors) {
  std::string bytes;
  auto add = [&](const Tensor& tensor) {
    if (tensor.data == nullptr) return;
    std::size_t size = size_of(tensor.dtype);
    for (const std::int64_t extent : tensor.shape) size *= static_cast<std::size_t>(extent);
    bytes.append(static_cast<const char*>(tensor.data), size);
  };
  (add(tensors), ...);
  return bytes;
}

std::string results_of(const reference::Case& problem, Direction direction) {
  const BackwardTensors& b = problem.backward;
  return direction == Direction::forward ? bytes_of(problem.forward.out, problem.forward.lse)
                                         : bytes_of(b.grad_q, b.grad_k, b.grad_v, b.grad_bias);
}

// Runs a choice in workspace of its size, between bytes that must survive.
void run(const Kernel& kernel, const core::Problem& p, const Choice& choice) {
  constexpr std::size_t kMargin = 4096;
  constexpr char kMark = 0x5B;
  std::vector<char> memory(choice.workspace_bytes + 2 * kMargin + core::kWorkspaceAlignment, kMark);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data()) + kMargin;
  const std::size_t begin =
      kMargin + (core::kWorkspaceAlignment - address % core::kWorkspaceAlignment) % core::kWorkspaceAlignment;
  kernel.run(p, choice, {reinterpret_cast<std::byte*>(memory.data() + begin), &ThreadPool::instance()});
  for (std::size_t i = 0; i < memory.size(); ++i) {
    if (i >= begin && i < begin + choice.workspace_bytes) continue;
    ASSERT_EQ(memory[i], kMark) << "byte " << static_cast<std::int64_t>(i - begin) << " of a workspace of "
                                << choice.workspace_bytes;
  }
}

void expect_obedience(const Kernel& kernel, const reference::CaseSpec& spec, int workers) {
  const DefaultFloats floats;
  reference::Case problem(spec);
  if (kernel.direction == Direction::backward) forward(problem.attention, problem.forward);
  const core::Problem p = kernel.direction == Direction::forward
                              ? api::problem_of(problem.attention, problem.forward, api::Data::required)
                              : api::problem_of(problem.attention, problem.backward, api::Data::required);
  const std::optional<Choice> choice = kernel.choose(p, workers, {});
  if (!choice) return;
  EXPECT_LE(choice->workers, workers);
  EXPECT_GE(choice->workers, 1);
  const std::string details = kernel.details(p, *choice);
  run(kernel, p, *choice);
  const std::string results = results_of(problem, kernel.direction);

  const OtherEnvironment other;
  const Tensor& first =
      kernel.direction == Direction::forward ? problem.forward.out : problem.backward.grad_q;
  std::memset(first.data, 0x7F, size_of(first.dtype));  // so that a second run that does nothing is seen
  EXPECT_EQ(kernel.details(p, *choice), details);
  run(kernel, p, *choice);
  EXPECT_TRUE(results_of(problem, kernel.direction) == results);
}

TEST(CpuKernels, RunObeysItsChoice) {
  int run_kernels = 0;
  for (const Kernel& kernel : kernels()) {
    for (const reference::CaseSpec& spec : specs()) {
      for (const int workers : {1, 3}) {
        SCOPED_TRACE(std::string(kernel.name) + " " + name(kernel.direction) + " " + describe(spec));
        expect_obedience(kernel, spec, workers);
        ++run_kernels;
      }
    }
  }
  EXPECT_GT(run_kernels, 50);
}

// A plan shows the choice that a run takes.
TEST(CpuKernels, APlanShowsTheChoice) {
  for (const reference::CaseSpec& spec : specs()) {
    const reference::Case problem(spec);
    const Plan shown = plan(problem.attention, problem.forward, {.threads = 3});
    const core::Problem p = api::problem_of(problem.attention, problem.forward, api::Data::required);
    const auto [kernel, choice] = registry::select(registry::kernels(), p, 3, "");
    EXPECT_EQ(shown.kernel, kernel->name);
    EXPECT_EQ(shown.threads, choice.workers);
    EXPECT_EQ(shown.block_q, choice.block_q);
    EXPECT_EQ(shown.block_k, choice.block_k);
    EXPECT_EQ(shown.workspace_bytes, choice.workspace_bytes);
    EXPECT_EQ(shown.details, kernel->details(p, choice));
  }
}

}  // namespace
}  // namespace tessera::cpu
