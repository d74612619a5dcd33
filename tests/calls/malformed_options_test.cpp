// Malformed descriptions, shapes and executions, and calls that no kernel supports.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "malformed.h"
#include "reference/tolerance/check.h"

namespace tessera::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kFar = std::int64_t{1} << 48, kMost = std::int64_t{1} << 32;

using Cases = std::vector<Malformed>;

// The same mistake in the description of a forward call, a backward call and a plan for shapes.
void add_everywhere(Cases& cases, const std::string& name, const std::function<void(Attention&)>& spoil,
                    const std::vector<std::string>& expected) {
  auto spoil_call = [spoil](Call& call) { spoil(call.attention); };
  cases.push_back({"forward_" + name, Act::forward, spoil_call, expected});
  cases.push_back({"backward_" + name, Act::backward, spoil_call, expected});
  cases.push_back({"plan_" + name, Act::plan, spoil_call, expected});
}

Cases description_cases() {
  Cases cases;
  auto add = [&](const std::string& name, const std::function<void(Attention&)>& spoil,
                 const std::vector<std::string>& expected) { add_everywhere(cases, name, spoil, expected); };
  add("scale_nan", [](Attention& a) { a.scale = kNaN; }, {"attention.scale is nan; it must be finite"});
  add("scale_inf", [](Attention& a) { a.scale = kInfinity; }, {"attention.scale is inf; it must be finite"});
  add("scale_minus_inf", [](Attention& a) { a.scale = -kInfinity; },
      {"attention.scale is -inf; it must be finite"});
  add("softcap_negative", [](Attention& a) { a.softcap = -1; },
      {"attention.softcap is -1; it must be", "at least 0"});
  add("softcap_nan", [](Attention& a) { a.softcap = kNaN; }, {"attention.softcap is nan; it must be finite"});
  add("softcap_inf", [](Attention& a) { a.softcap = kInfinity; },
      {"attention.softcap is inf; it must be finite"});
  add("dropout_negative", [](Attention& a) { a.dropout.probability = -0.1; },
      {"attention.dropout.probability is -0.1; it must be in [0, 1)"});
  add("dropout_1", [](Attention& a) { a.dropout.probability = 1; },
      {"attention.dropout.probability is 1; it must be in [0, 1)"});
  add("dropout_rounds_to_1", [](Attention& a) { a.dropout.probability = 0.99999; },
      {"attention.dropout.probability is 0.99999;", "it must be below 1 - 2^-16", "2^-15"});
  for (const double scale : {1e39, -1e39, 1e-50, -1e-50, 2e30, 7e-31}) {
    add("scale_" + std::to_string(cases.size()), [scale](Attention& a) { a.scale = scale; },
        {"attention.scale is ", "; it must be 0 or between 2^-100 and 2^100 in absolute value", "fp32"});
  }
  for (const double softcap : {3.5e38, 1e300, 1e-40, 1e-320}) {
    add("softcap_" + std::to_string(cases.size()), [softcap](Attention& a) { a.softcap = softcap; },
        {"attention.softcap is ", "; it must be 0 (off) or between 2^-100 and 2^100", "fp32"});
  }
  add("scale_over_softcap", [](Attention& a) { a.scale = 1e20, a.softcap = 1e-20; },
      {"attention.softcap is 1e-20 with a scale of 1e+20; scale / softcap must be between 2^-100 and 2^100"});
  add("softcap_over_scale", [](Attention& a) { a.scale = -1e-20, a.softcap = 1e20; },
      {"attention.softcap is 1e+20 with a scale of -1e-20; scale / softcap must be between 2^-100 and "
       "2^100"});
  add("dropout_nan", [](Attention& a) { a.dropout.probability = kNaN; },
      {"attention.dropout.probability is nan; it must be in [0, 1)"});
  add("left_minus_2", [](Attention& a) { a.mask.left = -2; },
      {"attention.mask.left is -2; it must be", "-1 for no bound"});
  add("right_minus_2", [](Attention& a) { a.mask.right = -2; },
      {"attention.mask.right is -2; it must be", "-1 for no bound"});
  add("align_5", [](Attention& a) { a.mask.align = static_cast<Align>(5); },
      {"attention.mask.align is 5; it must be bottom_right or top_left"});
  add("diagonal_above", [](Attention& a) { a.mask.diagonal = kFar + 1; },
      {"attention.mask.diagonal is 281474976710657; it must be between -2^48 and 2^48"});
  add("diagonal_below", [](Attention& a) { a.mask.diagonal = -kFar - 1; },
      {"attention.mask.diagonal is -281474976710657; it must be between -2^48 and 2^48"});
  add("diagonal_least", [](Attention& a) { a.mask.diagonal = std::numeric_limits<std::int64_t>::min(); },
      {"attention.mask.diagonal is -9223372036854775808; it must be between -2^48 and 2^48"});
  add("algorithm_77", [](Attention& a) { a.algorithm = static_cast<Algorithm>(77); },
      {"attention.algorithm is 77; it must be automatic, standard, flash1, flash2, flash3 or minimal"});
  add("origin_row_negative", [](Attention& a) { a.origin.row = -1; },
      {"attention.origin.row is -1; it must not be negative"});
  add("origin_column_negative", [](Attention& a) { a.origin.column = -7; },
      {"attention.origin.column is -7; it must not be negative"});
  add("origin_batch_negative", [](Attention& a) { a.origin.batch = -2; },
      {"attention.origin.batch is -2; it must not be negative"});
  add("origin_head_negative", [](Attention& a) { a.origin.head = -3; },
      {"attention.origin.head is -3; it must not be negative"});
  add("origin_row_huge", [](Attention& a) { a.origin.row = std::int64_t{1} << 32; },
      {"attention.origin.row is 4294967296;", "below 2^32"});
  add("origin_column_huge", [](Attention& a) { a.origin.column = std::numeric_limits<std::int64_t>::max(); },
      {"attention.origin.column is 9223372036854775807;", "below 2^32"});
  add("origin_batch_huge", [](Attention& a) { a.origin.batch = (std::int64_t{1} << 32) - 1; },
      {"attention.origin.batch is 4294967295;", "below 2^32"});
  add("origin_head_huge", [](Attention& a) { a.origin.head = std::int64_t{1} << 40; },
      {"attention.origin.head is 1099511627776;", "below 2^32"});
  static const float kAlibi[4] = {};
  for (const std::int64_t far : {std::int64_t{1} << 29, -(std::int64_t{1} << 29), kFar}) {
    add("alibi_diagonal_" + std::to_string(cases.size()),
        [far](Attention& a) { a.alibi.slopes = kAlibi, a.mask.diagonal = far; },
        {"attention.alibi has a diagonal at " + std::to_string(far), "less than 2^29 away", "bias"});
  }
  add("alibi_origin_far",
      [](Attention& a) {
        a.alibi.slopes = kAlibi, a.mask.align = Align::top_left, a.origin.row = std::int64_t{1} << 31;
      },
      {"attention.alibi has a diagonal at 2147483648 (origin.row"});
  add("alibi_stride_negative",
      [](Attention& a) {
        static const float kSlopes[4] = {};
        a.alibi = {kSlopes, -4};
      },
      {"attention.alibi.batch_stride is -4; it must not be negative"});
  add("alibi_stride_huge",
      [](Attention& a) {
        static const float kSlopes[4] = {};
        a.alibi = {kSlopes, std::numeric_limits<std::int64_t>::max()};
      },
      {"attention.alibi.batch_stride is 9223372036854775807; for ", " there must be fewer than 2^59 slopes"});
  return cases;
}

