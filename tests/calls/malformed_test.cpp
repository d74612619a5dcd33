// Malformed tensors: every tensor argument of forward and backward with every kind of defect.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "malformed.h"
#include "support/guarded.h"

namespace tessera::test {
namespace {

constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kInt64Min = std::numeric_limits<std::int64_t>::min();

// One tensor argument: where it is in the call, and what is special about it.
struct Place {
  const char* name;
  Act act;  // forward or backward
  Tensor& (*of)(Call&);
  TensorRole role = TensorRole::tokens;
  bool required = true;
  bool output = false;

  [[nodiscard]] Act with_data() const {
    return act == Act::forward ? Act::forward_with_data : Act::backward_with_data;
  }
};

#define TESSERA_PLACE(direction, member, ...)                                                         \
  Place {                                                                                             \
    #member, Act::direction, [](Call& call) -> Tensor& { return call.direction.member; }, __VA_ARGS__ \
  }

std::vector<Place> places() {
  using enum TensorRole;
  return {
      TESSERA_PLACE(forward, q, tokens),
      TESSERA_PLACE(forward, k, tokens),
      TESSERA_PLACE(forward, v, tokens),
      TESSERA_PLACE(forward, bias, bias, false),
      TESSERA_PLACE(forward, out, tokens, true, true),
      TESSERA_PLACE(forward, lse, lse, false, true),
      TESSERA_PLACE(backward, q, tokens),
      TESSERA_PLACE(backward, k, tokens),
      TESSERA_PLACE(backward, v, tokens),
      TESSERA_PLACE(backward, bias, bias, false),
      TESSERA_PLACE(backward, out, tokens),
      TESSERA_PLACE(backward, lse, lse),
      TESSERA_PLACE(backward, grad_out, tokens),
      TESSERA_PLACE(backward, grad_lse, lse, false),
      TESSERA_PLACE(backward, grad_q, tokens, false, true),
      TESSERA_PLACE(backward, grad_k, tokens, false, true),
      TESSERA_PLACE(backward, grad_v, tokens, false, true),
      TESSERA_PLACE(backward, grad_bias, bias, false, true),
  };
}

std::string indexed(const std::string& name, const char* field, int i) {
  return name + "." + field + "[" + std::to_string(i) + "]";
}

// Defects that a tensor has by itself, whatever the others are.
void add_own_defects(const Place& place, std::vector<Malformed>& cases) {
  const std::string name = place.name;
  const auto of = place.of;
  auto add = [&](const std::string& defect, Act act, const std::function<void(Tensor&)>& spoil,
                 std::vector<std::string> expected) {
    const std::string direction = place.act == Act::forward ? "forward_" : "backward_";
    cases.push_back({direction + name + "_" + defect, act, [of, spoil](Call& call) { spoil(of(call)); },
                     std::move(expected)});
  };
  const Act act = place.act, with_data = place.with_data();

  if (place.required) add("missing", act, [](Tensor& t) { t = {}; }, {name + " is not given", "required"});
  add("unknown_dtype", act, [](Tensor& t) { t.dtype = static_cast<DType>(9); },
      {name + ".dtype is 9", "fp64, fp32, fp16 or bf16"});
  add("unknown_device", act, [](Tensor& t) { t.device.type = static_cast<DeviceType>(7); },
      {name + ".device.type is 7", "cpu or cuda"});
  add("cpu_3", act, [](Tensor& t) { t.device.index = 3; }, {name + ".device.index is 3", "must be 0"});
  add("cuda_minus_1", act, [](Tensor& t) { t.device = Device::cuda(-1); },
      {name + ".device.index is -1", "must not be negative"});
  add("null", with_data, [](Tensor& t) { t.data = nullptr; },
      {name + ".data is null with shape (", "without elements"});
  add("misaligned", with_data, [](Tensor& t) { t.data = static_cast<std::byte*>(t.data) + 2; },
      {name + ".data is 0x", "aligned to 4 bytes"});
  for (int i = 0; i < 4; ++i) {
    add("negative_size_" + std::to_string(i), act, [i](Tensor& t) { t.shape[i] = -1; },
        {indexed(name, "shape", i), "is -1; it must be"});
    add("huge_size_" + std::to_string(i), act, [i](Tensor& t) { t.shape[i] = std::int64_t{1} << 60; },
        {indexed(name, "shape", i), "is 1152921504606846976; it must be between 0 and 2^48"});
  }
  for (int i = 0; i < 3; ++i) {
    if (place.role == TensorRole::lse && i == 3) continue;
    add("huge_stride_" + std::to_string(i), act, [i](Tensor& t) { t.strides[i] = kInt64Max; },
        {name + ".strides is (", "9223372036854775807", "63 bits"});
    add("least_stride_" + std::to_string(i), act, [i](Tensor& t) { t.strides[i] = kInt64Min; },
        {name + ".strides is (", "-9223372036854775808", "63 bits"});
  }
  add("too_many_elements", act,
      [](Tensor& t) {
        for (int i = 0; i < 3; ++i) t.shape[i] = std::int64_t{1} << 40, t.strides[i] = 0;
      },
      {name + ".shape is (1099511627776, 1099511627776,", "fewer than 2^59 elements"});
  if (place.role == TensorRole::tokens) {
    add("head_dim_0", act, [](Tensor& t) { t.shape[3] = 0; },
        {name + ".shape[3] (head_dim) is 0", "between 1 and 256"});
    add("head_dim_257", act, [](Tensor& t) { t.shape[3] = 257; },
        {name + ".shape[3] (head_dim) is 257", "between 1 and 256"});
    add("no_heads", act, [](Tensor& t) { t.shape[2] = 0; }, {name + ".shape[2] (heads) is 0", "at least 1"});
  }
  if (place.role != TensorRole::lse) {  // there the last size is 1 and its stride never taken
    add("gaps_between_elements", act, [](Tensor& t) { t.strides[3] = 2; },
        {name + ".strides[3] is 2", "contiguous"});
    add("backwards_elements", act, [](Tensor& t) { t.strides[3] = -1; },
        {name + ".strides[3] is -1", "contiguous"});
  }
  if (place.output) {
    add("read_only", act, [](Tensor& t) { t.read_only = true; },
        {name + " is read-only", "an output must be writable"});
    for (int i = 0; i < 3; ++i) {
      add("stride_0_in_" + std::to_string(i), act, [i](Tensor& t) { t.strides[i] = 0; },
          {name + ".strides is (", "address one element twice"});
    }
    add("rows_that_overlap", act, [](Tensor& t) { t.strides[0] = t.strides[1] + 1; },
        {name + ".strides is (", "address one element twice"});
  }
}

// Defects in how a tensor goes with q, k and v, for the tensors whose shape those determine.
void add_mismatches(const Place& place, std::vector<Malformed>& cases) {
  const std::string name = place.name;
  if (name == "q" || name == "k") return;  // what they say counts; add_leading_mismatches has them
  const auto of = place.of;
  const std::string prefix = (place.act == Act::forward ? "forward_" : "backward_") + name + "_";
  cases.push_back({prefix + "fp16",
                   place.act,
                   [of](Call& call) { of(call).dtype = DType::fp16; },
                   {name + ".dtype is fp16; it must be fp32"}});
  cases.push_back({prefix + "fp64",
                   place.act,
                   [of](Call& call) { of(call).dtype = DType::fp64; },
                   {name + ".dtype is fp64; it must be fp32"}});
  cases.push_back({prefix + "elsewhere",
                   place.act,
                   [of](Call& call) { of(call).device = Device::cuda(1); },
                   {name + ".device is cuda:1; it must be cpu, as q"}});
  for (int i = 0; i < 4; ++i) {
    if (name == "v" && i == 3) continue;  // d_v is v's own; then out is wrong
    const Call valid;
    const std::int64_t size = of(const_cast<Call&>(valid)).shape[i];
    cases.push_back({prefix + "size_" + std::to_string(i),
                     place.act,
                     [=](Call& call) { of(call).shape[i] = size + 2; },
                     {indexed(name, "shape", i), "is " + std::to_string(size + 2) + "; it must be ",
                      std::to_string(size)}});
  }
}

// q and k define the problem: when they differ, the tensor that follows them is named.
void add_leading_mismatches(std::vector<Malformed>& cases) {
  auto add = [&](const char* name, auto spoil, std::vector<std::string> expected) {
    cases.push_back({std::string("forward_") + name, Act::forward,
                     [spoil](Call& call) { spoil(call.forward); }, expected});
    cases.push_back({std::string("backward_") + name, Act::backward,
                     [spoil](Call& call) { spoil(call.backward); }, expected});
  };
  add("q_fp16", [](auto& t) { t.q.dtype = DType::fp16; }, {"k.dtype is fp32; it must be fp16, as q"});
  add("q_elsewhere", [](auto& t) { t.q.device = Device::cuda(0); },
      {"k.device is cpu; it must be cuda:0, as q"});
  add("q_batch", [](auto& t) { t.q.shape[0] = 1; }, {"k.shape[0] (batch) is 2; it must be 1, as q"});
  add("q_sequence", [](auto& t) { t.q.shape[1] = 2; },
      {"bias.shape[2] (query sequence) is 3; it must be 1 or 2"});
  add("q_heads", [](auto& t) { t.q.shape[2] = 3; },
      {"k.shape[2] (heads) is 2; it must divide 3, the heads of q"});
  add("q_dim", [](auto& t) { t.q.shape[3] = 7; }, {"k.shape[3] (head_dim) is 8; it must be 7, as q"});
  add("k_batch", [](auto& t) { t.k.shape[0] = 1; }, {"k.shape[0] (batch) is 1; it must be 2, as q"});
  add("k_sequence", [](auto& t) { t.k.shape[1] = 4; }, {"v.shape[1] (sequence) is 5; it must be 4, as k"});
  add("k_heads", [](auto& t) { t.k.shape[2] = 1; }, {"v.shape[2] (heads) is 2; it must be 1, as k"});
  add("k_dim", [](auto& t) { t.k.shape[3] = 9; }, {"k.shape[3] (head_dim) is 9; it must be 8, as q"});
  add("more_kv_heads_than_heads", [](auto& t) { t.q.shape[2] = 1; },
      {"k.shape[2] (heads) is 2; it must divide 1, the heads of q"});
  add("v_dim", [](auto& t) { t.v.shape[3] = 5; }, {"out.shape[3] (head_dim) is 6; it must be 5, as v"});
  add("bias_bf16", [](auto& t) { t.bias.dtype = DType::bf16; },
      {"bias.dtype is bf16; it must be fp32", "for q in fp32"});
  add("bias_without_keys", [](auto& t) { t.bias.shape[3] = 1; },
      {"bias.shape[3] (key sequence) is 1; it must be 5, the number of keys"});
  add("bias_negative_strides_overflow", [](auto& t) { t.bias.strides[2] = kInt64Min / 2; },
      {"bias.strides is (", "63 bits"});
}

// An output on the memory of an input or of another output, wholly or in part.
void add_overlaps(std::vector<Malformed>& cases) {
  const std::vector<Place> all = places();
  for (std::size_t at = 0; at < all.size(); ++at) {
    const Place& output = all[at];
    if (!output.output) continue;
    for (std::size_t other_at = 0; other_at < all.size(); ++other_at) {
      const Place& other = all[other_at];
      if (other.act != output.act || other_at == at || (other.output && other_at > at)) continue;
      const auto of = output.of, of_other = other.of;
      const std::string name = std::string(output.name) + " overlaps " + other.name;
      const std::string rule = other.output ? "outputs may not share memory with each other"
                                            : "outputs may not share memory with inputs";
      cases.push_back(
          {name, output.with_data(), [=](Call& call) { of(call).data = of_other(call).data; }, {name, rule}});
    }
  }
  cases.push_back({"out overlaps the last element of q",
                   Act::forward_with_data,
                   [](Call& call) {
                     const Tensor& q = call.forward.q;
                     call.forward.out.data = static_cast<float*>(q.data) + 2 * 3 * 4 * 8 - 1;
                   },
                   {"out overlaps q in memory (0x", "may not share memory"}});
  cases.push_back({"lse overlaps the end of out",
                   Act::forward_with_data,
                   [](Call& call) {
                     const Tensor& out = call.forward.out;
                     call.forward.lse.data = static_cast<float*>(out.data) + 2 * 3 * 4 * 6 - 1;
                   },
                   {"lse overlaps out in memory (0x", "may not share memory"}});
}

// A tensor whose first or last byte lies in the workspace that the caller lends.
void add_lent(const Place& place, std::vector<Malformed>& cases) {
  const auto of = place.of;
  for (const bool last : {false, true}) {
    cases.push_back({std::string(place.act == Act::forward ? "forward" : "backward") +
                         " lent workspace overlaps the " + (last ? "end of " : "start of ") + place.name,
                     place.with_data(),
                     [=](Call& call) {
                       const Tensor& t = of(call);
                       const std::int64_t elements = t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3];
                       const std::int64_t at = last ? elements * 4 - 1 : 0;
                       call.execution.workspace = {static_cast<std::byte*>(t.data) + at, 1};
                     },
                     {std::string("execution.workspace overlaps ") + place.name + " in memory (1 bytes at 0x",
                      "lend memory that the call uses for nothing else"}});
  }
}

// What a boolean mask must be, and what it must not share.
void add_visible(std::vector<Malformed>& cases) {
  auto add = [&](const std::string& name, auto spoil, const std::vector<std::string>& expected,
                 bool with_data = false) {
    auto given = [](Call& call) { return tensor(call.spare(2 * 4 * 3 * 5), DType::boolean, {2, 4, 3, 5}); };
    cases.push_back({"forward_visible_" + name, with_data ? Act::forward_with_data : Act::forward,
                     [=](Call& call) {
                       call.forward.visible = given(call);
                       spoil(call.forward.visible, call, call.forward.out);
                     },
                     expected});
    cases.push_back({"backward_visible_" + name, with_data ? Act::backward_with_data : Act::backward,
                     [=](Call& call) {
                       call.backward.visible = given(call);
                       spoil(call.backward.visible, call, call.backward.grad_k);
                     },
                     expected});
  };
  add("fp32", [](Tensor& t, Call&, Tensor&) { t.dtype = DType::fp32; },
      {"visible.dtype is fp32; it must be bool", "as bias"});
  add("unknown_dtype", [](Tensor& t, Call&, Tensor&) { t.dtype = static_cast<DType>(9); },
      {"visible.dtype is 9; it must be bool"});
  add("elsewhere", [](Tensor& t, Call&, Tensor&) { t.device = Device::cuda(1); },
      {"visible.device is cuda:1; it must be cpu, as q"});
  add("batch", [](Tensor& t, Call&, Tensor&) { t.shape[0] = 3; },
      {"visible.shape[0] (batch) is 3; it must be 1 or 2"});
  add("heads", [](Tensor& t, Call&, Tensor&) { t.shape[1] = 2; },
      {"visible.shape[1] (heads) is 2; it must be 1 or 4"});
  add("queries", [](Tensor& t, Call&, Tensor&) { t.shape[2] = 2; },
      {"visible.shape[2] (query sequence) is 2; it must be 1 or 3"});
  add("keys", [](Tensor& t, Call&, Tensor&) { t.shape[3] = 1; },
      {"visible.shape[3] (key sequence) is 1; it must be 5, the number of keys"});
  add("gaps", [](Tensor& t, Call&, Tensor&) { t.strides[3] = 2; }, {"visible.strides[3] is 2", "contiguous"});
  add("far", [](Tensor& t, Call&, Tensor&) { t.strides[1] = kInt64Max; },
      {"visible.strides is (", "63 bits"});
  add(
      "null", [](Tensor& t, Call&, Tensor&) { t.data = nullptr; }, {"visible.data is null with shape ("},
      true);
  add("is_q",
      [](Tensor&, Call& call, Tensor&) { call.forward.q.dtype = call.backward.q.dtype = DType::boolean; },
      {"q.dtype is bool; it must be fp64, fp32, fp16 or bf16; pass a boolean mask as visible"});
  add(
      "in_workspace", [](Tensor& t, Call& call, Tensor&) { call.execution.workspace = {t.data, 1}; },
      {"execution.workspace overlaps visible in memory (1 bytes at 0x"}, true);
  for (const bool forward : {true, false}) {
    const std::string output = forward ? "out" : "grad_k";
    cases.push_back(
        {output + " overlaps visible",
         forward ? Act::forward_with_data : Act::backward_with_data,
         [=](Call& call) {
           Tensor& visible = forward ? call.forward.visible : call.backward.visible;
           const Tensor& of = forward ? call.forward.out : call.backward.grad_k;
           visible = tensor(static_cast<std::byte*>(of.data) + 3, DType::boolean, {1, 1, 1, 5});
         },
         {output + " overlaps visible in memory (0x", "outputs may not share memory with inputs"}});
  }
}

// Lengths beyond what positions can count, of tensors whose strides are 0.
void add_lengths(std::vector<Malformed>& cases) {
  auto add = [&](const char* name, auto spoil, std::vector<std::string> expected) {
    cases.push_back({std::string("forward_") + name, Act::forward,
                     [spoil](Call& call) { spoil(call.forward); }, expected});
    cases.push_back({std::string("backward_") + name, Act::backward,
                     [spoil](Call& call) { spoil(call.backward); }, expected});
  };
  auto set = [](Tensor& t, int dimension, std::int64_t size) {
    t.shape[dimension] = size, t.strides[dimension] = 0;
  };
  add("2_to_33_keys",
      [=](auto& t) { set(t.k, 1, std::int64_t{1} << 33), set(t.v, 1, std::int64_t{1} << 33); },
      {"k.shape[1] (sequence) is 8589934592; it must be at most 2^32"});
  add("2_to_33_queries", [=](auto& t) { set(t.q, 1, std::int64_t{1} << 33); },
      {"q.shape[1] (sequence) is 8589934592; it must be at most 2^32"});
  add("2_to_33_batch_entries",
      [=](auto& t) {
        for (Tensor* x : {&t.q, &t.k, &t.v}) set(*x, 0, std::int64_t{1} << 33);
      },
      {"q.shape[0] (batch) is 8589934592; it must be at most 2^32"});
  add("2_to_34_heads", [=](auto& t) { set(t.q, 2, std::int64_t{1} << 34); },
      {"q.shape[2] (heads) is 17179869184; it must be at most 2^32"});
  add("nothing_of_too_much",
      [=](auto& t) {
        for (int i : {0, 2}) set(t.q, i, std::int64_t{1} << 32);
        t.q.shape[1] = 0;
      },
      {"q.shape is (4294967296, 0, 4294967296, 8); it must have fewer than 2^59 elements (sizes of 0 count "
       "as 1"});
}

std::vector<Malformed> all_cases() {
  std::vector<Malformed> cases;
  for (const Place& place : places()) {
    add_own_defects(place, cases);
    add_mismatches(place, cases);
    add_lent(place, cases);
  }
  add_visible(cases);
  add_lengths(cases);
  add_leading_mismatches(cases);
  add_overlaps(cases);
  cases.push_back({"backward without gradients",
                   Act::backward,
                   [](Call& call) {
                     BackwardTensors& t = call.backward;
                     t.grad_q = t.grad_k = t.grad_v = t.grad_bias = {};
                   },
                   {"no gradient is requested", "grad_q, grad_k, grad_v, grad_bias"}});
  cases.push_back({"grad_bias without bias",
                   Act::backward,
                   [](Call& call) { call.backward.bias = {}; },
                   {"grad_bias is given without bias"}});
  return cases;
}

class MalformedTensor : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedTensor, IsRefused) { expect_refused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Everywhere, MalformedTensor, ::testing::ValuesIn(all_cases()), test_name);

