// cuda.standard and cuda.standard_fused, the baselines: attention as a framework
// computes it without a fused kernel. The N x N matrix of every head is stored in
// memory, and cuBLAS multiplies:
//
//   forward    S = Q K^T  |  S passes  |  P = softmax(S)  |  dropout(P)  |  O = P V
//   backward   S = Q K^T  |  S passes  |  P = exp(S - LSE), dP = dO V^T  |  dropout(dP)
//              |  dS = P o (dP - delta)  |  d(bias)  |  softcap's derivative  |  dropout(P)
//              |  dQ = scale dS K, dK = scale dS^T Q, dV = P^T dO
//   S passes   scale  |  softcap  |  ALiBi  |  bias  |  mask
//
// Every bar is a pass that reads and writes a whole matrix, as one operator of a framework does.
// cuda.standard_fused does as Megatron does: one kernel does everything between the products, and
// the scale is a factor of the first product. A framework would have kept P for backward. A call of
// this library has the output and the LSE, so P is computed again.
//
// S is fp32 for 16-bit tensors too: the contract requires scores of 1e5, which fp16 cannot hold and
// bf16 rounds to multiples of 512. P, dP and dS have the type of the tensors, which
// the tensor cores multiply.
//
// Packed sequences are padded. Their lengths are in device memory, where the host cannot read them
// without waiting; so each sequence is copied to one of the greatest length and multiplied as such.
// A framework pads a batch of different lengths in the same way.
#include "cuda/baselines/standard/launch.h"

#include <algorithm>
#include <limits>

#include "core/base/text.h"
#include "cuda/baselines/delta.h"
#include "cuda/baselines/standard/cublas.h"
#include "cuda/baselines/standard/passes.h"
#include "cuda/common/host/arena.h"
#include "cuda/common/host/launch.h"
#include "cuda/common/host/limits.h"

