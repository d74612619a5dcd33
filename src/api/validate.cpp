#include "api/validate.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "api/overlap.h"
#include "api/tensor_checks.h"
#include "core/base/checked.h"
#include "core/block_mask.h"
#include "core/philox.h"
#include "cuda/common/host/gpus.h"

namespace tessera::api {
namespace {

using core::Problem;

using core::kMaxPosition;

constexpr std::int64_t kMaxDiagonal = std::int64_t{1} << 48;
// A bound that hides nothing: wider than any diagonal, local or global, is away from any position.
constexpr std::int64_t kHidesNothing = std::int64_t{1} << 50;
static_assert(kHidesNothing > kMaxDiagonal + 3 * kMaxPosition);

// Refuses a pointer that its type does not allow; null passes.
template <typename T>
void check_aligned(const char* name, const T* pointer) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignof(T) == 0) return;
  refuse(name, " is ", static_cast<const void*>(pointer), "; it must be aligned to ", alignof(T), " bytes");
}

// ---- the description -----------------------------------------------------------------------------------

// Scale and softcap. Kernels also form their quotient, inverses and products with log2(e) and keep_scale, in the accumulator
// type: none of these may overflow or round to 0, or infinity * 0 would make a NaN of finite scores.
void take_score_factors(const Attention& attention, Problem& p) {
  const bool fp64 = accumulator_of(p.dtype) == DType::fp64;
  const double most = fp64 ? 0x1p1000 : 0x1p100;
  auto in_range = [most](double x) { return std::abs(x) >= 1 / most && std::abs(x) <= most; };
  const char* range = fp64 ? "between 2^-1000 and 2^1000 in absolute value, since scores are summed in fp64"
                           : "between 2^-100 and 2^100 in absolute value, since scores are summed in fp32";

  p.scale = attention.scale.value_or(1.0 / std::sqrt(static_cast<double>(p.qk_dim)));
  if (!std::isfinite(p.scale)) refuse("attention.scale is ", p.scale, "; it must be finite");
  if (p.scale != 0 && !in_range(p.scale)) {
    refuse("attention.scale is ", p.scale, "; it must be 0 or ", range);
  }
  p.softcap = attention.softcap;
  if (!std::isfinite(p.softcap) || p.softcap < 0) {
    refuse("attention.softcap is ", p.softcap, "; it must be finite and at least 0 (off)");
  }
  if (p.softcap == 0) return;
  if (!in_range(p.softcap)) refuse("attention.softcap is ", p.softcap, "; it must be 0 (off) or ", range);
  if (p.scale != 0 && !in_range(p.scale / p.softcap)) {
    refuse("attention.softcap is ", p.softcap, " with a scale of ", p.scale, "; scale / softcap must be ",
           range);
  }
}

// GPUs count distances in 32 bits. Lengths are bounded by each kernel; a diagonal that follows from them is, too.
void check_alibi_distance(const Problem& p) {
  if (p.alibi_slopes == nullptr || (!p.explicit_diagonal && p.align == Align::bottom_right)) return;
  const std::int64_t diagonal = p.origin.row - p.origin.column + (p.explicit_diagonal ? p.diagonal : 0);
  if (std::abs(diagonal) < core::kFarthestAlibi) return;
  refuse("attention.alibi counts from a diagonal that begins ", std::abs(diagonal), " positions ",
         diagonal < 0 ? "before" : "after", " key 0 (origin.row - origin.column + mask.diagonal is ",
         diagonal, "); it must be less than 2^29 away; pass such distances as a bias");
}

void take_options(const Attention& attention, Problem& p) {
  if (attention.algorithm > Algorithm::minimal) {
    refuse("attention.algorithm is ", static_cast<int>(attention.algorithm),
           "; it must be automatic, standard, flash1, flash2, flash3 or minimal");
  }
  p.algorithm = attention.algorithm;
  p.deterministic = attention.deterministic;

  take_score_factors(attention, p);

  const Dropout& dropout = attention.dropout;
  if (!(dropout.probability >= 0 && dropout.probability < 1)) {
    refuse("attention.dropout.probability is ", dropout.probability, "; it must be in [0, 1)");
  }
  p.dropout = dropout.probability > 0;
  p.dropout_threshold = core::dropout_threshold(dropout.probability);
  if (p.dropout_threshold == core::kDropoutSteps) {
    refuse("attention.dropout.probability is ", dropout.probability,
           "; in steps of 2^-15 that is 1 and keeps nothing; it must be below 1 - 2^-16");
  }
  p.keep_scale = core::dropout_keep_scale(p.dropout_threshold);
  p.seed = dropout.seed;
  p.offset = dropout.offset;
  p.dropout_state = dropout.state;
  check_aligned("attention.dropout.state", dropout.state);

  if (attention.alibi.batch_stride < 0) {
    refuse("attention.alibi.batch_stride is ", attention.alibi.batch_stride, "; it must not be negative");
  }
  check_aligned("attention.alibi.slopes", attention.alibi.slopes);
  p.alibi_slopes = attention.alibi.slopes;
  p.alibi_batch_stride = attention.alibi.batch_stride;

  p.origin = attention.origin;
  auto check_position = [](const char* name, std::int64_t first, std::int64_t count) {
    if (first < 0 || first > kMaxPosition - count) {
      refuse("attention.origin.", name, " is ", first,
             "; it must not be negative, and the last position must be below 2^32");
    }
  };
  check_position("row", p.origin.row, p.q_length);
  check_position("column", p.origin.column, p.k_length);
  check_position("batch", p.origin.batch, p.batch);
  check_position("head", p.origin.head, p.q_heads);
  check_alibi_distance(p);
}