Cases pointer_cases() {
  Cases cases;
  static const float kSlopes[8] = {};
  static const std::uint64_t kState[4] = {};
  auto off_by_one = [](const auto* pointer) {
    return reinterpret_cast<decltype(pointer)>(reinterpret_cast<const char*>(pointer) + 1);
  };
  auto add = [&](const std::string& name, const std::function<void(Call&)>& spoil,
                 const std::vector<std::string>& expected) {
    cases.push_back({"forward_" + name, Act::forward, spoil, expected});
    cases.push_back({"backward_" + name, Act::backward, spoil, expected});
  };
  add("slopes_misaligned", [=](Call& call) { call.attention.alibi.slopes = off_by_one(&kSlopes[0]); },
      {"attention.alibi.slopes is 0x", "aligned to 4 bytes"});
  add("state_misaligned",
      [=](Call& call) { call.attention.dropout = {.probability = 0.5, .state = off_by_one(&kState[0])}; },
      {"attention.dropout.state is 0x", "aligned to 8 bytes"});
  add("lengths_misaligned",
      [=](Call& call) {
        call.pack();
        call.attention.mask.lengths.k = off_by_one(call.lengths_k.data());
      },
      {"attention.mask.lengths.k is 0x", "aligned to 4 bytes"});
  return cases;
}

