"""`attention`: the library's operation on torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad, profiler
from torch.nn.attention.bias import CausalBias

from tessera import _core
from tessera._arguments import call_arguments, core_options, describe, takes_options, two_integers
from tessera._attention import _heads, _layout, _pair
from tessera._core import BlockMask
from tessera._types import Layout
from tessera.torch import _calls, _operators

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tessera._arguments import Options

Tensor = torch.Tensor

_PLAIN = frozenset((Tensor, torch.nn.Parameter, type(None)))
_STATE_BOUND = 2**62


@takes_options
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    alibi: Tensor | Sequence[float] | bool | None = None,
    generator: torch.Generator | None = None,
    seed: int | None = None,
    offset: int = 0,
    dropout_state: Tensor | None = None,
    lengths: Any = None,
    max_lengths: tuple[int, int] = (0, 0),
    block_mask: BlockMask | None = None,
    deterministic: bool | None = None,
    layout: Layout = "bshd",
    return_lse: bool = False,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Tensor]:
    """Exact attention: ``dropout(softmax(softcap(scale * q k^T) + bias + alibi + mask)) v``, differentiable.

    Args:
        q: (batch, queries, heads, head_dim) in float32, float16, bfloat16, and float64 on the CPU. Under autocast
            float32 becomes autocast's type. q, k and v may have any strides, also those of an expanded tensor; a tensor
            is copied only when its head_dim is not contiguous.
        k: (batch, keys, kv_heads, head_dim); kv_heads divides heads, and query head h reads h // (heads / kv_heads).
        v: (batch, keys, kv_heads, head_dim of the result).
        bias: added to the scores, of rank 1 to 4, broadcast to (batch, heads, queries, keys) except along the keys;
            the type of q, or float32 for the half types.
        visible: which keys each query may attend to, of type bool, broadcast as a bias. Blocks of keys that it hides
            from neighbouring queries cost no time. CPU only; on a GPU pass a bias of -inf.
        alibi: float32 slopes (heads) or (batch, heads), or True for the slopes of the paper; adds -slope * distance.
        generator: with dropout, the generator of the random bits; None is torch's generator of the device. So
            torch.manual_seed, activation checkpointing and CUDA graphs treat this dropout as they treat torch's own.
        seed, offset: select the bits instead of a generator: the same two numbers drop the same elements, on every
            device.
        dropout_state: holds both as an int64 tensor on the device, read when the kernel runs.
        lengths: cumulative lengths [0, n1, n1 + n2, ...], int32 on the device of q, of sequences packed into a batch of
            1 (or tensors without a batch): one tensor for queries and keys, or two. A GPU also requires
            ``max_lengths``, the longest sequence of queries and of keys.
        block_mask: only the blocks that it keeps are visible.
        deterministic: makes gradients bitwise reproducible on GPUs, too; None follows
            torch.use_deterministic_algorithms.
        layout: "bshd" as above, or "bhsd": (batch, heads, sequence, head_dim), PyTorch's order. The batch may be
            omitted.
        return_lse: also return the log-sum-exp of the scores, (batch, heads, queries) in float32 (float64 for
            float64), with its gradient.
        {options}

    Returns:
        out, in the layout and memory order of q, or (out, lse). Gradients flow to q, k, v and bias. A query
        without visible keys gives 0, an LSE of -infinity and gradients of 0.

    Raises:
        ValueError: an argument is wrong; the text names it, its value and what is allowed.
        NotImplementedError: no kernel supports the call; the text says what each one requires.
        MemoryError: out of memory.

    >>> import torch, tessera.torch
    >>> q, k, v = (torch.randn(2, 128, 8, 64, requires_grad=True) for _ in range(3))
    >>> out, lse = tessera.torch.attention(q, k, v, causal=True, return_lse=True)
    >>> out.shape, lse.shape
    (torch.Size([2, 128, 8, 64]), torch.Size([2, 8, 128]))
    >>> out.sum().backward()
    """
    if torch.compiler.is_compiling():
        _refuse_tensors(options)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    options["deterministic"] = deterministic
    if options.get("dropout") and dropout_state is None:
        dropout_state = new_dropout_state(q.device, generator) if seed is None else _state(seed, offset, q.device)
    call = {"layout": _layout(layout)}
    if alibi is not None:
        call["alibi"] = _slopes(alibi, q, call["layout"])
    if lengths is not None:
        call["lengths_q"], call["lengths_k"] = _lengths(lengths, q)
        call["max_q"], call["max_k"] = two_integers("max_lengths", max_lengths, "(of queries, of keys)")
    if dropout_state is not None:
        call["dropout_state"] = dropout_state
    if visible is not None:
        if not isinstance(visible, Tensor):
            raise TypeError(f"visible is of type {type(visible).__name__}; it must be a torch.Tensor")
        call["visible"] = visible if visible.dim() == 0 else _calls.with_rows(visible)
    return attend(q, k, v, bias, options, call, block_mask, return_lse)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, options: dict[str, Any], call: dict[str, Any],
           block_mask: BlockMask | None = None, return_lse: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """``attention`` after its arguments have been converted: tensors on the device of q, options by the table, and
    ``call`` by the table CALL, without what has its default."""
    if torch.is_autocast_enabled("cuda" if q.is_cuda else "cpu"):
        q, k, v = _autocast(q), _autocast(k), _autocast(v)
    if not _is_eager(q, k, v, bias):
        if isinstance(bias, CausalBias):
            raise ValueError("bias is a CausalBias, which holds no values; pass causal=True and align instead")
        if torch.compiler.is_compiling():
            _refuse_tensors(options)
        else:
            _check_tensors(q=q, k=k, v=v, bias=bias)
            core_options(options, block_mask)  # its error texts are better than those of the operator's schema
        key = None if block_mask is None else _operators.mask_key(block_mask)
        out, lse = torch.ops.tessera.forward(q, k, v, bias, *call_arguments(call).values(), *describe(options), key)
        return (out, lse) if return_lse else out
    inputs = _calls.Inputs(core_options(options, block_mask), call)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad
                                    or (bias is not None and bias.requires_grad)):
        return _operators.Attention.apply(inputs, return_lse, q, k, v, bias)
    out, lse = _calls.forward(inputs, q, k, v, bias, return_lse)
    return (out, lse) if return_lse else out


def new_dropout_state(device: torch.device | str = "cpu", generator: torch.Generator | None = None) -> Tensor:
    """A fresh {seed, offset} for ``attention``'s dropout_state, drawn from torch's generator of the device."""
    return torch.randint(_STATE_BOUND, (2,), dtype=torch.int64, device=device, generator=generator)


def _is_eager(q, k, v, bias) -> bool:
    """True in plain eager mode: no compiler, tracer, mode, functorch transform, forward-mode AD, profiler or tensor
    subclass, and a device that the library knows. Such calls need no operators."""
    return not (
        torch.compiler.is_compiling()
        or type(q) not in _PLAIN or type(k) not in _PLAIN or type(v) not in _PLAIN or type(bias) not in _PLAIN
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
        or profiler._is_profiler_enabled
        or not (q.is_cpu or q.is_cuda)
    )


def _check_tensors(**tensors) -> None:
    """``attention`` has no forward-mode derivative, and the operators would silently drop tangents."""
    for name, tensor in tensors.items():
        if tensor is None and name == "bias":
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is of type {type(tensor).__name__}; it must be a torch.Tensor")
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(f"{name} has a forward-mode tangent; attention has gradients in reverse mode only")


def _refuse_tensors(options: dict[str, Any]) -> None:
    """A compiled graph would read the value of a tensor and drop its gradient. Eager calls are refused by the extension."""
    for name, value in options.items():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(one, Tensor):
                raise ValueError(f"{name} is or holds a tensor; the value of a tensor may change, and its gradient would be "
                                 "lost; pass a number")


def _state(seed: int, offset: int, device: torch.device) -> Tensor:
    """Two numbers of 64 bits without a sign as the int64 tensor that holds the same bits."""
    for name, value in (("seed", seed), ("offset", offset)):
        if isinstance(value, Tensor) or not hasattr(value, "__index__") or not 0 <= value < 2**64:
            raise ValueError(f"{name} is {value!r}; it must be an integer from 0 to 2^64 - 1")
    words = [word - 2**64 if word >= 2**63 else word for word in (int(seed), int(offset))]
    return torch.tensor(words, dtype=torch.int64, device=device)


def _lengths(lengths: Any, q: Tensor):
    return (x if isinstance(x, Tensor) else _numbers("lengths", x, torch.int32, q) for x in _pair(lengths))


def _numbers(name: str, values: Any, dtype: torch.dtype, q: Tensor) -> Tensor:
    try:
        return torch.tensor(values, dtype=dtype, device=q.device)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ValueError(f"{name} is {values!r}; it must hold {dtype} numbers") from None


def _autocast(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def _slopes(alibi: Tensor | Sequence[float] | bool, q: Tensor, layout_code: int) -> Tensor | None:
    if isinstance(alibi, Tensor):
        _operators.refuse_learned_slopes(alibi)
        return alibi if alibi.dim() == 0 else _calls.with_rows(alibi)
    if alibi is False:
        return None
    if alibi is not True:
        return _numbers("alibi", alibi, torch.float32, q)
    heads = _heads(q.shape, layout_code)
    if torch.compiler.is_compiling():  # the number of heads may be symbolic
        return torch.ops.tessera.alibi_slopes(q.detach(), heads)
    return torch.tensor(_core.alibi_slopes(heads), dtype=torch.float32, device=q.device)