void take_band(const Mask& mask, Problem& p) {
  auto bound = [](const char* name, std::int64_t value) {
    if (value < core::kUnbounded) {
      refuse("attention.mask.", name, " is ", value, "; it must be at least 0, or -1 for no bound");
    }
    return std::min(value, kHidesNothing);
  };
  p.left = bound("left", mask.left);
  p.right = bound("right", mask.right);
  if (mask.align > Align::top_left) {
    refuse("attention.mask.align is ", static_cast<int>(mask.align), "; it must be bottom_right or top_left");
  }
  p.align = mask.align;
  p.explicit_diagonal = mask.diagonal.has_value();
  p.diagonal = mask.diagonal.value_or(0);
  if (p.diagonal < -kMaxDiagonal || p.diagonal > kMaxDiagonal) {
    refuse("attention.mask.diagonal is ", p.diagonal, "; it must be between -2^48 and 2^48");
  }
}

void take_blocks(const Mask& mask, Problem& p) {
  if (!mask.blocks) return;
  const BlockLayout& layout = mask.blocks.layout();
  auto check_length = [&](const char* name, std::int64_t made_for, std::int64_t length) {
    const bool fits = p.packed ? made_for >= length : made_for == length;
    if (!fits) {
      refuse("attention.mask.blocks is made for ", name, " ", made_for, "; it must be ",
             p.packed ? "at least " : "", length, ", as the tensors");
    }
  };
  check_length("q_length", layout.q_length, p.q_length);
  check_length("k_length", layout.k_length, p.k_length);
  if (layout.heads != 1 && layout.heads != p.q_heads) {
    refuse("attention.mask.blocks is made for ", layout.heads, " heads; it must be 1 or ", p.q_heads,
           ", the heads of q");
  }
  p.blocks = core::view(mask.blocks);
}

// ---- packed sequences ----------------------------------------------------------------------------------

// Checks one array of cumulative lengths on the host and returns the longest sequence.
std::int64_t check_cumulative(const char* which, const std::int32_t* cumulative, std::int64_t count,
                              std::int64_t tokens) {
  if (cumulative[0] != 0) {
    refuse("attention.mask.lengths.", which, "[0] is ", cumulative[0], "; it must be 0");
  }
  std::int64_t longest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (cumulative[i + 1] < cumulative[i]) {
      refuse("attention.mask.lengths.", which, "[", i + 1, "] is ", cumulative[i + 1],
             "; it must not be less than the one before, ", cumulative[i]);
    }
    longest = std::max<std::int64_t>(longest, cumulative[i + 1] - cumulative[i]);
  }
  if (cumulative[count] != tokens) {
    refuse("attention.mask.lengths.", which, "[", count, "] is ", cumulative[count], "; it must be ", tokens,
           ", the sequence size of ", which);
  }
  return longest;
}

