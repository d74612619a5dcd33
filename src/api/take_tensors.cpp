// The tensors that a call reads: q, k, v, bias and visible. They define the sizes of the problem.
#include <utility>

#include "api/arguments.h"
#include "core/base/checked.h"

namespace tessera::api {

using core::kMaxPosition;
using core::Problem;

// q, k and v: they define the sizes of the problem.
void take_inputs(const Argument& q, const Argument& k, const Argument& v, Data data, Problem& p) {
  for (const Argument& argument : {q, k, v}) check_tensor(argument, data);
  p.dtype = q.tensor.dtype;
  p.device = q.tensor.device;
  check_gpu("q.device", p.device);
  for (const Argument& argument : {k, v}) {
    check_dtype(argument, p.dtype, "as q");
    check_device(argument, p.device);
    check_size(argument, 0, q.tensor.shape[0], "as q");
  }
  check_size(k, 3, q.tensor.shape[3], "as q");
  check_size(v, 1, k.tensor.shape[1], "as k");
  check_size(v, 2, k.tensor.shape[2], "as k");
  p.batch = q.tensor.shape[0];
  p.q_length = q.tensor.shape[1];
  p.k_length = k.tensor.shape[1];
  p.q_heads = q.tensor.shape[2];
  p.kv_heads = k.tensor.shape[2];
  p.q_tokens = p.batch * p.q_length;  // fits: check_tensor bounds the elements
  p.k_tokens = p.batch * p.k_length;
  p.qk_dim = q.tensor.shape[3];
  p.v_dim = v.tensor.shape[3];
  if (p.q_heads % p.kv_heads != 0) {
    refuse("k.shape[2] (heads) is ", p.kv_heads, "; it must divide ", p.q_heads, ", the heads of q");
  }
  p.q = view_of(q);
  p.k = view_of(k);
  p.v = view_of(v);
}

// What kernels count: positions, heads and sequences in 32 bits, rows of all heads in 59. In a
// plain batch the elements of q and k have bounded the rows; packed sequences are as many times the
// longest one.
void check_sizes(const Problem& p) {
  const std::pair<const char*, std::int64_t> counts[] = {
      {p.packed ? "attention.mask.lengths.count" : "q.shape[0] (batch)", p.batch},
      {p.packed ? "attention.mask.lengths.max_q" : "q.shape[1] (sequence)", p.q_length},
      {p.packed ? "attention.mask.lengths.max_k" : "k.shape[1] (sequence)", p.k_length},
      {"q.shape[2] (heads)", p.q_heads}};
  for (const auto& [name, value] : counts) {
    if (value > kMaxPosition) refuse(name, " is ", value, "; it must be at most 2^32");
  }
  if (!p.packed) return;
  for (const auto& [heads, length] : {std::pair{p.q_heads, p.q_length}, std::pair{p.kv_heads, p.k_length}}) {
    if (!core::product_below(kMostElements, {p.batch, heads, length})) {
      refuse("attention.mask.lengths.count is ", p.batch, "; with ", heads, " heads and ", length,
             " rows in the longest sequence it must give fewer than 2^59 rows");
    }
  }
}

namespace {

// Sizes of a tensor that broadcasts over batch, heads and queries.
void check_broadcast(const Argument& argument, const Problem& p) {
  const std::int64_t sizes[3] = {p.batch, p.q_heads, p.q_length};
  for (int i = 0; i < 3; ++i) {
    const std::int64_t size = argument.tensor.shape[i];
    if (size == 1 || size == sizes[i]) continue;
    refuse(argument.name, ".shape[", i, "] (", dimension_name(argument.role, i), ") is ", size,
           "; it must be 1 or ", sizes[i]);
  }
  check_size(argument, 3, p.k_length, "the number of keys");
}

}  // namespace

void take_bias(const Argument& bias, Data data, Problem& p) {
  if (!bias.tensor.given()) return;
  check_tensor(bias, data);
  check_device(bias, p.device);
  const DType dtype = bias.tensor.dtype;
  if (dtype != p.dtype && dtype != accumulator_of(p.dtype)) {
    refuse("bias.dtype is ", name(dtype), "; it must be ", name(p.dtype),
           p.dtype == accumulator_of(p.dtype) ? "" : " or fp32", ", for q in ", name(p.dtype));
  }
  check_broadcast(bias, p);
  p.has_bias = true;
  p.bias_dtype = dtype;
  p.bias_batch = bias.tensor.shape[0];
  p.bias_heads = bias.tensor.shape[1];
  p.bias_rows = bias.tensor.shape[2];
  p.bias = view_of(bias);
}

// A dimension of stride 0 counts as one of size 1: its elements need to be summarised only once.
void take_visible(const Argument& visible, Data data, Problem& p) {
  if (!visible.tensor.given()) return;
  check_tensor(visible, data);
  check_device(visible, p.device);
  check_broadcast(visible, p);
  p.has_visible = true;
  p.visible = view_of(visible);
  auto size = [](std::int64_t count, std::int64_t stride) { return stride == 0 ? std::int64_t{1} : count; };
  p.visible_batch = size(visible.tensor.shape[0], p.visible.batch_stride);
  p.visible_heads = size(visible.tensor.shape[1], p.visible.head_stride);
  p.visible_rows = size(visible.tensor.shape[2], p.visible.row_stride);
}

}  // namespace tessera::api
