"""The library's two calls on torch tensors: outputs are allocated here, and inputs made fit where the contract asks.

Everything that computes attention on torch tensors ends in `forward` and `backward` of this file: the eager path, its
autograd function and the operators that torch.compile sees.
"""

import torch

from tessera import _core

Tensor = torch.Tensor

# Without it (PyTorch before 2.10) the extension cannot ask for the current stream and has to be told.
_STREAM_IS_KNOWN = hasattr(Tensor, "__dlpack_c_exchange_api__")


def empty_rows(like: Tensor) -> Tensor:
    """An uninitialised tensor of the same shape, type and order in memory whose last dimension is contiguous."""
    result = torch.empty_like(like)
    if result.stride(-1) != 1:
        result = torch.empty_like(like, memory_format=torch.contiguous_format)
    return result


def empty_output(q: Tensor, v: Tensor) -> Tensor:
    """Where attention's output goes: in the memory order of q, as PyTorch's own attention does."""
    if v.size(-1) == q.size(-1):
        return empty_rows(q)
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def empty_lse(q: Tensor, layout: int) -> Tensor:
    """Where the LSE goes: ([batch,] heads, queries), in the type that the library accumulates in."""
    heads, queries = (q.size(-3), q.size(-2)) if layout == _core.HEADS_FIRST else (q.size(-2), q.size(-3))
    shape = (q.size(0), heads, queries) if q.dim() == 4 else (heads, queries)
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(shape) if q.dtype == dtype else q.new_empty(shape, dtype=dtype)


def forward(description, layout, max_q, max_k, q, k, v, bias, alibi, lengths_q, lengths_k, dropout_state,
            want_lse=True):
    """Output and LSE (None unless wanted). Inputs are taken as they lie unless head_dim is not contiguous."""
    q, k, v = with_rows(q), with_rows(k), with_rows(v)
    if bias is not None:
        bias = with_rows(bias)
    out = empty_output(q, v)
    lse = empty_lse(q, layout) if want_lse else None
    _core.forward(description, q, k, v, bias, out, lse, alibi, lengths_q, lengths_k, max_q, max_k, 0, 0,
                  dropout_state, layout, stream(q), torch.get_num_threads())
    return out, lse


def backward(description, layout, max_q, max_k, grad_out, grad_lse, out, lse, needs, q, k, v, bias, alibi, lengths_q,
             lengths_k, dropout_state):
    """The gradients of q, k, v and bias; None where `needs` says so. A missing `grad_out` counts as zero."""
    grads = [empty_rows(tensor) if needed else None for tensor, needed in zip((q, k, v, bias), needs)]
    q, k, v = with_rows(q), with_rows(k), with_rows(v)
    if bias is not None:
        bias = with_rows(bias)
    grad_out = torch.zeros_like(out) if grad_out is None else with_rows(grad_out)
    _core.backward(description, q, k, v, bias, out, lse, grad_out, grad_lse, *grads, alibi, lengths_q, lengths_k,
                   max_q, max_k, 0, 0, dropout_state, layout, stream(q), torch.get_num_threads())
    return grads


def with_rows(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy if its last dimension is not contiguous: the one thing the library asks for."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def stream(q: Tensor):
    """The current stream of q's GPU; None where the extension finds out by itself, or on the CPU."""
    if _STREAM_IS_KNOWN or not q.is_cuda:
        return None
    return torch.cuda.current_stream(q.device).cuda_stream