// What a call reads besides tensors, in the workspace that it may write.
Cases lent_cases() {
  Cases cases;
  auto add = [&](const std::string& name, const std::function<const void*(Call&)>& put) {
    auto spoil = [put](Call& call) { call.execution.workspace = {const_cast<void*>(put(call)), 1}; };
    const std::vector<std::string> expected = {"execution.workspace overlaps attention." + name +
                                               " in memory (1 bytes at 0x"};
    cases.push_back({"forward_lent_" + name, Act::forward_with_data, spoil, expected});
    cases.push_back({"backward_lent_" + name, Act::backward_with_data, spoil, expected});
  };
  static const float kSlopes[4] = {};
  static const std::uint64_t kState[2] = {};
  add("alibi.slopes", [](Call& call) { return call.attention.alibi.slopes = kSlopes, &kSlopes[3]; });
  add("dropout.state", [](Call& call) {
    call.attention.dropout = {.probability = 0.5, .state = kState};
    return &kState[1];
  });
  add("mask.lengths.q", [](Call& call) { return call.pack(), &call.attention.mask.lengths.q[2]; });
  add("mask.lengths.k", [](Call& call) { return call.pack(), &call.attention.mask.lengths.k[0]; });
  return cases;
}

Cases shape_cases() {
  Cases cases;
  auto add = [&](const std::string& name, std::function<void(Call&)> spoil,
                 std::vector<std::string> expected) {
    cases.push_back({"plan_" + name, Act::plan, std::move(spoil), std::move(expected)});
  };
  add("batch_negative", [](Call& c) { c.shapes.batch = -1; },
      {"shapes.batch is -1; it must be between 0 and 2^32"});
  add("queries_negative", [](Call& c) { c.shapes.q_length = -9; },
      {"shapes.q_length is -9; it must be between 0 and 2^32"});
  add("keys_huge", [](Call& c) { c.shapes.k_length = std::numeric_limits<std::int64_t>::max(); },
      {"shapes.k_length is 9223372036854775807; it must be between 0 and 2^32"});
  add("keys_2_to_33", [](Call& c) { c.shapes.k_length = std::int64_t{1} << 33; },
      {"shapes.k_length is 8589934592; it must be between 0 and 2^32"});
  add("heads_huge", [](Call& c) { c.shapes.q_heads = kFar; },
      {"shapes.q_heads is 281474976710656; it must be between 1 and 2^32"});
  add("heads_0", [](Call& c) { c.shapes.q_heads = 0; },
      {"shapes.q_heads is 0; it must be between 1 and 2^32"});
  add("heads_negative", [](Call& c) { c.shapes.q_heads = -4; },
      {"shapes.q_heads is -4; it must be between 1 and 2^32"});
  add("kv_heads_3", [](Call& c) { c.shapes.kv_heads = 3; },
      {"shapes.kv_heads is 3; it must divide 4, shapes.q_heads"});
  add("kv_heads_negative", [](Call& c) { c.shapes.kv_heads = -2; },
      {"shapes.kv_heads is -2; it must be between 0 and 2^32"});
  add("dim_0", [](Call& c) { c.shapes.qk_dim = 0; }, {"shapes.qk_dim is 0; it must be between 1 and 256"});
  add("dim_257", [](Call& c) { c.shapes.qk_dim = 257; },
      {"shapes.qk_dim is 257; it must be between 1 and 256"});
  add("value_dim_300", [](Call& c) { c.shapes.v_dim = 300; },
      {"shapes.v_dim is 300; it must be between 0 and 256"});
  add("value_dim_negative", [](Call& c) { c.shapes.v_dim = -1; },
      {"shapes.v_dim is -1; it must be between 0 and 256"});
  add("dtype_8", [](Call& c) { c.shapes.dtype = static_cast<DType>(8); },
      {"shapes.dtype is 8; it must be fp64, fp32, fp16 or bf16"});
  add("too_many_elements",
      [](Call& c) {
        c.shapes.batch = kMost;
        c.shapes.q_length = kMost;
      },
      {"shapes.batch is 4294967296; with 4294967296 rows, 4 heads and head_dim 8",
       "fewer than 2^59 elements"});
  add("too_many_heads",
      [](Call& c) {
        c.shapes.batch = kMost;
        c.shapes.q_length = 0;
        c.shapes.q_heads = kMost;
      },
      {"shapes.batch is 4294967296; with 0 rows, 4294967296 heads", "fewer than 2^59 elements"});
  add("bias_too_large",
      [](Call& c) {
        c.shapes.q_length = c.shapes.k_length = kMost;
        c.shapes.bias = true;
      },
      {"shapes.bias is true; with 4294967296 queries and 4294967296 keys", "fewer than 2^59 elements"});
  add("visible_too_large",
      [](Call& c) {
        c.shapes.q_length = c.shapes.k_length = kMost;
        c.shapes.visible = true;
      },
      {"shapes.visible is true; with 4294967296 queries and 4294967296 keys", "fewer than 2^59 elements"});
  add("count_negative", [](Call& c) { c.attention.mask.lengths.count = -1; },
      {"attention.mask.lengths.count is -1; it must be between 0 and 2^32 - 1"});
  add("count_huge", [](Call& c) { c.attention.mask.lengths.count = kFar; },
      {"attention.mask.lengths.count is 281474976710656; it must be between 0 and 2^32 - 1"});
  add("packed_overflow",
      [](Call& c) {
        c.attention.mask.lengths.count = kMost - 1;
        c.shapes.q_length = kMost;
      },
      {"attention.mask.lengths.count is 4294967295; with 4294967296 rows", "fewer than 2^59 elements"});
  add("device_type", [](Call& c) { c.device.type = static_cast<DeviceType>(4); },
      {"device.type is 4; it must be cpu or cuda"});
  add("device_index", [](Call& c) { c.device = Device::cuda(-2); },
      {"device.index is -2; it must not be negative"});
  add("direction", [](Call& c) { c.direction = static_cast<Direction>(6); },
      {"direction is 6; it must be forward or backward"});
  return cases;
}

