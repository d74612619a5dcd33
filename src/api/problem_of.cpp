#include "api/problem_of.h"

#include <initializer_list>
#include <string>

#include "api/arguments.h"
#include "api/overlap.h"

namespace tessera::api {
namespace {

using core::Problem;

// What both directions take, in the order that arguments.h requires.
void take_inputs_and_options(const Attention& attention, const Argument& q, const Argument& k,
                             const Argument& v, const Argument& bias, const Argument& visible, Data data,
                             Problem& p) {
  take_inputs(q, k, v, data, p);
  take_lengths(attention.mask, q, k, data, p);
  check_sizes(p);
  take_mask(attention.mask, p);
  take_options(attention, p);
  take_bias(bias, data, p);
  take_visible(visible, data, p);
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

}  // namespace

Problem problem_of(const Attention& attention, const ForwardTensors& tensors, Data data) {
  Problem p;
  p.direction = Direction::forward;
  const Argument q{"q", tensors.q, TensorRole::tokens}, k{"k", tensors.k, TensorRole::tokens};
  const Argument v{"v", tensors.v, TensorRole::tokens}, out{"out", tensors.out, TensorRole::tokens};
  const Argument bias{"bias", tensors.bias, TensorRole::bias}, lse{"lse", tensors.lse, TensorRole::lse};
  const Argument visible{"visible", tensors.visible, TensorRole::visible};

  take_inputs_and_options(attention, q, k, v, bias, visible, data, p);
  check_output_shape(out, q, p, data);
  p.out = view_of(out);
  p.has_lse = tensors.lse.given();
  if (p.has_lse) {
    check_lse_shape(lse, q, p, data);
    p.lse = view_of(lse);
  }
  check_outputs({q, k, v, bias, visible}, {out, lse});
  return p;
}

Problem problem_of(const Attention& attention, const BackwardTensors& tensors, Data data) {
  Problem p;
  p.direction = Direction::backward;
  const Argument q{"q", tensors.q, TensorRole::tokens}, k{"k", tensors.k, TensorRole::tokens};
  const Argument v{"v", tensors.v, TensorRole::tokens}, out{"out", tensors.out, TensorRole::tokens};
  const Argument bias{"bias", tensors.bias, TensorRole::bias}, lse{"lse", tensors.lse, TensorRole::lse};
  const Argument visible{"visible", tensors.visible, TensorRole::visible};
  const Argument grad_out{"grad_out", tensors.grad_out, TensorRole::tokens};
  const Argument grad_lse{"grad_lse", tensors.grad_lse, TensorRole::lse};
  const Argument grad_q{"grad_q", tensors.grad_q, TensorRole::tokens};
  const Argument grad_k{"grad_k", tensors.grad_k, TensorRole::tokens};
  const Argument grad_v{"grad_v", tensors.grad_v, TensorRole::tokens};
  const Argument grad_bias{"grad_bias", tensors.grad_bias, TensorRole::bias};

  take_inputs_and_options(attention, q, k, v, bias, visible, data, p);
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
    refuse("grad_bias is given without bias; pass bias or omit grad_bias");
  }
  take_gradient(grad_bias, bias, p.grad_bias, p.has_grad_bias);
  if (!any) {
    refuse("no gradient is requested; pass at least one of grad_q, grad_k, grad_v, grad_bias");
  }
  check_outputs({q, k, v, bias, visible, out, lse, grad_out, grad_lse}, {grad_q, grad_k, grad_v, grad_bias});
  return p;
}

bool writes_nothing(const Problem& p) {
  if (p.direction == Direction::forward) return p.q_tokens == 0;
  return !(p.has_grad_q || p.has_grad_k || p.has_grad_v || p.has_grad_bias);
}

}  // namespace tessera::api
