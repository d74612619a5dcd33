// Selection is a pure function of a table and a problem: tested on made-up tables.
#include "registry/registry.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tessera/error.h"

namespace tessera::registry {
namespace {

using namespace core;

std::optional<Choice> any(const Problem&, int workers, Reason) { return Choice{.workers = workers}; }
std::optional<Choice> short_ones(const Problem& p, int workers, Reason reason) {
  if (p.q_length > 100) return reason.decline("supports at most 100 queries");
  return any(p, workers, reason);
}
std::string no_details(const Problem&, const Choice&) { return {}; }
void no_run(const Problem&, const Choice&, const Resources&) {}

Kernel kernel(const char* name, Algorithm algorithm, int priority, Features features,
              decltype(Kernel::choose) choose = any, Direction direction = Direction::forward,
              DeviceType device = DeviceType::cpu) {
  const bool cpu = device == DeviceType::cpu;
  return {name,     algorithm, direction, device,     cpu ? "the CPU" : "a GPU",
          priority, features,  choose,    no_details, no_run};
}

const std::vector<Kernel> kTable = {
    kernel("fast", Algorithm::flash2, 3, Features(Feature::fp32) | Feature::causal, short_ones),
    kernel("gpu", Algorithm::flash3, 2, Features::all(), any, Direction::forward, DeviceType::cuda),
    kernel("slow", Algorithm::standard, 1, Features::all()),
    kernel("slow", Algorithm::standard, 1, Features::all(), any, Direction::backward),
};

Problem problem() {
  Problem p;
  p.batch = p.q_heads = p.kv_heads = 1;
  p.q_length = p.k_length = 10;
  p.qk_dim = p.v_dim = 8;
  return p;
}

std::string refusal(const Problem& p, std::string_view forced, ErrorCode code) {
  try {
    ADD_FAILURE() << "chose " << select(kTable, p, 1, forced).kernel->name;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return {};
}

TEST(Registry, TakesTheHighestPriorityThatSupportsTheProblem) {
  Problem p = problem();
  EXPECT_EQ(select(kTable, p, 1, "").kernel->name, "fast");
  p.right = 0;
  EXPECT_EQ(select(kTable, p, 1, "").kernel->name, "fast");
  p.softcap = 1;
  EXPECT_EQ(select(kTable, p, 1, "").kernel->name, "slow");
  p = problem();
  p.q_length = 101;
  EXPECT_EQ(select(kTable, p, 1, "").kernel->name, "slow");
  p = problem();
  p.algorithm = Algorithm::standard;
  EXPECT_EQ(select(kTable, p, 1, "").kernel->name, "slow");
}

TEST(Registry, ForcedKernelIsTakenOrRefusedNeverReplaced) {
  Problem p = problem();
  EXPECT_EQ(select(kTable, p, 1, "slow").kernel->name, "slow");
  p.softcap = 1;
  EXPECT_NE(refusal(p, "fast", ErrorCode::unsupported).find("fast: does not support softcap"),
            std::string::npos);
  const std::string unknown = refusal(p, "fsat", ErrorCode::invalid_argument);
  EXPECT_EQ(unknown, "TESSERA_KERNEL is 'fsat'; it must be one of: fast, gpu, slow");
}

TEST(Registry, AKernelMayPreferAnotherUnlessForcedByName) {
  std::vector<Kernel> table(std::begin(kTable), std::end(kTable));
  table.front().prefers_another = [](const Problem&, Reason reason) {
    return reason.give("supports few queries");
  };
  const Problem p = problem();
  const Kernel& chosen = *select(table, p, 1, "").kernel;
  EXPECT_EQ(chosen.name, "slow");
  EXPECT_EQ(rejections(table, p, 1, chosen, "").front().reason, "supports few queries");
  EXPECT_EQ(select(table, p, 1, "fast").kernel->name, "fast");
}

TEST(Registry, ARefusalSaysForEachKernelWhatIsMissing) {
  Problem p = problem();
  p.algorithm = Algorithm::flash3;
  p.dropout = true;
  p.kv_heads = 1;
  p.q_heads = 4;
  const std::string text = refusal(p, "", ErrorCode::unsupported);
  EXPECT_EQ(text,
            "no CPU kernel implements flash3; it requires a GPU\n"
            "  fast: implements flash2, not flash3; does not support grouped heads, dropout\n"
            "  gpu: runs on CUDA devices, the tensors are on cpu\n"
            "  slow: implements standard, not flash3");
}

TEST(Registry, RejectionsCoverEveryOtherKernelOfTheDirection) {
  Problem p = problem();
  const auto rejected = rejections(kTable, p, 1, *select(kTable, p, 1, "").kernel, "");
  ASSERT_EQ(rejected.size(), 2U);
  EXPECT_EQ(rejected[0].reason, "runs on CUDA devices, the tensors are on cpu");
  EXPECT_EQ(rejected[1].reason, "supports it; fast is preferred");
}

// The first sentence of a refusal says what would help.
TEST(Registry, ARefusalBeginsWithTheWayOut) {
  auto first_line = [](const Problem& p, std::string_view forced) {
    const std::string text = refusal(p, forced, ErrorCode::unsupported);
    return text.substr(0, text.find('\n'));
  };
  Problem p = problem();
  p.algorithm = Algorithm::minimal;  // implemented by GPU kernels of this library, not by the table
  EXPECT_EQ(first_line(p, ""),
            "no CPU kernel implements minimal; it requires a GPU of compute capability 7.5 or newer");
  p.algorithm = Algorithm::flash2;
  p.q_length = 101;
  EXPECT_EQ(first_line(p, ""),
            "no kernel supports this forward on cpu in fp32; fast supports at most 100 queries");
  p.q_length = 10, p.softcap = 1;
  EXPECT_EQ(first_line(p, ""),
            "no kernel supports this forward on cpu in fp32; fast does not support softcap");
  p.algorithm = Algorithm::automatic;
  EXPECT_EQ(first_line(p, "fast"),
            "no kernel supports this forward on cpu in fp32; fast does not support softcap");
  EXPECT_EQ(first_line(p, "gpu"), "TESSERA_KERNEL selects gpu, which does not run this forward on cpu");
  p = problem();
  p.direction = Direction::backward;
  p.algorithm = Algorithm::flash1;
  EXPECT_EQ(first_line(p, ""),
            "no CPU kernel implements flash1; it requires a GPU of compute capability 7.5 or newer");
}

// What `choose` throws fails the call that selects the kernel, and is a reason where another kernel
// is chosen.
TEST(Registry, AFailingChoiceIsAReasonOfOtherKernels) {
  std::vector<Kernel> table(std::begin(kTable), std::end(kTable));
  table[2].choose = [](const Problem&, int, Reason) -> std::optional<Choice> {
    throw Error(ErrorCode::out_of_memory, "more workspace than 64 bits address");
  };
  const Problem p = problem();
  const Selection selection = select(table, p, 3, "");
  EXPECT_EQ(selection.kernel->name, "fast");
  EXPECT_EQ(selection.choice.workers, 3);
  EXPECT_EQ(rejections(table, p, 3, *selection.kernel, "")[1].reason, "more workspace than 64 bits address");
  EXPECT_THROW(select(table, p, 3, "slow"), Error);
}

// Rows of one name share the work by type: no type has two.
TEST(Registry, BuiltInTableIsSortedAndHasNoTwins) {
  const auto table = kernels();
  ASSERT_FALSE(table.empty());
  auto share_a_type = [](const Kernel& a, const Kernel& b) {
    for (const Feature type : {Feature::fp64, Feature::fp32, Feature::fp16, Feature::bf16}) {
      if (a.features.contains(type) && b.features.contains(type)) return true;
    }
    return false;
  };
  for (std::size_t i = 0; i < table.size(); ++i) {
    EXPECT_TRUE(i == 0 || table[i - 1].priority >= table[i].priority);
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(table[i].name == table[j].name && table[i].direction == table[j].direction &&
                   share_a_type(table[i], table[j]))
          << table[i].name;
    }
  }
}

}  // namespace
}  // namespace tessera::registry