// One side (queries or keys) of packed sequences: its longest length.
std::int64_t take_side(const char* which, const std::int32_t* cumulative, std::int64_t count,
                       std::int64_t declared, const Argument& argument, Data data) {
  if (argument.tensor.shape[0] != 1) {
    refuse(argument.name, ".shape[0] (batch) is ", argument.tensor.shape[0],
           "; it must be 1 when sequences are packed");
  }
  const std::int64_t tokens = argument.tensor.shape[1];
  if (declared < 0 || declared > tokens) {
    refuse("attention.mask.lengths.max_", which, " is ", declared, "; it must be between 0 and ", tokens,
           ", the sequence size of ", which);
  }
  if (cumulative == nullptr) {
    if (data == Data::required) {
      refuse("attention.mask.lengths.", which, " is null; it must point to ", count + 1,
             " cumulative lengths");
    }
    if (declared == 0 && tokens != 0) {
      refuse("attention.mask.lengths.max_", which, " is 0; it must be given when the lengths are not");
    }
    return declared;
  }
  if (argument.tensor.device.type != DeviceType::cpu) {
    if (declared == 0 && tokens != 0) {
      refuse("attention.mask.lengths.max_", which,
             " is 0; it must be given when the lengths are in device memory");
    }
    return declared;
  }
  const std::int64_t longest = check_cumulative(which, cumulative, count, tokens);
  if (declared != 0 && declared < longest) {
    refuse("attention.mask.lengths.max_", which, " is ", declared, "; it must be at least ", longest,
           ", the longest sequence");
  }
  return declared != 0 ? declared : longest;
}

void take_lengths(const Mask& mask, const Argument& q, const Argument& k, Data data, Problem& p) {
  const Lengths& lengths = mask.lengths;
  p.packed = lengths.count != 0 || lengths.q != nullptr || lengths.k != nullptr;
  if (!p.packed) return;
  if (lengths.count < 0 || lengths.count >= kMaxPosition) {
    refuse("attention.mask.lengths.count is ", lengths.count, "; it must be between 0 and 2^32 - 1");
  }
  check_aligned("attention.mask.lengths.q", lengths.q);
  check_aligned("attention.mask.lengths.k", lengths.k);
  p.batch = lengths.count;
  p.q_length = take_side("q", lengths.q, lengths.count, lengths.max_q, q, data);
  p.k_length = take_side("k", lengths.k, lengths.count, lengths.max_k, k, data);
  p.cumulative_q = lengths.q;
  p.cumulative_k = lengths.k;
}

// ---- the tensors ---------------------------------------------------------------------------------------

// What kernels count: positions, heads and sequences in 32 bits, rows of all heads in 59. In a plain batch the
// elements of q and k have bounded the rows; packed sequences are as many times the longest one.
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
             " rows in the longest sequence it must give less than 2^59 rows");
    }
  }
}

// A machine without any GPU is the registry's matter: it says what each kernel lacks.
void check_gpu(const char* name, Device device) {
  if (device.type != DeviceType::cuda || cuda::unusable(device.index).empty()) return;
  if (const int count = cuda::device_count(); count > 0 && device.index >= count) {
    refuse(name, " is ", describe(device), "; this machine has ", count, count == 1 ? " GPU" : " GPUs",
           ", counted from cuda:0");
  }
}

// q, k and v: they define the sizes of the problem.
void take_inputs(const Attention& attention, const Argument& q, const Argument& k, const Argument& v,
                 Data data, Problem& p) {
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
  take_lengths(attention.mask, q, k, data, p);
  check_sizes(p);
  take_band(attention.mask, p);
  take_blocks(attention.mask, p);
  take_options(attention, p);
  if (p.alibi_slopes != nullptr && !core::product_below(kMostElements, {p.batch, p.alibi_batch_stride})) {
    refuse("attention.alibi.batch_stride is ", p.alibi_batch_stride, "; for ", p.batch,
           " batch entries there must be less than 2^59 slopes");
  }
}

void take_bias(const Argument& bias, Data data, Problem& p) {
  if (!bias.tensor.given()) return;
  check_tensor(bias, data);
  check_device(bias, p.device);
  const DType dtype = bias.tensor.dtype;
  if (dtype != p.dtype && dtype != accumulator_of(p.dtype)) {
    refuse("bias.dtype is ", name(dtype), "; it must be ", name(p.dtype),
           p.dtype == accumulator_of(p.dtype) ? "" : " or fp32", ", for q in ", name(p.dtype));
  }
  const std::int64_t sizes[3] = {p.batch, p.q_heads, p.q_length};
  for (int i = 0; i < 3; ++i) {
    if (bias.tensor.shape[i] != 1 && bias.tensor.shape[i] != sizes[i]) {
      refuse("bias.shape[", i, "] (", dimension_name(bias.role, i), ") is ", bias.tensor.shape[i],
             "; it must be 1 or ", sizes[i]);
    }
  }
  check_size(bias, 3, p.k_length, "the number of keys");
  p.has_bias = true;
  p.bias_dtype = dtype;
  p.bias_batch = bias.tensor.shape[0];
  p.bias_heads = bias.tensor.shape[1];
  p.bias_rows = bias.tensor.shape[2];
  p.bias = view_of(bias);
}

