"""Attention as torch sees it: operators of torch.library for everything that traces (compile, export, fake tensors,
profiler), and an autograd function for the plain eager call, where an operator's tens of microseconds would show.

Both compute by `_calls`; the operators take the description as plain numbers and words, so that a traced graph means
the same in another process.
"""

import hashlib
from array import array

import torch
from torch.autograd.function import once_differentiable

from tessera import _core
from tessera._attention import options
from tessera.torch import _calls

_INPUTS = ("Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? alibi, Tensor? lengths_q, Tensor? lengths_k, "
           "Tensor? dropout_state, SymInt max_q, SymInt max_k, int layout, bool causal, SymInt[]? window, str align, "
           "SymInt? diagonal, float? scale, float softcap, float dropout, SymInt[] origin, str algorithm, "
           "bool deterministic, str? block_mask")

torch.library.define("tessera::forward", f"({_INPUTS}) -> (Tensor out, Tensor lse)",
                     tags=(torch.Tag.pt2_compliant_tag,))
torch.library.define("tessera::backward", f"(Tensor? grad_out, Tensor? grad_lse, Tensor out, Tensor lse, bool[] needs, "
                     f"{_INPUTS}) -> (Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_bias)",
                     tags=(torch.Tag.pt2_compliant_tag,))

# How many of an operator's inputs are tensors, and how many of those have a gradient: q, k, v and bias.
_TENSORS, _DIFFERENTIABLE = 8, 4


class Attention(torch.autograd.Function):
    """Attention in eager mode: out, or (out, lse) if asked, differentiable in q, k, v and bias through both."""

    @staticmethod
    def forward(ctx, call, return_lse, *tensors):
        out, lse = _calls.forward(*call, *tensors)
        ctx.save_for_backward(*tensors, out, lse)
        ctx.call = call
        ctx.set_materialize_grads(False)
        return (out, lse) if return_lse else out  # an output that nobody asked for would cost microseconds

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, grad_lse=None):
        if grad_out is None and grad_lse is None:
            return (None,) * (2 + _TENSORS)
        *tensors, out, lse = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:2 + _DIFFERENTIABLE]
        grads = _calls.backward(*ctx.call, grad_out, grad_lse, out, lse, needs, *tensors)
        return None, None, *grads, None, None, None, None


# --- block masks: a graph names one by what is in it ----------------------------------------------------------------

_masks: dict[str, _core.BlockMask] = {}


@torch._dynamo.assume_constant_result
def mask_key(block_mask) -> str:
    """A name for the mask in traced graphs, from its contents. The mask then lives as long as the process."""
    sizes = (block_mask.q_length, block_mask.k_length, block_mask.block_q, block_mask.block_k, block_mask.heads)
    digest = hashlib.sha256(array("q", sizes))
    for head in range(block_mask.heads):
        for q_block in range(block_mask.q_blocks):
            row = block_mask.row(q_block, head)
            digest.update(array("q", (len(row), *row)))
    key = digest.hexdigest()
    return _masks.setdefault(key, block_mask) and key


def _mask_of(key: str | None):
    if key is None or key in _masks:
        return key and _masks[key]
    raise ValueError(f"block_mask is {key!r}, a mask that this process has not made: call "
                     "tessera.torch.mask_key(block_mask) with it before running a graph that was traced elsewhere")


# --- the operators --------------------------------------------------------------------------------------------------


def _call(max_q, max_k, layout, causal, window, align, diagonal, scale, softcap, dropout, origin, algorithm,
          deterministic, block_mask):
    """What `_calls` wants to know besides the tensors."""
    description = options(causal, window and tuple(window), align, diagonal, scale, softcap, dropout, tuple(origin),
                          algorithm, deterministic, _mask_of(block_mask))
    return description, layout, max_q, max_k


@torch.library.impl("tessera::forward", ("cpu", "cuda"))
def _forward(*inputs):
    return _calls.forward(*_call(*inputs[_TENSORS:]), *inputs[:_TENSORS])


@torch.library.register_fake("tessera::forward")
def _forward_fake(q, k, v, bias, alibi, lengths_q, lengths_k, dropout_state, max_q, max_k, layout, *description):
    return _calls.empty_output(q, v), _calls.empty_lse(q, layout)


@torch.library.impl("tessera::backward", ("cpu", "cuda"))
def _backward(grad_out, grad_lse, out, lse, needs, *inputs):
    tensors = inputs[:_TENSORS]
    grads = _calls.backward(*_call(*inputs[_TENSORS:]), grad_out, grad_lse, out, lse, needs, *tensors)
    return tuple(tensors[0].new_empty(0) if grad is None else grad for grad in grads)


@torch.library.register_fake("tessera::backward")
def _backward_fake(grad_out, grad_lse, out, lse, needs, *inputs):
    return tuple(_calls.empty_rows(tensor) if needed else inputs[0].new_empty(0)
                 for tensor, needed in zip(inputs[:_DIFFERENTIABLE], needs))


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:_TENSORS], *output)
    ctx.settings = inputs[_TENSORS:]
    ctx.set_materialize_grads(False)


def _operator_backward(ctx, grad_out, grad_lse):
    needs = list(ctx.needs_input_grad[:_DIFFERENTIABLE])
    nothing = [None] * (_TENSORS + len(ctx.settings))
    if grad_out is None and grad_lse is None:
        return tuple(nothing)
    *tensors, out, lse = ctx.saved_tensors
    grads = torch.ops.tessera.backward(grad_out, grad_lse, out, lse, needs, *tensors, *ctx.settings)
    nothing[:_DIFFERENTIABLE] = [grad if needed else None for grad, needed in zip(grads, needs)]
    return tuple(nothing)


torch.library.register_autograd("tessera::forward", _operator_backward, setup_context=_setup_context)
