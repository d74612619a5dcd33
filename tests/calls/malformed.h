// Malformed calls: a valid call, one thing made wrong, and the check that the
// library refuses it with the right code and a message that names the argument, its
// value and what is allowed, and touches nothing.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace tessera::test {

// A valid forward call, backward call and plan, for a mutation to spoil: 2 batch
// entries, 3 queries, 5 keys, 4 heads reading 2 key/value heads, head_dim 8 and 6,
// with bias and LSE. All tensors lie in one arena.
class Call {
 public:
  Attention attention{};
  ForwardTensors forward{};
  BackwardTensors backward{};
  Shapes shapes{
      .batch = 2, .q_length = 3, .k_length = 5, .q_heads = 4, .kv_heads = 2, .qk_dim = 8, .v_dim = 6};
  Device device = Device::cpu();
  Direction direction = Direction::forward;
  Execution execution{};
  std::vector<std::int32_t> lengths_q{0, 2, 6}, lengths_k{0, 5, 10};

  Call() : arena_(kArena, std::byte{0xA5}) {
    const Extents q{2, 3, 4, 8}, k{2, 5, 2, 8}, v{2, 5, 2, 6}, out{2, 3, 4, 6}, bias{2, 4, 3, 5},
        lse{2, 4, 3, 1};
    forward = {
        .q = make(q), .k = make(k), .v = make(v), .bias = make(bias), .out = make(out), .lse = make(lse)};
    for (const Tensor& input : {forward.q, forward.k, forward.v, forward.bias}) fill(input);
    backward = {.q = forward.q,
                .k = forward.k,
                .v = forward.v,
                .bias = forward.bias,
                .out = make(out),
                .lse = make(lse),
                .grad_out = make(out),
                .grad_lse = make(lse),
                .grad_q = make(q),
                .grad_k = make(k),
                .grad_v = make(v),
                .grad_bias = make(bias)};
    for (const Tensor& input : {backward.out, backward.lse, backward.grad_out, backward.grad_lse})
      fill(input);
  }

  // The same tensors as two packed sequences of 2 + 4 queries and 5 + 5 keys, without bias.
  void pack() {
    auto flatten = [](Tensor& tensor) {
      const Extents& s = tensor.shape;
      tensor =
          tensor.given() ? tessera::tensor(tensor.data, tensor.dtype, {1, s[0] * s[1], s[2], s[3]}) : tensor;
    };
    auto flatten_lse = [](Tensor& tensor) {
      const Extents& s = tensor.shape;
      tensor =
          tensor.given() ? tessera::tensor(tensor.data, tensor.dtype, {1, s[1], s[0] * s[2], 1}) : tensor;
    };
    forward.bias = backward.bias = backward.grad_bias = {};
    for (Tensor* t : {&forward.q, &forward.k, &forward.v, &forward.out}) flatten(*t);
    for (Tensor* t : {&backward.q, &backward.k, &backward.v, &backward.out, &backward.grad_out,
                      &backward.grad_q, &backward.grad_k, &backward.grad_v}) {
      flatten(*t);
    }
    for (Tensor* t : {&forward.lse, &backward.lse, &backward.grad_lse}) flatten_lse(*t);
    attention.mask.lengths = {.q = lengths_q.data(), .k = lengths_k.data(), .count = 2};
  }

  [[nodiscard]] const std::vector<std::byte>& memory() const { return arena_; }

  // Memory of the arena that no tensor uses.
  void* spare(std::size_t bytes) { return take(bytes); }

 private:
  static constexpr std::size_t kArena = 1 << 16;

  Tensor make(const Extents& shape) {
    const std::int64_t elements = shape[0] * shape[1] * shape[2] * shape[3];
    return tensor(take(static_cast<std::size_t>(elements) * sizeof(float)), DType::fp32, shape);
  }

  void* take(std::size_t bytes) {
    void* start = arena_.data() + used_;
    std::size_t room = arena_.size() - used_;
    std::align(256, bytes, start, room);
    used_ = arena_.size() - room + bytes + 64;  // a gap that no tensor covers
    return start;
  }

  static void fill(const Tensor& tensor) {
    auto* values = static_cast<float*>(tensor.data);
    const std::int64_t elements = tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * tensor.shape[3];
    for (std::int64_t i = 0; i < elements; ++i) values[i] = static_cast<float>(i % 7) * 0.25F - 0.5F;
  }

  std::vector<std::byte> arena_;
  std::size_t used_ = 0;
};

// What is done with the spoiled call.
enum class Act {
  forward,             // forward, and plan for the same tensors: the same refusal
  backward,            // likewise
  forward_with_data,   // only what needs the data is wrong: a plan may pass
  backward_with_data,  // likewise
  plan,                // plan for shapes
  custom,              // the mutation itself performs the call
};

struct Malformed {
  std::string name;
  Act act;
  std::function<void(Call&)> spoil;
  std::vector<std::string> expected;  // parts of the message; it begins with the first
  ErrorCode code = ErrorCode::invalid_argument;
};

inline std::ostream& operator<<(std::ostream& stream, const Malformed& malformed) {
  return stream << malformed.name;
}

// Runs `call` and checks that it is refused as expected.
template <typename Function>
void expect_refusal(const Malformed& malformed, const char* what, Function&& call) {
  try {
    call();
    ADD_FAILURE() << malformed.name << ": " << what << " accepted the call; it must be refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), malformed.code) << what << " said: " << error.what();
    ASSERT_FALSE(malformed.expected.empty()) << malformed.name;
    EXPECT_TRUE(std::string(error.what()).starts_with(malformed.expected.front()))
        << malformed.name << ": " << what << " said: " << error.what()
        << "\n  at the beginning, not: " << malformed.expected.front();
    for (const std::string& part : malformed.expected) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << malformed.name << ": " << what << " said: " << error.what() << "\n  without: " << part;
    }
  }
}

inline void expect_refused(const Malformed& malformed) {
  Call call;
  const std::vector<std::byte> untouched = call.memory();
  const bool forwards = malformed.act == Act::forward || malformed.act == Act::forward_with_data;
  const bool backwards = malformed.act == Act::backward || malformed.act == Act::backward_with_data;
  if (malformed.act == Act::custom) {
    expect_refusal(malformed, "the library", [&] { malformed.spoil(call); });
  } else {
    malformed.spoil(call);
  }
  if (forwards) {
    expect_refusal(malformed, "forward", [&] { forward(call.attention, call.forward, call.execution); });
  }
  if (backwards) {
    expect_refusal(malformed, "backward", [&] { backward(call.attention, call.backward, call.execution); });
  }
  if (malformed.act == Act::forward) {
    expect_refusal(malformed, "plan", [&] { (void)plan(call.attention, call.forward, call.execution); });
  }
  if (malformed.act == Act::backward) {
    expect_refusal(malformed, "plan", [&] { (void)plan(call.attention, call.backward, call.execution); });
  }
  if (malformed.act == Act::plan) {
    expect_refusal(malformed, "plan", [&] {
      (void)plan(call.attention, call.shapes, call.device, call.direction, call.execution);
    });
  }
  EXPECT_TRUE(call.memory() == untouched) << malformed.name << ": memory was written by a refused call";
}

// The name of a case as GoogleTest wants it: letters, digits and underscores.
inline std::string test_name(const ::testing::TestParamInfo<Malformed>& info) {
  std::string name = info.param.name;
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

}  // namespace tessera::test