// An executor that cannot run anything.
class NoWorkers final : public Executor {
 public:
  explicit NoWorkers(int count) : count_(count) {}
  [[nodiscard]] int concurrency() const override { return count_; }
  void run(int workers, void (*body)(void* context, int worker), void* context) override {
    for (int worker = 0; worker < workers; ++worker) body(context, worker);
  }

 private:
  int count_;
};

class NoMemory final : public Allocator {
 public:
  void* allocate(std::size_t, std::size_t, void*) override { return nullptr; }
  void deallocate(void*, std::size_t, std::size_t, void*) override {
    ADD_FAILURE() << "nothing was allocated";
  }
};

class MisalignedMemory final : public Allocator {
 public:
  void* allocate(std::size_t bytes, std::size_t alignment, void*) override {
    return static_cast<std::byte*>(::operator new(bytes + alignment, std::align_val_t{alignment})) + 8;
  }
  void deallocate(void* data, std::size_t, std::size_t alignment, void*) override {
    ::operator delete(static_cast<std::byte*>(data) - 8, std::align_val_t{alignment});
  }
};

Cases execution_cases() {
  Cases cases;
  auto add = [&](const std::string& name, bool planned, const std::function<void(Call&)>& spoil,
                 const std::vector<std::string>& expected, ErrorCode code = ErrorCode::invalid_argument) {
    // With data: a kernel that needs no workspace would not look at it, and both
    // CPU kernels need some here.
    cases.push_back(
        {"forward_" + name, planned ? Act::forward : Act::forward_with_data, spoil, expected, code});
    cases.push_back(
        {"backward_" + name, planned ? Act::backward : Act::backward_with_data, spoil, expected, code});
  };
  add("threads_negative", true, [](Call& c) { c.execution.threads = -1; },
      {"execution.threads is -1; it must be between 0"});
  add("threads_huge", true, [](Call& c) { c.execution.threads = std::numeric_limits<int>::max(); },
      {"execution.threads is 2147483647; it must be between 0"});
  static NoWorkers none(0), negative(-8);
  add("executor_without_workers", true, [](Call& c) { c.execution.executor = &none; },
      {"execution.executor->concurrency() is 0; it must be between 1"});
  add("executor_negative", true, [](Call& c) { c.execution.executor = &negative; },
      {"execution.executor->concurrency() is -8; it must be between 1"});
  add("workspace_too_small", false, [](Call& c) { c.execution.workspace = {c.spare(256), 1}; },
      {"execution.workspace.bytes is 1; it must be at least ", "the workspace_bytes of the plan"});
  add("workspace_misaligned", false,
      [](Call& c) {
        static std::vector<std::byte> memory(1 << 24);
        c.execution.workspace = {memory.data() + 1, memory.size() - 1};
        if (reinterpret_cast<std::uintptr_t>(c.execution.workspace.data) % 256 == 0)
          c.execution.workspace.bytes = 0;
      },
      {"execution.workspace.data is 0x", "aligned to 256 bytes"});
  add("workspace_null", false, [](Call& c) { c.execution.workspace = {nullptr, 1 << 24}; },
      {"execution.workspace.data is ", "it must", "aligned to 256 bytes"});
  static NoMemory no_memory;
  add(
      "allocator_without_memory", false, [](Call& c) { c.execution.allocator = &no_memory; },
      {"out of memory: the call needs ", " bytes of workspace on cpu; lend it as execution.workspace",
       "a smaller batch or shorter sequences", "`tessera fit`"},
      ErrorCode::out_of_memory);
  static MisalignedMemory misaligned;
  add("allocator_misaligned", false, [](Call& c) { c.execution.allocator = &misaligned; },
      {"execution.allocator->allocate() returned 0x", "aligned to 256 bytes"});
  return cases;
}

