"""`attention`: the library's operation on torch tensors, in the library's words."""

import torch
from torch.autograd import forward_ad, profiler

from tessera import _core
from tessera.torch import _calls, _operators

Tensor = torch.Tensor

_PLAIN = frozenset((Tensor, torch.nn.Parameter, type(None)))
_STATE_BOUND = 2**62


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    bias: Tensor | None = None,
    alibi: Tensor | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    lengths: tuple | None = None,
    block_mask: _core.BlockMask | None = None,
    algorithm: str = "automatic",
    return_lse: bool = False,
    layout: str = "sequence_first",
    align: str = "bottom_right",
    diagonal: int | None = None,
    origin: tuple[int, int, int, int] = (0, 0, 0, 0),
    deterministic: bool | None = None,
    generator: torch.Generator | None = None,
    dropout_state: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Exact attention, differentiable in q, k, v and bias: dropout(softmax(softcap(scale q k^T) + bias + mask)) v.

    q is (batch, queries, heads, head_dim), k and v (batch, keys, kv_heads, head_dim), kv_heads a divisor of heads;
    ``layout="heads_first"`` takes (batch, heads, sequence, head_dim), PyTorch's order. Without a batch they have rank
    3. v may have a head_dim of its own. Types: float32, float16, bfloat16, and float64 on the CPU; under autocast
    float32 becomes autocast's type. Tensors are used where they lie, with any strides (expanded ones too); one whose
    head_dim is not contiguous is copied. A row that sees no key gives 0, an LSE of -inf and gradients of 0.

    causal: no query sees a key after it. window: (left, right), keys seen before and after the diagonal, -1 for all.
    align: the diagonal ends at the last key ("bottom_right") or starts at the first ("top_left"); diagonal: row i
    meets column i + diagonal, whatever the sizes.
    scale: 1/sqrt(head_dim) unless given. softcap: c tanh(s/c) on the scaled scores; 0 is off.
    bias: added to the scores, of rank 1 to 4, broadcast to (batch, heads, queries, keys); the keys are never
    broadcast. In q's type, or float32 for the half types. alibi: float32 slopes, (heads) or (batch, heads).
    lengths: packed sequences, (lengths_q, lengths_k) or (lengths_q, lengths_k, max_q, max_k): int32 cumulative
    lengths from 0 on the tensors' device, and the longest of each (on a GPU they must be given). q, k and v then have
    rank 3, or a batch of 1.
    block_mask: a ``tessera.BlockMask``; only kept blocks are computed.
    dropout: probability in [0, 1). The bits come from torch's generator of the device (or `generator`), so
    torch.manual_seed, activation checkpointing and CUDA graphs do what they do to torch's own dropout. dropout_state:
    int64 {seed, offset} on the device instead; the same state drops the same elements on every device.
    algorithm: "automatic", "flash1", "flash2", "hopper", "standard" or "minimal".
    deterministic: gradients on a GPU bit for bit the same each time; None follows
    torch.use_deterministic_algorithms. origin: global (row, column, batch, head) of the first, for a shard.

    Returns the output, in q's layout and memory order; with `return_lse` also the LSE, (batch, heads, queries) in
    float32 (float64 for float64), natural logarithm, differentiable.

    Raises ValueError (an argument is wrong), NotImplementedError (no kernel serves the call), MemoryError.

    >>> import torch, tessera.torch
    >>> q, k, v = (torch.randn(2, 128, 8, 64, requires_grad=True) for _ in range(3))
    >>> out, lse = tessera.torch.attention(q, k, v, causal=True, return_lse=True)
    >>> out.shape, lse.shape
    (torch.Size([2, 128, 8, 64]), torch.Size([2, 8, 128]))
    >>> out.sum().backward()
    """
    if torch.is_autocast_enabled(q.device.type):
        q, k, v = _autocast(q), _autocast(k), _autocast(v)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    left, right = (-1, -1) if window is None else window
    if causal:
        right = 0 if right == -1 else min(right, 0)
    lengths_q = lengths_k = None
    max_q = max_k = 0
    if lengths is not None:
        lengths_q, lengths_k, max_q, max_k = _lengths(lengths)
    if dropout > 0.0 and dropout_state is None:
        dropout_state = new_dropout_state(q.device, generator)
    if layout not in _calls.LAYOUTS:
        raise ValueError(f"layout is {layout!r}; it must be one of {', '.join(map(repr, _calls.LAYOUTS))}")
    order = _calls.LAYOUTS[layout]
    description = (scale, left, right, align, diagonal, softcap, dropout, algorithm, deterministic, origin)
    tensors = (q, k, v, bias, alibi, lengths_q, lengths_k, dropout_state)

    if not _is_eager(q, k, v, bias):
        key = None if block_mask is None else _operators.mask_key(block_mask)
        out, lse = torch.ops.tessera.forward(*tensors, max_q, max_k, order, *description, key)
        return (out, lse) if return_lse else out

    call = (_calls.options(*description, block_mask), order, max_q, max_k)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad
                                    or (bias is not None and bias.requires_grad)):
        out, lse = _operators.Attention.apply(call, *tensors)
    else:
        out, lse = _calls.forward(*call, *tensors, return_lse)
    return (out, lse) if return_lse else out


def new_dropout_state(device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """A fresh {seed, offset} for `attention`'s dropout_state, drawn from torch's generator of the device."""
    return torch.randint(_STATE_BOUND, (2,), dtype=torch.int64, device=device, generator=generator)


def _is_eager(q, k, v, bias) -> bool:
    """Whether nobody but autograd watches: no compiler, tracer, mode, functorch transform, forward-mode AD, profiler or
    tensor subclass, and a device that the library knows. Then the operators are not needed."""
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


def _autocast(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def _lengths(lengths):
    if len(lengths) == 2:
        return *lengths, 0, 0
    if len(lengths) == 4:
        return lengths
    raise ValueError(f"lengths has {len(lengths)} entries; it must be (lengths_q, lengths_k) or "
                     "(lengths_q, lengths_k, max_q, max_k)")
