"""The library's two calls on torch tensors: they allocate outputs, and copy inputs that the contract excludes.

The eager path, its autograd function and the operators of torch.compile all end in `forward` and `backward` of this
file. On a GPU workspace comes from PyTorch's allocator, too (``workspace_from_q``): its counters and limits include
it, and both libraries share the free memory.
"""

import itertools
from typing import Any, NamedTuple

import torch

from tessera import _core

Tensor = torch.Tensor

# Without it (PyTorch before 2.10) the extension cannot ask for the current stream; calls then pass it.
_STREAM_IS_KNOWN = hasattr(Tensor, "__dlpack_c_exchange_api__")


class Inputs(NamedTuple):
    """What a call takes besides q, k, v and bias. Forward and backward of a call share it."""

    options: _core.Options
    call: dict[str, Any]  # by the table CALL of tessera._arguments; always with the layout


def empty_rows(like: Tensor) -> Tensor:
    """An uninitialised tensor of the same shape, type and order in memory whose last dimension is contiguous."""
    result = torch.empty_like(like)
    if result.shape[-1] > 1 and result.stride(-1) != 1:  # of one element any stride will do
        result = torch.empty_like(like, memory_format=torch.contiguous_format)
    return result


def empty_output(q: Tensor, v: Tensor) -> Tensor:
    """Where attention's output goes: in the memory order of q, as PyTorch's own attention does."""
    if v.shape[-1] == q.shape[-1]:
        return empty_rows(q)
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def empty_lse(q: Tensor, layout: int) -> Tensor:
    """Where the LSE goes: ([batch,] heads, queries), in the type that the library accumulates in."""
    *batch, first, second, _ = q.shape
    shape = (*batch, first, second) if layout == _core.HEADS_FIRST else (*batch, second, first)
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(*shape, dtype=dtype)  # sizes one by one: as a tuple they take twice the time


def forward(inputs: Inputs, q, k, v, bias, want_lse=True):
    """Output and LSE (None without `want_lse`). An input is copied only when its head_dim is not contiguous."""
    options, call = inputs
    try:
        out = torch.empty_like(q) if v.shape[-1] == q.shape[-1] else empty_output(q, v)
        lse = empty_lse(q, call["layout"]) if want_lse else None
        on_gpu = q.is_cuda
        _core.forward(options, q, k, v, bias, out, lse, **call, stream=stream(q) if on_gpu else None,
                      threads=torch.get_num_threads(), workspace_from_q=on_gpu)
    except (ValueError, IndexError):
        # Asking every tensor for its strides first would take a tenth of a small call. The library checks them anyway.
        for name, tensor in (("q", q), ("v", v)):
            if tensor.dim() not in (3, 4):
                raise ValueError(f"{name} has {tensor.dim()} dimensions; it must have 4, or 3 without a batch") from None
        fitting = fit(q, k, v, bias, out)
        if fitting is None:
            raise
        return forward(inputs, *fitting, want_lse)
    return out, lse


def backward(inputs: Inputs, grad_out, grad_lse, out, lse, needs, q, k, v, bias):
    """The gradients of q, k, v and bias, each None unless `needs` has it. A missing `grad_out` counts as zero."""
    options, call = inputs
    need_q, need_k, need_v, need_bias = needs
    grad_q = torch.empty_like(q) if need_q else None
    grad_k = torch.empty_like(k) if need_k else None
    grad_v = torch.empty_like(v) if need_v else None
    grad_bias = torch.empty_like(bias) if need_bias else None
    grad_out = torch.zeros_like(out) if grad_out is None else with_rows(grad_out)
    on_gpu = q.is_cuda
    try:
        _core.backward(options, q, k, v, bias, out, lse, grad_out, grad_lse, grad_q, grad_k, grad_v, grad_bias,
                       **call, stream=stream(q) if on_gpu else None, threads=torch.get_num_threads(),
                       workspace_from_q=on_gpu)
    except ValueError:
        fitting = fit(q, k, v, bias, grad_q, grad_k, grad_v, grad_bias)
        if fitting is None:
            raise
        return backward(inputs, grad_out, grad_lse, out, lse, needs, *fitting)
    return grad_q, grad_k, grad_v, grad_bias


def fit(q, k, v, bias, *outputs):
    """q, k, v and bias with contiguous last dimensions. None when they and the outputs made like them are contiguous
    already: the error then has another cause."""
    inputs = (q, k, v, bias)
    fitting = tuple(x if x is None or x.dim() == 0 else with_rows(x) for x in inputs)
    if any(a is not b for a, b in zip(inputs, fitting)):
        return fitting
    # An output made like an input that overlaps itself may lack them. Outputs and inputs have the same order.
    overlaps = [x is not None and x.shape[-1] > 1 and x.stride(-1) != 1 for x in outputs]
    if any(overlaps):
        return tuple(x.contiguous() if overlap else x for x, overlap in itertools.zip_longest(inputs, overlaps))
    return None


def with_rows(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy if its last dimension is not contiguous: the only layout that the library requires."""
    return tensor if tensor.shape[-1] <= 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def stream(q: Tensor):
    """The current stream of q's GPU; None where the extension can ask for it, and on the CPU."""
    if _STREAM_IS_KNOWN or not q.is_cuda:
        return None
    return torch.cuda.current_stream(q.device).cuda_stream
