"""attention and attention_backward: the library's two calls for the arrays of any library."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from tessera import _core
from tessera._arguments import core_options, takes_options, two_integers
from tessera._arrays import Library, library_of, shape_of
from tessera._core import BlockMask
from tessera._types import Array, Layout

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tessera._arguments import Options

_LAYOUTS = {"bshd": _core.SEQUENCE_FIRST, "bhsd": _core.HEADS_FIRST}


class Gradients(NamedTuple):
    """The result of ``attention_backward``; a field is None when it was not requested."""

    q: Array
    k: Array
    v: Array
    bias: Array


def _layout(layout: str) -> int:
    if not isinstance(layout, str) or layout not in _LAYOUTS:
        raise ValueError(f"layout is {layout!r}; it must be 'bshd' (batch, sequence, heads, head_dim) "
                         "or 'bhsd' (batch, heads, sequence, head_dim)")
    return _LAYOUTS[layout]


def _beside(name: str, values: Any, kind: str, library: Library, q: Array) -> Any:
    """An array as it is; a list or tuple of numbers as an array beside q."""
    if not isinstance(values, (list, tuple)):
        return values
    try:
        return library.numbers(values, kind, q)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ValueError(f"{name} is {values!r}; it must hold {'int32' if kind == 'i' else 'float32'} numbers") from None


def _is_number(value: Any) -> bool:
    """Whether it is one number: Python's, NumPy's, or an array without dimensions."""
    return isinstance(value, Integral) or getattr(value, "ndim", None) == 0


def _pair(lengths: Any) -> tuple[Any, Any]:
    """Cumulative lengths of queries and keys: given as two, or as one for both."""
    if isinstance(lengths, (tuple, list)) and len(lengths) == 2 and not _is_number(lengths[0]):
        return lengths[0], lengths[1]
    return lengths, lengths


def _lengths(lengths: Any, max_lengths: tuple[int, int], library: Library, q: Array) -> tuple[Any, Any, int, int]:
    """Those of queries and of keys as arrays beside q, and the longest of each."""
    if lengths is None:
        return None, None, 0, 0
    of_q, of_k = _pair(lengths)
    return (_beside("lengths", of_q, "i", library, q), _beside("lengths", of_k, "i", library, q),
            *two_integers("max_lengths", max_lengths, "(of queries, of keys)"))


def _heads(shape: Sequence[int], layout_code: int) -> int:
    """The number of query heads, from the shape of q."""
    rank = len(shape)
    if rank not in (3, 4):
        raise ValueError(f"q has {rank} dimensions; it must have 4, or 3 without a batch")
    return shape[rank - 2 if layout_code == _core.SEQUENCE_FIRST else rank - 3]


def _slopes(alibi: Any, library: Library, q: Array, layout_code: int) -> Any:
    if alibi is None or alibi is False:
        return None
    if alibi is True:
        alibi = _core.alibi_slopes(_heads(q.shape, layout_code))
    return _beside("alibi", alibi, "f", library, q)


@takes_options
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    bias: Array | None = None,
    visible: Array | None = None,
    alibi: Array | Sequence[float] | bool | None = None,
    seed: int = 0,
    offset: int = 0,
    dropout_state: Array | None = None,
    lengths: Any = None,
    max_lengths: tuple[int, int] = (0, 0),
    block_mask: BlockMask | None = None,
    layout: Layout = "bshd",
    out: Array | None = None,
    lse: Array | None = None,
    return_lse: bool = False,
    stream: int | None = None,
    threads: int = 0,
    **options: Unpack[Options],
) -> Any:
    """Exact attention: ``dropout(softmax(softcap(scale * q k^T) + bias + alibi + mask)) v``.

    Args:
        q: (batch, queries, heads, head_dim); fp32, fp16, bf16, and fp64 on the CPU; head_dim from 1 to 256.
        k: (batch, keys, kv_heads, head_dim); kv_heads divides heads, and query head h reads h // (heads / kv_heads).
        v: (batch, keys, kv_heads, head_dim of the result).
        bias: added to the scores, broadcast to (batch, heads, queries, keys); the type of q or of the LSE.
        visible: which keys each query may attend to, of type bool (or uint8, where 0 is False), broadcast as a bias.
            Blocks of keys that it hides from neighbouring queries cost no time. CPU only.
        alibi: slopes (heads) or (batch, heads), or True for the slopes of the paper; adds -slope * distance.
        seed, offset: select the dropped elements, together with their position only: the same on every device.
        dropout_state: holds both as two 64-bit integers, read when the kernel runs.
        lengths: cumulative lengths [0, n1, n1 + n2, ...] in int32 of sequences packed into a batch of 1 (or arrays
            without a batch): one array for queries and keys, or two. A GPU also requires ``max_lengths``, the longest
            sequence of queries and of keys.
        block_mask: only the blocks that it keeps are visible.
        layout: "bshd" as above, or "bhsd": (batch, heads, sequence, head_dim), PyTorch's order. The batch may be
            omitted.
        out, lse: arrays to write into; None makes new ones.
        return_lse: also return the log-sum-exp of the scores, (batch, heads, queries) in fp32 (fp64 for fp64).
        stream: the CUDA stream; None is the current stream of q's library.
        threads: CPU threads; 0 is all. The number changes no result.
        {options}

    Returns:
        out, of the library and type of q; (out, lse) with ``return_lse`` or ``lse``. A query without visible keys gives
        0 and an LSE of -infinity.

    Raises:
        ValueError: an argument is wrong; the text names it, its value and what is allowed.
        NotImplementedError: no kernel supports the call; the text says what each one requires.
        MemoryError: out of memory.
        RuntimeError: the GPU or its driver failed.

    >>> import numpy as np
    >>> q = np.array([1, 0, 0, 1, 1, 1, 0, 0], dtype=np.float32).reshape(1, 4, 1, 2)
    >>> v = np.array([1, 10, 2, 20, 3, 30, 4, 40], dtype=np.float32).reshape(1, 4, 1, 2)
    >>> out, lse = attention(q, q, v, causal=True, return_lse=True)
    >>> print(np.round(out[0, :, 0], 3))
    [[ 1.    10.   ]
     [ 1.67  16.698]
     [ 2.255 22.552]
     [ 2.5   25.   ]]
    >>> lse.shape
    (1, 1, 4)

    Two sequences of three and one tokens, packed:

    >>> packed = attention(q[0], q[0], v[0], lengths=[0, 3, 4])
    >>> print(packed[3])
    [[ 4. 40.]]
    """
    library = library_of(q)
    library.check_inputs(q, k, v, bias, alibi)
    layout_code = _layout(layout)
    description = core_options(options, block_mask)
    lengths_q, lengths_k, max_q, max_k = _lengths(lengths, max_lengths, library, q)
    q_shape, v_shape = q.shape, shape_of("v", v)
    rank = len(q_shape)
    if rank not in (3, 4) or len(v_shape) != rank:
        raise ValueError(f"q has {rank} and v {len(v_shape)} dimensions; both must have 4, or 3 without a batch")
    if not library.writable and not (out is None and lse is None):
        raise ValueError("out and lse must not be given for arrays that cannot be written, as JAX's")
    heads, queries = (rank - 2, rank - 3) if layout_code == _core.SEQUENCE_FIRST else (rank - 3, rank - 2)
    if out is None:
        out = library.empty((*q_shape[:-1], v_shape[-1]), q)
    if lse is None and return_lse:
        lse = library.empty((*q_shape[:rank - 3], q_shape[heads], q_shape[queries]), q, library.accumulator(q))
    _core.forward(description, q, k, v, bias, out, lse, alibi=_slopes(alibi, library, q, layout_code),
                  lengths_q=lengths_q, lengths_k=lengths_k, max_q=max_q, max_k=max_k, seed=seed, offset=offset,
                  dropout_state=dropout_state, visible=visible, layout=layout_code,
                  stream=library.stream(q) if stream is None else stream, threads=threads,
                  workspace_from_q=library.lends_workspace(q))
    return library.finished(out) if lse is None else (library.finished(out), library.finished(lse))


@takes_options
def attention_backward(
    grad_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    grad_lse: Array | None = None,
    bias: Array | None = None,
    visible: Array | None = None,
    alibi: Array | Sequence[float] | bool | None = None,
    seed: int = 0,
    offset: int = 0,
    dropout_state: Array | None = None,
    lengths: Any = None,
    max_lengths: tuple[int, int] = (0, 0),
    block_mask: BlockMask | None = None,
    layout: Layout = "bshd",
    gradients: Sequence[str] = ("q", "k", "v", "bias"),
    stream: int | None = None,
    threads: int = 0,
    **options: Unpack[Options],
) -> Gradients:
    """The gradients of ``attention``, by recomputation: no N x N matrix is stored.

    Args:
        grad_out: gradient of ``out``.
        q, k, v, out, lse: as passed to ``attention`` and returned by it, with ``return_lse=True``.
        grad_lse: gradient of ``lse``, when the loss depends on it.
        gradients: names of the gradients to compute. The gradient of the bias is the sum over its broadcast
            dimensions; it is None without a bias.
        {options}

    All other arguments must be as in the call of ``attention``. The errors are the same.

    >>> import numpy as np
    >>> q = np.random.default_rng(0).standard_normal((1, 5, 2, 8))
    >>> out, lse = attention(q, q, q, causal=True, return_lse=True)
    >>> grads = attention_backward(np.ones_like(out), q, q, q, out, lse, causal=True)
    >>> grads.v[0, :, 0, 0].sum().round(6)          # every row of probabilities sums to 1
    np.float64(5.0)
    """
    library = library_of(q)
    layout_code = _layout(layout)
    if "wanted" in options:
        raise TypeError("the argument wanted is now called gradients")
    unknown = [name for name in gradients if name not in Gradients._fields]
    if unknown:
        raise ValueError(f"gradients has {unknown[0]!r}; it may have {', '.join(Gradients._fields)}")
    description = core_options(options, block_mask)
    lengths_q, lengths_k, max_q, max_k = _lengths(lengths, max_lengths, library, q)
    grads = Gradients(*(library.empty(tuple(shape_of(name, x)), x) if name in gradients and x is not None else None
                        for name, x in zip(Gradients._fields, (q, k, v, bias))))
    _core.backward(description, q, k, v, bias, out, lse, grad_out, grad_lse, grads.q, grads.k, grads.v, grads.bias,
                   alibi=_slopes(alibi, library, q, layout_code), lengths_q=lengths_q, lengths_k=lengths_k,
                   max_q=max_q, max_k=max_k, seed=seed, offset=offset, dropout_state=dropout_state,
                   visible=visible, layout=layout_code, stream=library.stream(q) if stream is None else stream,
                   threads=threads, workspace_from_q=library.lends_workspace(q))
    return Gradients(*(None if x is None else library.finished(x) for x in grads))