// `argument` has the shape, type and device of `model`.
void check_like(const Argument& argument, const Argument& model, Data data) {
  check_tensor(argument, data);
  const std::string as = std::string("as ") + model.name;
  check_dtype(argument, model.tensor.dtype, as);
  check_device(argument, model.tensor.device);
  for (int i = 0; i < 4; ++i) check_size(argument, i, model.tensor.shape[i], as);
}

// out or grad_out: the rows of q with the head_dim of v.
void check_output_shape(const Argument& argument, const Argument& q, const Problem& p, Data data) {
  check_tensor(argument, data);
  check_dtype(argument, p.dtype, "as q");
  check_device(argument, p.device);
  for (int i = 0; i < 3; ++i) check_size(argument, i, q.tensor.shape[i], "as q");
  check_size(argument, 3, p.v_dim, "as v");
}

// lse or grad_lse: one number per row.
void check_lse_shape(const Argument& argument, const Argument& q, const Problem& p, Data data) {
  check_tensor(argument, data);
  check_dtype(argument, accumulator_of(p.dtype), "the accumulator of ", name(p.dtype));
  check_device(argument, p.device);
  check_size(argument, 0, q.tensor.shape[0], "as q");
  check_size(argument, 1, p.q_heads, "the heads of q");
  check_size(argument, 2, q.tensor.shape[1], "the sequence size of q");
  check_size(argument, 3, 1, "one number per row");
}

// Every output is writable and shares no memory with an input or another output.
void check_outputs(std::initializer_list<Argument> inputs, std::initializer_list<Argument> outputs) {
  for (const Argument& output : outputs) {
    if (!output.tensor.given()) continue;
    check_writable(output);
    for (const Argument& input : inputs) {
      if (input.tensor.given() && overlap(output.tensor, input.tensor)) {
        refuse(output.name, " overlaps ", input.name, " in memory (", output.tensor.data, " and ",
               input.tensor.data, "); outputs may not share memory with inputs");
      }
    }
    for (const Argument& other : outputs) {
      if (&other == &output) break;
      if (other.tensor.given() && overlap(output.tensor, other.tensor)) {
        refuse(output.name, " overlaps ", other.name, " in memory (", output.tensor.data, " and ",
               other.tensor.data, "); outputs may not share memory with each other");
      }
    }
  }
}

// ---- sizes without tensors -----------------------------------------------------------------------------

// Everything about sizes that the tensors made for them could be refused for, under the names that the caller knows.
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
           " rows, ", heads, " heads and head_dim ", dim, " a tensor must have less than 2^59 elements");
  }
  if (shapes.bias && !core::product_below(kMostElements, {shapes.q_length, shapes.k_length})) {
    refuse("shapes.bias is true; with ", shapes.q_length, " queries and ", shapes.k_length,
           " keys it must have less than 2^59 elements");
  }
}

// ---- lent workspace ------------------------------------------------------------------------------------

// Memory that the call writes before it has read everything.
template <typename Arguments>
void check_lent(const Workspace& lent, const Problem& p, const Arguments& arguments) {
  auto check = [&](const char* name, const Tensor& tensor) {
    if (!tensor.given() || !overlap(tensor, lent.data, lent.bytes)) return;
    refuse("execution.workspace overlaps ", name, " in memory (", lent.bytes, " bytes at ", lent.data,
           ", and ", tensor.data, "); lend memory that holds nothing else");
  };
  for (const auto& [name, tensor] : arguments) check(name, *tensor);
  auto check_array = [&](const char* name, const auto* data, std::int64_t count) {
    if (data == nullptr) return;
    const auto bytes = count * static_cast<std::int64_t>(sizeof(*data));
    // As bf16: the type of two bytes each.
    check(name, tensor(const_cast<void*>(static_cast<const void*>(data)), DType::bf16, {1, 1, 1, bytes / 2}));
  };
  check_array("attention.mask.lengths.q", p.cumulative_q, p.batch + 1);
  check_array("attention.mask.lengths.k", p.cumulative_k, p.batch + 1);
  const std::int64_t last_entry = std::max<std::int64_t>(p.batch - 1, 0) * p.alibi_batch_stride;
  check_array("attention.alibi.slopes", p.alibi_slopes, last_entry + p.q_heads);
  check_array("attention.dropout.state", p.dropout_state, 2);
}

using Named = std::pair<const char*, const Tensor*>;

}  // namespace

