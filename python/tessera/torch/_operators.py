"""Attention as torch sees it: operators of torch.library for everything that traces (compile, export, fake tensors,
profiler), and an autograd function for the plain eager call, where an operator's tens of microseconds would show.

Both compute by `_calls`. The operators take the options as plain numbers and words, so that a traced graph means the
same in another process.
"""

import hashlib
from array import array

import torch
from torch.utils import _pytree

from tessera import _core
from tessera._arguments import (
    CALL,
    CALL_SCHEMA,
    CALL_TENSORS,
    SCHEMA,
    Description,
    call_arguments,
    core_options,
    description_of,
)
from tessera.torch import _calls

_INPUTS = f"Tensor q, Tensor k, Tensor v, Tensor? bias, {CALL_SCHEMA}, {SCHEMA}, str? block_mask"

torch.library.define("tessera::forward", f"({_INPUTS}) -> (Tensor out, Tensor lse)",
                     tags=(torch.Tag.pt2_compliant_tag,))
torch.library.define("tessera::backward", f"(Tensor? grad_out, Tensor? grad_lse, Tensor out, Tensor lse, bool[] needs, "
                     f"{_INPUTS}) -> (Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_bias)",
                     tags=(torch.Tag.pt2_compliant_tag,))
torch.library.define("tessera::alibi_slopes", "(Tensor like, SymInt heads) -> Tensor",
                     tags=(torch.Tag.pt2_compliant_tag,))

# An operator's inputs begin with the tensors; the first of those have a gradient: q, k, v and bias.
_DIFFERENTIABLE = 4
_TENSORS = _DIFFERENTIABLE + CALL_TENSORS


class Attention(torch.autograd.function._SingleLevelFunction):
    """Attention in eager mode: out, or (out, lse) with `return_lse`, differentiable in q, k, v and bias.

    It is torch.autograd.Function without the part for functorch, which is not active here. That, one output less
    without the LSE, and few inputs save a third of the call's overhead.
    """

    @staticmethod
    def forward(ctx, inputs, return_lse, q, k, v, bias):
        out, lse = _calls.forward(inputs, q, k, v, bias)
        ctx.save_for_backward(q, k, v, bias, out, lse)
        ctx.inputs = inputs
        ctx.set_materialize_grads(False)
        return (out, lse) if return_lse else out

    @staticmethod
    def backward(ctx, grad_out, grad_lse=None):
        if grad_out is None and grad_lse is None:
            return (None,) * 6
        q, k, v, bias, out, lse = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        inputs = ctx.inputs
        if torch.compiler.is_compiling():  # compiled autograd, which traces operators only
            grads = torch.ops.tessera.backward(
                grad_out, grad_lse, out, lse, list(needs), q, k, v, bias, *call_arguments(inputs.call).values(),
                *_words(inputs.options))
            grads = [grad if needed else None for grad, needed in zip(grads, needs)]
        elif torch.is_grad_enabled():  # create_graph
            grads = FirstDerivatives.apply(inputs, needs, (out, lse), grad_out, grad_lse, q, k, v, bias)
        else:
            grads = _calls.backward(inputs, grad_out, grad_lse, out, lse, needs, q, k, v, bias)
        return None, None, *grads

    @staticmethod
    def _compiled_autograd_key(ctx):
        return (ctx._autograd_function_id,)


class FirstDerivatives(torch.autograd.function._SingleLevelFunction):
    """The gradients as a node of the graph that create_graph builds. Its inputs are all tensors that the gradients
    depend on, so that a second differentiation fails here and does not silently miss a part of the derivative.
    (PyTorch's once_differentiable has only grad_out as an input, which is a constant under a sum.)"""

    @staticmethod
    def forward(ctx, inputs, needs, results, grad_out, grad_lse, q, k, v, bias):
        return _calls.backward(inputs, grad_out, grad_lse, *results, needs, q, k, v, bias)

    @staticmethod
    def backward(ctx, *_):
        refuse_second_derivatives()


def refuse_second_derivatives():
    raise NotImplementedError(
        "attention has first derivatives only, and this call differentiates them again; for second derivatives use "
        "torch.nn.functional.scaled_dot_product_attention under "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH), outside of replace_sdpa()")


# --- block masks: a graph names one by its contents ----------------------------------------------------------------

_masks: dict[str, _core.BlockMask] = {}
_traced: set[_core.BlockMask] = set()  # guards of compiled code hold a mask's address: no other mask may reuse it


def mask_key(block_mask) -> str:
    """Returns a name for the mask in traced graphs, from its contents. The mask then lives as long as the process."""
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


# The effect of torch.compiler.assume_constant_result without importing the whole compiler, which takes seconds. Before
# 2.13 such a function accepts an object only when its type is registered as a constant.
mask_key._dynamo_marked_constant = True
if hasattr(_pytree, "register_constant"):
    _pytree.register_constant(_core.BlockMask)
    _pytree.register_constant(_core.Options)


def _words(options: _core.Options) -> tuple:
    """The operators' form of the options: plain numbers and words, and the key of the block mask."""
    mask = options.block_mask
    return (*description_of(options), None if mask is None else mask_key(mask))


_words._dynamo_marked_constant = True


def _mask_of(key: str | None):
    if key is None or key in _masks:
        return key and _masks[key]
    raise ValueError(f"block_mask is {key!r}, a mask that is unknown in this process; call "
                     "tessera.torch.mask_key(block_mask) before running a graph that was traced elsewhere")


# --- the operators --------------------------------------------------------------------------------------------------


def _inputs_of(*arguments):
    """The inputs of a call from the operator's arguments after q, k, v and bias."""
    *values, key = arguments[len(CALL):]
    description = Description(*(tuple(value) if isinstance(value, (list, tuple)) else value for value in values))
    return _calls.Inputs(core_options(description._asdict(), _mask_of(key)), dict(zip(CALL, arguments)))


@torch.library.impl("tessera::forward", ("cpu", "cuda"))
def _forward(q, k, v, bias, *rest):
    return _calls.forward(_inputs_of(*rest), q, k, v, bias)


@torch.library.register_fake("tessera::forward")
def _forward_fake(q, k, v, bias, *rest):
    return _calls.empty_output(q, v), _calls.empty_lse(q, dict(zip(CALL, rest))["layout"])


@torch.library.impl("tessera::backward", ("cpu", "cuda"))
def _backward(grad_out, grad_lse, out, lse, needs, q, k, v, bias, *rest):
    grads = _calls.backward(_inputs_of(*rest), grad_out, grad_lse, out, lse, needs, q, k, v, bias)
    return tuple(q.new_empty(0) if grad is None else grad for grad in grads)


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
                         "-slope * distance as a bias, which has a gradient")


def _setup_context(ctx, inputs, output):
    refuse_learned_slopes(dict(zip(CALL, inputs[_DIFFERENTIABLE:]))["alibi"])
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
