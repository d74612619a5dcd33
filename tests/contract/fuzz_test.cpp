// Random configurations of the whole contract against the fp64 oracle. One number
// is a configuration: problem, memory layout, former contents, threads, workspace
// and instruction set; every kernel computes it.
//
//   TESSERA_FUZZ_SEED=123 fuzz_test
//       replays configuration 123 (on the same kind of CPU)
//   TESSERA_FUZZ_SEED=5000 TESSERA_FUZZ_COUNT=100000 fuzz_test
//       looks for new failures
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <random>
#include <sstream>

#include "cpu/machine/target.h"
#include "reference/tolerance/check.h"
#include "support/build.h"
#include "support/kernels.h"
#include "support/random_spec.h"
#include "support/tensors.h"
#include "tessera/error.h"
#include "tessera/plan.h"

namespace tessera::test {
namespace {

using reference::Case;
using reference::CaseSpec;
using reference::Expected;
using reference::ForceKernel;
using reference::Verdict;

// How a problem is computed; none of it may show in the result.
struct Circumstances {
  MemoryLayout layout{};
  Fill outputs = Fill::nan;
  int threads = 0;
  bool guarded_workspace = false;
  std::optional<cpu::Target> target{};  // none: the best one
};

Circumstances random_circumstances(std::uint64_t seed, const CaseSpec& spec) {
  std::mt19937_64 engine(seed ^ 0xD1B54A32D192ED03);
  auto below = [&](int end) { return static_cast<int>(engine() % static_cast<std::uint64_t>(end)); };
  Circumstances c;
  if (below(3) != 0) {
    const int dimensions = spec.qk_dim == 1 && spec.v_dim == 1 ? 4 : 3;  // else head_dim must stay innermost
    for (int i = dimensions - 1; i > 0; --i) {
      std::swap(c.layout.order[static_cast<std::size_t>(i)],
                c.layout.order[static_cast<std::size_t>(below(i + 1))]);
    }
    c.layout.gap = below(2) == 0 ? 0 : below(18);
    c.layout.offset = below(16);
    c.layout.reversed = below(5) == 0;
    c.layout.garbage_strides = below(4) == 0;
  }
  c.outputs = below(2) == 0 ? Fill::nan : Fill::random;
  c.threads = below(9);
  c.guarded_workspace = below(2) == 0;
  const std::vector<cpu::Target> targets = cpu::available_targets();
  if (below(2) == 0) c.target = targets[static_cast<std::size_t>(below(static_cast<int>(targets.size())))];
  return c;
}

std::string describe(const Circumstances& c) {
  std::ostringstream text;
  text << "order=";
  for (const int dimension : c.layout.order) text << dimension;
  text << " gap=" << c.layout.gap << " offset=" << c.layout.offset;
  if (c.layout.reversed) text << " reversed";
  if (c.layout.garbage_strides) text << " garbage_strides";
  text << " threads=" << c.threads << (c.guarded_workspace ? " guarded workspace" : "")
       << " target=" << (c.target ? name(*c.target) : "best");
  return text.str();
}

// Computes the problem in its own layout with one kernel (empty: the library chooses), then judges.
bool check(Case& problem, const Expected& expected, const Circumstances& c, const std::string& kernel) {
  SCOPED_TRACE((kernel.empty() ? "automatic" : kernel) + " " + describe(problem.spec()) + " " + describe(c));
  const ForceKernel forced(kernel);
  const ForcedTarget forced_target(c.target ? name(*c.target) : nullptr);
  if (!kernel.empty() && !obstacle(kernel).empty()) return true;  // requires vectors
  GuardedAllocator allocator(c.outputs);
  const Execution execution{.threads = c.threads, .allocator = c.guarded_workspace ? &allocator : nullptr};
  RelaidCase relaid(problem, c.layout, c.outputs);
  try {
    tessera::forward(relaid.attention, relaid.forward, execution);
    tessera::backward(relaid.attention, relaid.backward, execution);
  } catch (const Error& error) {
    ADD_FAILURE() << name(error.code()) << ": " << error.what();
    return false;
  }
  const ForwardTensors forward = std::exchange(problem.forward, relaid.forward);
  const BackwardTensors backward = std::exchange(problem.backward, relaid.backward);
  const Verdict verdict = judge(problem, expected);
  problem.forward = forward;
  problem.backward = backward;
  EXPECT_TRUE(verdict.ok) << verdict.message;
  EXPECT_EQ(relaid.damage(), "") << "written outside of";
  EXPECT_EQ(allocator.complaints(), "");
  return verdict.ok && relaid.damage().empty() && allocator.complaints().empty();
}

std::optional<std::uint64_t> environment_number(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::strtoull(value, nullptr, 10);
}

TEST(Fuzz, RandomConfigurationsAgreeWithOracle) {
  const auto first = environment_number("TESSERA_FUZZ_SEED");
  auto count = environment_number("TESSERA_FUZZ_COUNT");
  if (!count && first) count = 1;
  if (!count) count = static_cast<std::uint64_t>(scaled(1000, 60, "random configurations:", 20));
  std::vector<std::string> kernels = cpu_kernels();
  kernels.insert(kernels.begin(), "");
  int failures = 0;
  for (std::uint64_t seed = first.value_or(1); seed < first.value_or(1) + *count && failures < 10; ++seed) {
    SCOPED_TRACE("replay: TESSERA_FUZZ_SEED=" + std::to_string(seed) + " fuzz_test");
    Case problem(random_spec(seed));
    const Expected expected = expect(problem);
    const Circumstances circumstances = random_circumstances(seed, problem.spec());
    for (const std::string& kernel : kernels) {
      if (!check(problem, expected, circumstances, kernel)) ++failures;
    }
  }
}

// The number before a word in the details of a kernel's plan; 0: the kernel does not support the
// problem.
std::int64_t planned(const CaseSpec& spec, const char* kernel, Direction direction, const std::string& word) {
  const ForceKernel forced(kernel);
  const Shapes shapes{.batch = spec.batch,
                      .q_length = spec.q_length,
                      .k_length = spec.k_length,
                      .q_heads = spec.q_heads,
                      .kv_heads = spec.kv_heads,
                      .qk_dim = spec.qk_dim,
                      .v_dim = spec.v_dim,
                      .dtype = spec.dtype};
  std::string details;
  try {
    details = plan({}, shapes, {}, direction, {.threads = 8}).details;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
    return 0;
  }
  const std::size_t end = details.find(" " + word);
  EXPECT_NE(end, std::string::npos) << details;
  return end == std::string::npos ? 0 : std::atoll(details.c_str() + details.rfind(' ', end - 1));
}

// The long rows among the problems: decode cuts their keys into splits, and a backward pass cuts
// them into more tasks than there are heads.
TEST(Fuzz, LongRowsReachChunksAndSplits) {
  int splits = 0, chunks = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    const CaseSpec spec = random_spec(seed);
    if (spec.batch == 0 || spec.q_length == 0 || spec.packed) continue;
    if (spec.q_length <= 16 && planned(spec, "cpu.decode", Direction::forward, "split") > 1) ++splits;
    const std::int64_t tasks = planned(spec, "cpu.flash2", Direction::backward, "tasks");
    if (tasks > spec.batch * spec.kv_heads) ++chunks;
  }
  EXPECT_GE(splits, 5);
  EXPECT_GE(chunks, 20);
}

}  // namespace
}  // namespace tessera::test