Problem make_problem(const Attention& attention, const ForwardTensors& tensors, Data data) {
  Problem p;
  p.direction = Direction::forward;
  const Argument q{"q", tensors.q, TensorRole::tokens}, k{"k", tensors.k, TensorRole::tokens};
  const Argument v{"v", tensors.v, TensorRole::tokens}, out{"out", tensors.out, TensorRole::tokens};
  const Argument bias{"bias", tensors.bias, TensorRole::bias}, lse{"lse", tensors.lse, TensorRole::lse};

  take_inputs(attention, q, k, v, data, p);
  take_bias(bias, data, p);
  check_output_shape(out, q, p, data);
  p.out = view_of(out);
  p.has_lse = tensors.lse.given();
  if (p.has_lse) {
    check_lse_shape(lse, q, p, data);
    p.lse = view_of(lse);
  }
  check_outputs({q, k, v, bias}, {out, lse});
  return p;
}

Problem make_problem(const Attention& attention, const BackwardTensors& tensors, Data data) {
  Problem p;
  p.direction = Direction::backward;
  const Argument q{"q", tensors.q, TensorRole::tokens}, k{"k", tensors.k, TensorRole::tokens};
  const Argument v{"v", tensors.v, TensorRole::tokens}, out{"out", tensors.out, TensorRole::tokens};
  const Argument bias{"bias", tensors.bias, TensorRole::bias}, lse{"lse", tensors.lse, TensorRole::lse};
  const Argument grad_out{"grad_out", tensors.grad_out, TensorRole::tokens};
  const Argument grad_lse{"grad_lse", tensors.grad_lse, TensorRole::lse};
  const Argument grad_q{"grad_q", tensors.grad_q, TensorRole::tokens};
  const Argument grad_k{"grad_k", tensors.grad_k, TensorRole::tokens};
  const Argument grad_v{"grad_v", tensors.grad_v, TensorRole::tokens};
  const Argument grad_bias{"grad_bias", tensors.grad_bias, TensorRole::bias};

  take_inputs(attention, q, k, v, data, p);
  take_bias(bias, data, p);
  check_output_shape(out, q, p, data);
  check_lse_shape(lse, q, p, data);
  check_output_shape(grad_out, q, p, data);
  p.has_lse = true;
  p.out = view_of(out);
  p.lse = view_of(lse);
  p.grad_out = view_of(grad_out);
  p.has_grad_lse = tensors.grad_lse.given();
  if (p.has_grad_lse) {
    check_lse_shape(grad_lse, q, p, data);
    p.grad_lse = view_of(grad_lse);
  }

  bool any = false;
  auto take_gradient = [&](const Argument& gradient, const Argument& of, core::View& view, bool& has) {
    if (!gradient.tensor.given()) return;
    any = true;
    check_like(gradient, of, data);
    view = view_of(gradient);
    has = !holds_nothing(gradient.tensor.shape);  // kernels then have nothing to walk over
  };
  take_gradient(grad_q, q, p.grad_q, p.has_grad_q);
  take_gradient(grad_k, k, p.grad_k, p.has_grad_k);
  take_gradient(grad_v, v, p.grad_v, p.has_grad_v);
  if (tensors.grad_bias.given() && !tensors.bias.given()) {
    refuse("grad_bias is given without bias; it must be left out, or bias be given");
  }
  take_gradient(grad_bias, bias, p.grad_bias, p.has_grad_bias);
  if (!any) {
    refuse("no gradient is asked for; at least one of grad_q, grad_k, grad_v, grad_bias must be given");
  }
  check_outputs({q, k, v, bias, out, lse, grad_out, grad_lse}, {grad_q, grad_k, grad_v, grad_bias});
  return p;
}

void check_workspace(const Workspace& lent, const Problem& p, const ForwardTensors& t) {
  check_lent(lent, p,
             std::initializer_list<Named>{
                 {"q", &t.q}, {"k", &t.k}, {"v", &t.v}, {"bias", &t.bias}, {"out", &t.out}, {"lse", &t.lse}});
}

void check_workspace(const Workspace& lent, const Problem& p, const BackwardTensors& t) {
  check_lent(lent, p,
             std::initializer_list<Named>{{"q", &t.q},
                                          {"k", &t.k},
                                          {"v", &t.v},
                                          {"bias", &t.bias},
                                          {"out", &t.out},
                                          {"lse", &t.lse},
                                          {"grad_out", &t.grad_out},
                                          {"grad_lse", &t.grad_lse},
                                          {"grad_q", &t.grad_q},
                                          {"grad_k", &t.grad_k},
                                          {"grad_v", &t.grad_v},
                                          {"grad_bias", &t.grad_bias}});
}

bool writes_nothing(const Problem& p) {
  if (p.direction == Direction::forward) return p.q_tokens == 0;
  return !(p.has_grad_q || p.has_grad_k || p.has_grad_v || p.has_grad_bias);
}

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
          .grad_bias = t.bias};
}

}  // namespace tessera::api