bool has_gpu() {
  const std::vector<DeviceInfo> all = devices();
  return std::any_of(all.begin(), all.end(),
                     [](const DeviceInfo& d) { return d.device.type == DeviceType::cuda; });
}

// Valid calls that no kernel supports: the message begins with the way out and has
// a line for each kernel.
Cases unsupported_cases() {
  Cases cases;
  auto add = [&](const std::string& name, Act act, std::function<void(Call&)> spoil,
                 std::vector<std::string> expected) {
    cases.push_back({name, act, std::move(spoil), std::move(expected), ErrorCode::unsupported});
  };
  auto ask = [](Algorithm algorithm) {
    return [algorithm](Call& call) { call.attention.algorithm = algorithm; };
  };
  add("forward_flash3", Act::forward, ask(Algorithm::flash3),
      {"no CPU kernel implements flash3; it requires a GPU of compute capability 9.0", "cpu.flash2",
       "implements flash2, not flash3"});
  add("backward_flash3", Act::backward, ask(Algorithm::flash3),
      {"no CPU kernel implements flash3; it requires a GPU of compute capability 9.0", "cpu.flash2",
       "implements flash2, not flash3"});
  add("plan_minimal", Act::plan, ask(Algorithm::minimal),
      {"no CPU kernel implements minimal; it requires a GPU of compute capability 7.5 or newer", "cpu.flash2",
       "implements flash2, not minimal"});
  if (!has_gpu()) {
    add("forward_cuda", Act::forward,
        [](Call& call) {
          ForwardTensors& t = call.forward;
          for (Tensor* tensor : {&t.q, &t.k, &t.v, &t.bias, &t.out, &t.lse}) tensor->device = Device::cuda(0);
        },
        {"cuda:0 ", "cpu.flash2", "runs on the CPU, the tensors are on cuda:0"});
    add("plan_cuda", Act::plan, [](Call& call) { call.device = Device::cuda(1); },
        {"cuda:1 ", "cpu.flash2", "runs on the CPU, the tensors are on cuda:1"});
  }
  return cases;
}

class MalformedOption : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedOption, IsRefused) { expect_refused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Description, MalformedOption, ::testing::ValuesIn(description_cases()), test_name);
INSTANTIATE_TEST_SUITE_P(Lent, MalformedOption, ::testing::ValuesIn(lent_cases()), test_name);
INSTANTIATE_TEST_SUITE_P(Pointers, MalformedOption, ::testing::ValuesIn(pointer_cases()), test_name);
INSTANTIATE_TEST_SUITE_P(Shapes, MalformedOption, ::testing::ValuesIn(shape_cases()), test_name);
INSTANTIATE_TEST_SUITE_P(Execution, MalformedOption, ::testing::ValuesIn(execution_cases()), test_name);
INSTANTIATE_TEST_SUITE_P(Unsupported, MalformedOption, ::testing::ValuesIn(unsupported_cases()), test_name);

TEST(ForcedKernelName, UnknownIsRefusedWithTheKnownNames) {
  const reference::ForceKernel forced("cpu.flash9");
  expect_refused({"unknown",
                  Act::forward,
                  [](Call&) {},
                  {"TESSERA_KERNEL is 'cpu.flash9'; it must be one of: ", "cpu.flash2"}});
}

TEST(ForcedKernelName, OneThatDoesNotFitIsRefusedWithTheReason) {
  const reference::ForceKernel forced("cpu.flash2");
  auto ask = [](Call& call) { call.attention.algorithm = Algorithm::standard; };
  expect_refused({"does_not_fit",
                  Act::forward,
                  ask,
                  {"TESSERA_KERNEL selects cpu.flash2, which does not run this forward on cpu",
                   "cpu.flash2: implements flash2, not standard"},
                  ErrorCode::unsupported});
}

TEST(ForcedKernelName, OneThatFitsIsTaken) {
  const reference::ForceKernel forced("cpu.flash2");
  const Call call;
  EXPECT_EQ(plan(call.attention, call.forward).kernel, "cpu.flash2");
}

}  // namespace
}  // namespace tessera::test
