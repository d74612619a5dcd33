"""The library's two calls on torch tensors: outputs are allocated here, and inputs made fit where the contract asks.

Everything that computes attention on torch tensors ends in `forward` and `backward` of this file: the eager path, its
autograd function and the operators that torch.compile sees. On a GPU workspace comes from PyTorch, too (the last argument of
the library's calls): its counters see it, its limits hold for it, and what is free there serves both.
"""

import itertools

import torch

from tessera import _core

Tensor = torch.Tensor

# Without it (PyTorch before 2.10) the extension cannot ask for the current stream and has to be told.
_STREAM_IS_KNOWN = hasattr(Tensor, "__dlpack_c_exchange_api__")


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


def forward(description, layout, max_q, max_k, q, k, v, bias, alibi, lengths_q, lengths_k, dropout_state,
            want_lse=True):
    """Output and LSE (None unless wanted). Inputs are taken as they lie unless head_dim is not contiguous."""
    try:
        out = torch.empty_like(q) if v.shape[-1] == q.shape[-1] else empty_output(q, v)
        lse = empty_lse(q, layout) if want_lse else None
        on_gpu = q.is_cuda
        _core.forward(description, q, k, v, bias, out, lse, alibi, lengths_q, lengths_k, max_q, max_k, 0, 0,
                      dropout_state, layout, stream(q) if on_gpu else None, torch.get_num_threads(), on_gpu)
    except (ValueError, IndexError):
        # Asking every tensor for its strides first would take a tenth of a small call; so the library is asked.
        for name, tensor in (("q", q), ("v", v)):
            if tensor.dim() not in (3, 4):
                raise ValueError(f"{name} has {tensor.dim()} dimensions; it must have 4, or 3 without a batch") from None
        fitting = fit(q, k, v, bias, out)
        if fitting is None:
            raise
        return forward(description, layout, max_q, max_k, *fitting, alibi, lengths_q, lengths_k, dropout_state,
                       want_lse)
    return out, lse


def backward(description, layout, max_q, max_k, grad_out, grad_lse, out, lse, needs, q, k, v, bias, alibi, lengths_q,
             lengths_k, dropout_state):
    """The gradients of q, k, v and bias; None where `needs` says so. A missing `grad_out` counts as zero."""
    need_q, need_k, need_v, need_bias = needs
    grad_q = torch.empty_like(q) if need_q else None
    grad_k = torch.empty_like(k) if need_k else None
    grad_v = torch.empty_like(v) if need_v else None
    grad_bias = torch.empty_like(bias) if need_bias else None
    grad_out = torch.zeros_like(out) if grad_out is None else with_rows(grad_out)
    on_gpu = q.is_cuda
    try:
        _core.backward(description, q, k, v, bias, out, lse, grad_out, grad_lse, grad_q, grad_k, grad_v, grad_bias,
                       alibi, lengths_q, lengths_k, max_q, max_k, 0, 0, dropout_state, layout,
                       stream(q) if on_gpu else None, torch.get_num_threads(), on_gpu)
    except ValueError:
        fitting = fit(q, k, v, bias, grad_q, grad_k, grad_v, grad_bias)
        if fitting is None:
            raise
        return backward(description, layout, max_q, max_k, grad_out, grad_lse, out, lse, needs, *fitting, alibi,
                        lengths_q, lengths_k, dropout_state)
    return grad_q, grad_k, grad_v, grad_bias


def fit(q, k, v, bias, *outputs):
    """q, k, v and bias with contiguous last dimensions, or None if they and what was made like them have that already:
    then it is not what was wrong."""
    inputs = (q, k, v, bias)
    fitting = tuple(x if x is None or x.dim() == 0 else with_rows(x) for x in inputs)
    if any(a is not b for a, b in zip(inputs, fitting)):
        return fitting
    # What is made like an input that overlaps itself need not have them; each output belongs to the input of its place.
    overlaps = [x is not None and x.shape[-1] > 1 and x.stride(-1) != 1 for x in outputs]
    if any(overlaps):
        return tuple(x.contiguous() if overlap else x for x, overlap in itertools.zip_longest(inputs, overlaps))
    return None


def with_rows(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy if its last dimension is not contiguous: the one thing the library asks for."""
    return tensor if tensor.shape[-1] <= 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def stream(q: Tensor):
    """The current stream of q's GPU; None where the extension finds out by itself, or on the CPU."""
    if _STREAM_IS_KNOWN or not q.is_cuda:
        return None
    return torch.cuda.current_stream(q.device).cuda_stream
