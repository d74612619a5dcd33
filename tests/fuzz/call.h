// A call of the C interface that a fuzzer chose, with memory for exactly what its tensors address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bytes.h"
#include "tessera/capi.h"

namespace tessera::fuzz {

// A tensor and its memory; `data` is null where the sizes are too large to have any.
class Buffer {
 public:
  Buffer() = default;
  // `output`: no two elements share memory. `seed` chooses the values, within [-1, 1].
  Buffer(Bytes& bytes, std::int32_t dtype, const std::int64_t (&shape)[4], bool output, std::uint32_t seed);

  [[nodiscard]] const tsr_tensor* tensor() const { return &tensor_; }
  [[nodiscard]] bool exists() const { return memory_ != nullptr; }
  // Every element in the order of its indices.
  [[nodiscard]] std::vector<double> values() const;

 private:
  void choose_layout(Bytes& bytes, bool output);
  void choose_mistake(Bytes& bytes);
  void allocate(std::uint32_t seed);

  tsr_tensor tensor_{};
  std::unique_ptr<std::byte[]> memory_;
};

// The description of the operation, with the arrays that it points to.
struct Description {
  tsr_attention attention = TSR_ATTENTION_INIT;
  std::unique_ptr<std::int32_t[]> lengths_q, lengths_k;
  std::unique_ptr<float[]> slopes;
  std::unique_ptr<std::uint64_t[]> state;
  std::shared_ptr<tsr_block_mask> mask;
};

struct Sizes {
  std::int64_t batch, sequences, q_length, k_length, longest_q, longest_k, q_heads, kv_heads, qk_dim, v_dim;
};

struct Call {
  explicit Call(Bytes& bytes);

  std::int32_t dtype;
  Sizes sizes{};
  Description description;
  Buffer q, k, v, bias, out, lse, grad_out, grad_lse, grad_q, grad_k, grad_v, grad_bias, visible;
  bool has_bias = false, has_visible = false;
  tsr_forward_tensors forward = TSR_FORWARD_TENSORS_INIT;
  tsr_backward_tensors backward = TSR_BACKWARD_TENSORS_INIT;
  // All tensors have memory: the call may be made and not only planned.
  [[nodiscard]] bool can_run() const;

 private:
  void choose_sizes(Bytes& bytes);
  void choose_mask(Bytes& bytes);
  void choose_scores(Bytes& bytes);
  void make_tensors(Bytes& bytes);
};

}  // namespace tessera::fuzz
