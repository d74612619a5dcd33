"""Attention as torch sees it: operators of torch.library for everything that traces (compile, export, fake tensors,
profiler), and an autograd function for the plain eager call, where an operator's tens of microseconds would show.

Both compute by `_calls`; the operators take the description as plain numbers and words, so that a traced graph means
the same in another process.
"""

import hashlib
from array import array

import torch
from torch.utils import _pytree

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
torch.library.define("tessera::alibi_slopes", "(Tensor like, SymInt heads) -> Tensor",
                     tags=(torch.Tag.pt2_compliant_tag,))

# How many of an operator's inputs are tensors, and how many of those have a gradient: q, k, v and bias.
_TENSORS, _DIFFERENTIABLE = 8, 4


class Attention(torch.autograd.function._SingleLevelFunction):
    """Attention in eager mode: out, or (out, lse) if asked, differentiable in q, k, v and bias through both.

    It is torch.autograd.Function without the part for functorch, which is not active where this is called. That, one
    output less where nobody asks for the LSE, and few inputs save a third of the call's overhead.
    """

    @staticmethod
    def forward(ctx, call, side, return_lse, q, k, v, bias):
        out, lse = _calls.forward(*call, q, k, v, bias, *side)
        ctx.save_for_backward(q, k, v, bias, out, lse)
        ctx.call, ctx.side = call, side
        ctx.set_materialize_grads(False)
        return (out, lse) if return_lse else out

    @staticmethod
    def backward(ctx, grad_out, grad_lse=None):
        if grad_out is None and grad_lse is None:
            return (None,) * 7
        q, k, v, bias, out, lse = ctx.saved_tensors
        needs = ctx.needs_input_grad[3:]
        if torch.compiler.is_compiling():  # compiled autograd, which traces operators only
            description, order, max_q, max_k = ctx.call
            grads = torch.ops.tessera.backward(grad_out, grad_lse, out, lse, list(needs), q, k, v, bias, *ctx.side, max_q,
                                               max_k, order, *_words(description))
            grads = [grad if needed else None for grad, needed in zip(grads, needs)]
        elif torch.is_grad_enabled():  # create_graph
            grads = FirstDerivatives.apply(ctx.call, ctx.side, needs, (out, lse), grad_out, grad_lse, q, k, v, bias)
        else:
            grads = _calls.backward(*ctx.call, grad_out, grad_lse, out, lse, needs, q, k, v, bias, *ctx.side)
        return None, None, None, *grads


    @staticmethod
    def _compiled_autograd_key(ctx):
        return (ctx._autograd_function_id,)


class FirstDerivatives(torch.autograd.function._SingleLevelFunction):
    """The gradients as a node of the graph that create_graph asks for. It is joined to everything that they depend on, so
    that whoever differentiates them comes here, instead of missing this part of the derivative. (PyTorch's
    once_differentiable joins it to grad_out only, which is a constant under a sum.)"""

    @staticmethod
    def forward(ctx, call, side, needs, results, grad_out, grad_lse, q, k, v, bias):
        return _calls.backward(*call, grad_out, grad_lse, *results, needs, q, k, v, bias, *side)

    @staticmethod
    def backward(ctx, *_):
        refuse_second_derivatives()


def refuse_second_derivatives():
    raise NotImplementedError(
        "attention has first derivatives only, and these were to be differentiated again; use "
        "torch.nn.functional.scaled_dot_product_attention under "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH), outside of replace_sdpa(), where you need second ones")


# --- block masks: a graph names one by what is in it ----------------------------------------------------------------

_masks: dict[str, _core.BlockMask] = {}
_traced: set[_core.BlockMask] = set()  # compiled code is guarded by a mask's address: it must not be given to another


def mask_key(block_mask) -> str:
    """A name for the mask in traced graphs, from its contents. The mask then lives as long as the process."""
    sizes = (block_mask.q_length, block_mask.k_length, block_mask.block_q, block_mask.block_k, block_mask.heads)
    digest = hashlib.sha256(array("q", sizes))
    for head in range(block_mask.heads):
        for q_block in range(block_mask.q_blocks):
            row = block_mask.row(q_block, head)
            digest.update(array("q", (len(row), *row)))
    key = digest.hexdigest()
    _masks.setdefault(key, block_mask)
    _traced.add(block_mask)
    return key


# What torch.compiler.assume_constant_result does, without its import of the whole compiler: seconds. Before 2.13 such a
# function takes an object only if its type counts as a constant; versions that know no such types do not take it.
mask_key._dynamo_marked_constant = True
if hasattr(_pytree, "register_constant"):
    _pytree.register_constant(_core.BlockMask)
    _pytree.register_constant(_core.Options)


def _words(description: _core.Options) -> tuple:
    """What the operators take in the place of a description."""
    mask = description.block_mask
    return (False, [description.left, description.right], description.align, description.diagonal, description.scale,
            description.softcap, description.dropout, list(description.origin), description.algorithm,
            description.deterministic, None if mask is None else mask_key(mask))


_words._dynamo_marked_constant = True


def _mask_of(key: str | None):
    if key is None or key in _masks:
        return key and _masks[key]
    raise ValueError(f"block_mask is {key!r}, a mask that this process has not made: call "
                     "tessera.torch.mask_key(block_mask) with it before running a graph that was traced elsewhere")


# --- the operators --------------------------------------------------------------------------------------------------


def _call(max_q, max_k, layout, causal, window, align, diagonal, scale, softcap, dropout, origin, algorithm,
          deterministic, block_mask):
    """What `_calls` wants to know besides the tensors."""
    description = options((causal, window and tuple(window), align, diagonal, scale, softcap, dropout, tuple(origin),
                           algorithm, deterministic), _mask_of(block_mask))
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


@torch.library.impl("tessera::alibi_slopes", ("cpu", "cuda"))
def _alibi_slopes(like, heads):
    return torch.tensor(_core.alibi_slopes(heads), dtype=torch.float32, device=like.device)


@torch.library.register_fake("tessera::alibi_slopes")
def _alibi_slopes_fake(like, heads):
    return like.new_empty(heads, dtype=torch.float32)


def refuse_learned_slopes(alibi):
    if alibi is not None and alibi.requires_grad and torch.is_grad_enabled():
        raise ValueError("alibi requires a gradient, which attention does not compute; pass alibi.detach(), or "
                         "-slope * distance as a bias, which has one")


def _setup_context(ctx, inputs, output):
    refuse_learned_slopes(inputs[4])
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
torch.library.register_autograd("tessera::backward", lambda ctx, *grads: refuse_second_derivatives())