namespace tessera::cuda::standard {
namespace {

enum class Fusion { separate, fused };

// Elements: rows in the workspace begin on 16-byte boundaries.
constexpr std::int64_t kRowMultiple = 8;

std::int64_t padded(std::int64_t columns) {
  return (columns + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

// A tensor of the call as cuBLAS sees it.
struct TensorShape {
  Side side;
  std::int64_t heads, length, columns;
};

TensorShape query_shape(const core::Problem& p, std::int64_t columns) {
  return {Side::queries, p.q_heads, p.q_length, columns};
}
TensorShape key_shape(const core::Problem& p, std::int64_t columns) {
  return {Side::keys, p.kv_heads, p.k_length, columns};
}

// Whether cuBLAS reads or writes the rows in place. Rows that it could only access
// in chunks of less than 16 bytes are copied too: it would multiply in another
// order, and results must not depend on the alignment of tensors.
bool in_place(const core::Problem& p, const core::View& view, const TensorShape& shape) {
  if (p.packed) return false;
  const bool rows = shape.length == 1 || (view.row_stride >= shape.columns &&
                                          view.row_stride <= std::numeric_limits<std::int32_t>::max());
  return rows && aligned(view, p.dtype);
}

// Whether a result is a sum over the query heads of a group: several products, added up in fp32.
bool sums_heads(const core::Problem& p, const TensorShape& shape) {
  return shape.side == Side::keys && p.group() > 1;
}

// The arrays of a call besides its tensors, cut from the workspace.
struct Memory {
  Matrices m{};
  void *q = nullptr, *k = nullptr, *v = nullptr, *grad_out = nullptr;  // dense copies; null: not needed
  void *out = nullptr, *grad_q = nullptr, *grad_k = nullptr, *grad_v = nullptr;  // dense results, likewise
  std::int32_t* flags = nullptr;
  std::int64_t flag_count = 0;
  void* cublas = nullptr;
  std::size_t cublas_bytes = 0;

  Memory(Arena& arena, const core::Problem& p, Fusion fusion) {
    const bool backward = p.direction == Direction::backward;
    const std::size_t element = size_of(p.dtype);
    m.row_stride = padded(p.k_length);
    const std::int64_t rows = p.batch * p.q_heads * p.q_length;
    m.scores = arena.take<float>(rows, m.row_stride);
    m.probabilities = arena.take<std::byte>(rows, m.row_stride, element);
    if (backward) {
      m.gradients = arena.take<std::byte>(rows, m.row_stride, element);
      if (p.softcap != 0 && (fusion == Fusion::separate || p.has_grad_bias)) {
        m.derivatives = arena.take<std::byte>(rows, m.row_stride, element);
      }
      m.delta = arena.take<float>(rows);
    }
    auto count = [&](const TensorShape& s) { return p.batch * s.heads * s.length * padded(s.columns); };
    auto copy = [&](const core::View& view, const TensorShape& s) {
      return in_place(p, view, s) ? nullptr : arena.take<std::byte>(count(s), element);
    };
    auto result = [&](const core::View& view, const TensorShape& s) -> void* {
      if (sums_heads(p, s)) return arena.take<std::byte>(count(s), sizeof(float));
      return in_place(p, view, s) ? nullptr : arena.take<std::byte>(count(s), element);
    };
    q = copy(p.q, query_shape(p, p.qk_dim));
    k = copy(p.k, key_shape(p, p.qk_dim));
    v = copy(p.v, key_shape(p, p.v_dim));
    if (backward) {
      grad_out = copy(p.grad_out, query_shape(p, p.v_dim));
      if (p.has_grad_q) grad_q = result(p.grad_q, query_shape(p, p.qk_dim));
      if (p.has_grad_k) grad_k = result(p.grad_k, key_shape(p, p.qk_dim));
      if (p.has_grad_v) grad_v = result(p.grad_v, key_shape(p, p.v_dim));
    } else {
      out = result(p.out, query_shape(p, p.v_dim));
    }
    flag_count = p.batch * (p.kv_heads + (backward ? 2 * p.q_heads : 0));
    flags = arena.take<std::int32_t>(flag_count);
    cublas_bytes = cublas_workspace_bytes(device_limits(p.device.index).capability);
    cublas = arena.take_bytes(cublas_bytes);
  }
};

#if TESSERA_HAVE_CUDA

class Standard {
 public:
  Standard(const core::Problem& p, const core::Resources& resources, Fusion fusion)
      : p_(p),
        fusion_(fusion),
        stream_(resources.stream),
        scope_(p.device.index),
        memory_(make_memory(p, resources, fusion)),
        m_(memory_.m),
        cublas_(resources.stream, memory_.cublas, memory_.cublas_bytes) {}

  void forward() {
    const BatchedMatrix q = query_operand(p_.q, p_.qk_dim, memory_.q),
                        k = key_operand(p_.k, p_.qk_dim, memory_.k);
    const BatchedMatrix v = key_operand(p_.v, p_.v_dim, memory_.v);
    scores(q, k);
    if (fusion_ == Fusion::fused) {
      fused_softmax(p_, m_, stream_);
    } else {
      score_passes();
      softmax(p_, m_, stream_);
      if (p_.dropout) dropout(p_, m_, m_.probabilities, stream_);
    }
    clear_flags();
    multiply_query_rows(Product::out, m_.probabilities, v, 1);
  }

  void backward() {
    const BatchedMatrix q = query_operand(p_.q, p_.qk_dim, memory_.q),
                        k = key_operand(p_.k, p_.qk_dim, memory_.k);
    const BatchedMatrix v = key_operand(p_.v, p_.v_dim, memory_.v);
    const BatchedMatrix grad_out = query_operand(p_.grad_out, p_.v_dim, memory_.grad_out);
    scores(q, k);
    row_delta(p_, m_.delta, stream_);
    outer_product(grad_out, v, p_.v_dim, matrix(m_.gradients, p_.dtype), 1);
    if (fusion_ == Fusion::fused) {
      fused_gradients(p_, m_, stream_);
    } else {
      score_passes();
      probabilities(p_, m_, stream_);
      if (p_.dropout) dropout(p_, m_, m_.gradients, stream_);
      score_gradients(p_, m_, stream_);
      if (p_.dropout) dropout(p_, m_, m_.probabilities, stream_);
    }
    if (p_.has_grad_bias) bias_gradient(p_, m_, stream_);
    if (m_.derivatives != nullptr) multiply_derivatives(p_, m_, stream_);
    clear_flags();
    const auto scale = static_cast<float>(p_.scale);
    if (p_.has_grad_q) multiply_query_rows(Product::grad_q, m_.gradients, k, scale);
    if (p_.has_grad_k) multiply_key_rows(Product::grad_k, m_.gradients, q, scale);
    if (p_.has_grad_v) multiply_key_rows(Product::grad_v, m_.probabilities, grad_out, 1);
  }

 private:
  static Memory make_memory(const core::Problem& p, const core::Resources& resources, Fusion fusion) {
    Arena arena(resources.workspace);
    return {arena, p, fusion};
  }

  // ---- operands ---------------------------------------------------------------------------------

  BatchedMatrix dense(void* data, DType dtype, const TensorShape& s) const {
    const std::int64_t row = padded(s.columns), head = s.length * row;
    const bool queries = s.side == Side::queries;
    return {data, dtype, row, {s.heads * head, queries ? p_.group() * head : head, queries ? head : 0}};
  }

  BatchedMatrix in_tensor(const core::View& view, const TensorShape& s) const {
    const bool queries = s.side == Side::queries;
    return {view.data,
            p_.dtype,
            s.length == 1 ? padded(s.columns) : view.row_stride,
            {view.batch_stride, queries ? p_.group() * view.head_stride : view.head_stride,
             queries ? view.head_stride : 0}};
  }

  // A tensor, or its dense copy where there is one.
  BatchedMatrix operand(const core::View& view, const TensorShape& s, void* copy) const {
    if (copy == nullptr) return in_tensor(view, s);
    gather(p_, view, s.side, s.columns, copy, stream_);
    return dense(copy, p_.dtype, s);
  }
  BatchedMatrix query_operand(const core::View& view, std::int64_t columns, void* copy) const {
    return operand(view, query_shape(p_, columns), copy);
  }
  BatchedMatrix key_operand(const core::View& view, std::int64_t columns, void* copy) const {
    return operand(view, key_shape(p_, columns), copy);
  }

  // A result of the call, or the dense array that it comes from.
  BatchedMatrix result(const core::View& view, const TensorShape& s, void* array) const {
    return array == nullptr ? in_tensor(view, s) : dense(array, result_type(s), s);
  }
  DType result_type(const TensorShape& s) const { return sums_heads(p_, s) ? DType::fp32 : p_.dtype; }

  void store(void* array, const core::View& target, const TensorShape& s) const {
    if (array != nullptr) scatter(p_, array, result_type(s), s.side, s.columns, target, stream_);
  }
  void store_zeros(const core::View& target, const TensorShape& s) const {
    scatter(p_, nullptr, DType::fp32, s.side, s.columns, target, stream_);
  }

  BatchedMatrix matrix(void* data, DType dtype) const {
    const std::int64_t head = p_.q_length * m_.row_stride;
    return {data, dtype, m_.row_stride, {p_.q_heads * head, p_.group() * head, head}};
  }

  // ---- products ---------------------------------------------------------------------------------

  // matrix = alpha rows columns^T
  void outer_product(const BatchedMatrix& rows, const BatchedMatrix& columns, std::int64_t depth,
                     const BatchedMatrix& target, float alpha) {
    if (no_elements()) return;
    cublas_.multiply({.b_transposed = Transpose::yes,
                      .rows = p_.q_length,
                      .columns = p_.k_length,
                      .depth = depth,
                      .batch = {p_.batch, p_.kv_heads, p_.group()},
                      .alpha = alpha,
                      .each_sequence = p_.direction == Direction::forward,
                      .a = rows,
                      .b = columns,
                      .c = target});
  }

  void scores(const BatchedMatrix& q, const BatchedMatrix& k) {
    const float alpha = fusion_ == Fusion::fused ? static_cast<float>(p_.scale) : 1;
    outer_product(q, k, p_.qk_dim, matrix(m_.scores, DType::fp32), alpha);
  }

  // out or grad_q = alpha matrix operand
  void multiply_query_rows(Product product, void* values, const BatchedMatrix& operand, float alpha) {
    const bool is_out = product == Product::out;
    const TensorShape shape = query_shape(p_, is_out ? p_.v_dim : p_.qk_dim);
    const core::View& target = is_out ? p_.out : p_.grad_q;
    void* array = is_out ? memory_.out : memory_.grad_q;
    if (no_elements()) return store_zeros(target, shape);
    cublas_.multiply({.rows = p_.q_length,
                      .columns = shape.columns,
                      .depth = p_.k_length,
                      .batch = {p_.batch, p_.kv_heads, p_.group()},
                      .alpha = alpha,
                      .each_sequence = p_.direction == Direction::forward,
                      .a = matrix(values, p_.dtype),
                      .b = operand,
                      .c = result(target, shape, array)});
    store(array, target, shape);
    std::int32_t* flags = memory_.flags;
    find_non_finite(p_, is_out ? p_.v : p_.k, Side::keys, shape.columns, flags, stream_);
    repair(p_, m_, product, flags, stream_);
  }

  // grad_k or grad_v = alpha matrix^T operand, summed over the query heads of a group
  void multiply_key_rows(Product product, void* values, const BatchedMatrix& operand, float alpha) {
    const bool is_v = product == Product::grad_v;
    const TensorShape shape = key_shape(p_, is_v ? p_.v_dim : p_.qk_dim);
    const core::View& target = is_v ? p_.grad_v : p_.grad_k;
    void* array = is_v ? memory_.grad_v : memory_.grad_k;
    if (no_elements()) return store_zeros(target, shape);
    BatchedProduct one{.a_transposed = Transpose::yes,
                       .rows = p_.k_length,
                       .columns = shape.columns,
                       .depth = p_.q_length,
                       .batch = {p_.batch, p_.kv_heads, 1},
                       .alpha = alpha,
                       .a = matrix(values, p_.dtype),
                       .b = operand,
                       .c = result(target, shape, array)};
    for (std::int64_t g = 0; g < p_.group(); ++g) {
      cublas_.multiply(one);
      one.beta = 1;
      for (BatchedMatrix* m : {&one.a, &one.b}) {
        m->data =
            static_cast<std::byte*>(m->data) + m->stride[2] * static_cast<std::int64_t>(size_of(m->dtype));
      }
    }
    store(array, target, shape);
    std::int32_t* flags = memory_.flags + p_.batch * (p_.kv_heads + (is_v ? p_.q_heads : 0));
    find_non_finite(p_, is_v ? p_.grad_out : p_.q, Side::queries, shape.columns, flags, stream_);
    repair(p_, m_, product, flags, stream_);
  }

  // ---- passes -----------------------------------------------------------------------------------

  bool no_elements() const { return p_.batch == 0 || p_.q_length == 0 || p_.k_length == 0; }

  void score_passes() {
    edit_scores(p_, m_, Step::scale, stream_);
    if (p_.softcap != 0) edit_scores(p_, m_, Step::softcap, stream_);
    if (p_.alibi_slopes != nullptr) edit_scores(p_, m_, Step::alibi, stream_);
    if (p_.has_bias) edit_scores(p_, m_, Step::bias, stream_);
    const bool masked = p_.left != core::kUnbounded || p_.right != core::kUnbounded || p_.packed || p_.blocks;
    if (masked) edit_scores(p_, m_, Step::mask, stream_);
  }

  void clear_flags() {
    const auto bytes = static_cast<std::size_t>(memory_.flag_count) * sizeof(std::int32_t);
    if (bytes == 0) return;
    check(cudaMemsetAsync(memory_.flags, 0, bytes, static_cast<cudaStream_t>(stream_)),
          "cuda.standard: flags");
  }

  const core::Problem& p_;
  Fusion fusion_;
  void* stream_;
  DeviceScope scope_;
  Memory memory_;
  const Matrices& m_;
  Cublas cublas_;
};

#else

struct Standard {
  Standard(const core::Problem& /*p*/, const core::Resources& /*resources*/, Fusion /*fusion*/) {}
  void forward() const { launch(KernelCall{}, "cuda.standard", 1, 1, 0, nullptr); }
  void backward() const { forward(); }
};

#endif

std::optional<core::Choice> choose(const core::Problem& p, Fusion fusion, core::Reason reason) {
  if (gpu_limit(p, {.least = 75}, Code::any, reason)) return std::nullopt;
  const DeviceLimits& device = device_limits(p.device.index, Code::any);
  if (p.dtype == DType::bf16 && device.capability < 80) {
    return reason.decline("requires compute capability 8.0 for bf16; cuda:", p.device.index, " has ",
                          Capability{device.capability});
  }
  // The kernels count rows in 32 bits, and have fewer thread blocks than rows; those of the bias'
  // gradient take 32 columns of a row.
  const std::int64_t bias_rows = p.has_grad_bias ? product(p.bias_batch, p.bias_heads, p.bias_rows) : 0;
  if (length_limit(p, reason) || row_limit(p, std::max(p.q_length, p.k_length), reason) ||
      grid_limit(product(bias_rows, p.k_length / 32 + 1), reason)) {
    return std::nullopt;
  }
  if (!cublas_missing().empty()) return reason.decline(cublas_missing());
  Arena arena;
  Memory(arena, p, fusion);
  return core::Choice{.block_q = p.q_length,
                      .block_k = p.k_length,
                      .workspace_bytes = arena.used(),
                      .traffic_cache_bytes = static_cast<double>(device.l2_bytes),
                      .decision = fusion};
}

}  // namespace

std::optional<core::Choice> choose_separate(const core::Problem& p, int /*workers*/, core::Reason reason) {
  return choose(p, Fusion::separate, reason);
}

std::optional<core::Choice> choose_fused(const core::Problem& p, int /*workers*/, core::Reason reason) {
  return choose(p, Fusion::fused, reason);
}

std::string details(const core::Problem& /*p*/, const core::Choice& /*choice*/) {
  return core::concat(cublas_description(), " for the products; S in fp32");
}

void run(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  Standard standard(p, resources, choice.decision.as<Fusion>());
  p.direction == Direction::forward ? standard.forward() : standard.backward();
}

}  // namespace tessera::cuda::standard