// What the cases spoil is sound before: forward, backward and the plans pass.
TEST(MalformedTensor, ValidCallIsAccepted) {
  Call call;
  EXPECT_NO_THROW(forward(call.attention, call.forward));
  EXPECT_NO_THROW(backward(call.attention, call.backward));
  EXPECT_NO_THROW((void)plan(call.attention, call.forward));
  EXPECT_NO_THROW((void)plan(call.attention, call.backward));
  EXPECT_NO_THROW((void)plan(call.attention, call.shapes));
  Call packed;
  packed.pack();
  EXPECT_NO_THROW(forward(packed.attention, packed.forward));
  EXPECT_NO_THROW(backward(packed.attention, packed.backward));
}

// Workspace may end where a tensor begins.
TEST(MalformedTensor, WorkspaceBesideATensorIsAccepted) {
  Call call;
  const std::size_t bytes = plan(call.attention, call.forward).workspace_bytes;
  const GuardedBuffer memory(bytes + 2 * 3 * 4 * 6 * sizeof(float));
  call.execution.workspace = {memory.data(), bytes};
  call.forward.out.data = static_cast<std::byte*>(memory.data()) + bytes;
  EXPECT_NO_THROW(forward(call.attention, call.forward, call.execution));
  call.execution.workspace.bytes += 1;
  EXPECT_THROW(forward(call.attention, call.forward, call.execution), Error);
}

