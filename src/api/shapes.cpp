#include "api/shapes.h"

#include <algorithm>
#include <utility>

#include "api/tensor_checks.h"
#include "core/base/checked.h"
#include "core/problem.h"

namespace tessera::api {
namespace {

using core::kMaxPosition;

// Everything about sizes that the tensors made for them could be refused for, under the names that
// the caller knows.
void check_shapes(const Attention& attention, const Shapes& shapes) {
  struct Size {
    const char* name;
    std::int64_t value, least, most;
  };
  const std::int64_t count = attention.mask.lengths.count;
  for (const Size& size : {Size{"shapes.batch", shapes.batch, 0, kMaxPosition},
                           {"shapes.q_length", shapes.q_length, 0, kMaxPosition},
                           {"shapes.k_length", shapes.k_length, 0, kMaxPosition},
                           {"shapes.q_heads", shapes.q_heads, 1, kMaxPosition},
                           {"shapes.kv_heads", shapes.kv_heads, 0, kMaxPosition},
                           {"shapes.qk_dim", shapes.qk_dim, 1, kMaxHeadDim},
                           {"shapes.v_dim", shapes.v_dim, 0, kMaxHeadDim},
                           {"attention.mask.lengths.count", count, 0, kMaxPosition - 1}}) {
    if (size.value >= size.least && size.value <= size.most) continue;
    refuse(size.name, " is ", size.value, "; it must be between ", size.least, " and ",
           size.most >= kMaxPosition       ? "2^32"
           : size.most == kMaxPosition - 1 ? "2^32 - 1"
                                           : "256");
  }
  if (shapes.dtype > DType::bf16) {
    refuse("shapes.dtype is ", static_cast<int>(shapes.dtype), "; it must be fp64, fp32, fp16 or bf16");
  }
  const std::int64_t kv_heads = shapes.kv_heads == 0 ? shapes.q_heads : shapes.kv_heads;
  if (shapes.q_heads % kv_heads != 0) {
    refuse("shapes.kv_heads is ", kv_heads, "; it must divide ", shapes.q_heads, ", shapes.q_heads");
  }
  const std::int64_t batch = count != 0 ? count : shapes.batch;
  const std::int64_t dim = std::max(shapes.qk_dim, shapes.v_dim);
  for (const auto& [length, heads] :
       {std::pair{shapes.q_length, shapes.q_heads}, std::pair{shapes.k_length, kv_heads}}) {
    if (core::product_below(kMostElements, {batch, length, heads, dim})) continue;
    refuse(count != 0 ? "attention.mask.lengths.count is " : "shapes.batch is ", batch, "; with ", length,
           " rows, ", heads, " heads and head_dim ", dim, " a tensor must have fewer than 2^59 elements");
  }
  for (const auto& [name, given] : {std::pair{"bias", shapes.bias}, std::pair{"visible", shapes.visible}}) {
    if (!given || core::product_below(kMostElements, {shapes.q_length, shapes.k_length})) continue;
    refuse("shapes.", name, " is true; with ", shapes.q_length, " queries and ", shapes.k_length,
           " keys it must have fewer than 2^59 elements");
  }
}

}  // namespace

ForwardTensors forward_tensors(const Attention& attention, const Shapes& shapes, Device device) {
  check_known(device);
  check_gpu("device", device);
  check_shapes(attention, shapes);
  const std::int64_t kv_heads = shapes.kv_heads == 0 ? shapes.q_heads : shapes.kv_heads;
  const std::int64_t v_dim = shapes.v_dim == 0 ? shapes.qk_dim : shapes.v_dim;
  // Packed: as if every sequence were as long as the longest.
  const std::int64_t count = attention.mask.lengths.count;
  const bool packed = count != 0;
  const std::int64_t batch = packed ? 1 : shapes.batch;
  const std::int64_t q_tokens = packed ? count * shapes.q_length : shapes.q_length;
  const std::int64_t k_tokens = packed ? count * shapes.k_length : shapes.k_length;
  auto make = [&](DType dtype, const Extents& shape) {
    return tensor(static_cast<void*>(nullptr), dtype, shape, device);
  };
  ForwardTensors t;
  t.q = make(shapes.dtype, {batch, q_tokens, shapes.q_heads, shapes.qk_dim});
  t.k = make(shapes.dtype, {batch, k_tokens, kv_heads, shapes.qk_dim});
  t.v = make(shapes.dtype, {batch, k_tokens, kv_heads, v_dim});
  t.out = make(shapes.dtype, {batch, q_tokens, shapes.q_heads, v_dim});
  if (shapes.bias) t.bias = make(shapes.dtype, {1, 1, shapes.q_length, shapes.k_length});
  if (shapes.visible) t.visible = make(DType::boolean, {1, 1, shapes.q_length, shapes.k_length});
  if (shapes.lse) t.lse = make(accumulator_of(shapes.dtype), {batch, shapes.q_heads, q_tokens, 1});
  return t;
}

BackwardTensors backward_tensors(const Attention& attention, const Shapes& shapes, Device device) {
  Shapes with_lse = shapes;
  with_lse.lse = true;
  const ForwardTensors t = forward_tensors(attention, with_lse, device);
  return {.q = t.q,
          .k = t.k,
          .v = t.v,
          .bias = t.bias,
          .out = t.out,
          .lse = t.lse,
          .grad_out = t.out,
          .grad_lse = {},
          .grad_q = t.q,
          .grad_k = t.k,
          .grad_v = t.v,
          .grad_bias = t.bias,
          .visible = t.visible};
}

}  // namespace tessera::api