// Rows between each other, strides (3, 2) for sizes (2, 3): nothing is addressed
// twice, and every kernel's result is the same as anywhere else.
TEST(MalformedTensor, InterleavedRowsOfOneOutputAreAccepted) {
  std::vector<float> q(6, 1.0F), k(6, 1.0F), v(6), out(8, -1.0F);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i);
  const Extents shape{1, 2, 3, 1};
  const Tensor interleaved = tensor(static_cast<void*>(out.data()), DType::fp32, shape, {0, 3, 2, 1});
  forward({}, {.q = tensor(q.data(), shape),
               .k = tensor(k.data(), shape),
               .v = tensor(v.data(), shape),
               .out = interleaved});
  for (std::size_t head = 0; head < 3; ++head) {
    for (std::size_t row = 0; row < 2; ++row) {
      EXPECT_FLOAT_EQ(out[row * 3 + head * 2], (v[head] + v[3 + head]) / 2);
    }
  }
  EXPECT_EQ(out[1], -1.0F);
  EXPECT_EQ(out[6], -1.0F);
}

// Views that look alike but share no element: both halves of one interleaved buffer.
TEST(MalformedTensor, InterleavedOutputsAreAccepted) {
  Call call;
  std::vector<float> both(2 * 3 * 4 * 12);
  call.forward.out = tensor(both.data(), DType::fp32, {2, 3, 4, 6}, {144, 48, 12, 1});
  call.forward.q = tensor(both.data() + 6, DType::fp32, {2, 3, 4, 6}, {144, 48, 12, 1});
  call.forward.k = tensor(call.forward.k.data, DType::fp32, {2, 5, 2, 6});
  EXPECT_NO_THROW(forward(call.attention, call.forward));
}

}  // namespace
}  // namespace tessera::test
