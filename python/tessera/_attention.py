"""attention and attention_backward: the library's two calls for the arrays of any library."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

from tessera import _core
from tessera._arrays import Library, library_of
from tessera._core import BlockMask
from tessera._types import AlgorithmName, AlignName, Array, Layout, Origin

_LAYOUTS = {"bshd": _core.SEQUENCE_FIRST, "bhsd": _core.HEADS_FIRST}


class Gradients(NamedTuple):
    """What ``attention_backward`` returns; None for what was not wanted."""

    q: Array
    k: Array
    v: Array
    bias: Array


Description = tuple[bool, tuple[int, int] | None, AlignName, int | None, float | None, float, float, Origin,
                    AlgorithmName, bool]
"""causal, window, align, diagonal, scale, softcap, dropout, origin, algorithm and deterministic of a call."""

_made: dict[Description, _core.Options] = {}
_MOST = 256
_FIXED = (bool, int, float, str, tuple, type(None))


def options(description: Description, block_mask: BlockMask | None = None) -> _core.Options:
    """The description of a call in the words of ``attention``. Equal ones share what is made of them.

    Only values that cannot change are kept, and no block masks, which can be large.
    """
    try:
        made = _made.get(description)
    except TypeError:  # a list, say, has no hash
        made = _options(*description)
    else:
        if made is None:
            made = _options(*description)
            if all(isinstance(value, _FIXED) for value in description):
                if len(_made) >= _MOST:
                    _made.clear()
                _made[description] = made
    return made if block_mask is None else made.with_blocks(block_mask)


def _options(causal: bool, window: tuple[int, int] | None, align: AlignName, diagonal: int | None,
             scale: float | None, softcap: float, dropout: float, origin: Origin, algorithm: AlgorithmName,
             deterministic: bool) -> _core.Options:
    if hasattr(causal, "__dlpack__"):
        raise ValueError(f"causal is an array ({type(causal).__name__}); it must be True or False")
    left, right = (-1, -1) if window is None else _two("window", window, "(left, right)")
    return _core.Options(scale=scale, left=left, right=0 if causal else right, align=align, diagonal=diagonal,
                         softcap=softcap, dropout=dropout, origin=origin, algorithm=algorithm,
                         deterministic=deterministic)


def _two(name: str, values: Any, meaning: str) -> tuple[int, int]:
    """Two integers that were given as one argument."""
    try:
        first, second = values
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {values!r}; it must be two integers, {meaning}") from None
    return first, second


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
            *_two("max_lengths", max_lengths, "(of queries, of keys)"))


def _heads(shape: Sequence[int], order: int) -> int:
    """The number of query heads, from the shape of q."""
    rank = len(shape)
    if rank not in (3, 4):
        raise ValueError(f"q has {rank} dimensions; it must have 4, or 3 without a batch")
    return shape[rank - 2 if order == _core.SEQUENCE_FIRST else rank - 3]


def _slopes(alibi: Any, library: Library, q: Array, order: int) -> Any:
    if alibi is None or alibi is False:
        return None
    if alibi is True:
        alibi = _core.alibi_slopes(_heads(q.shape, order))
    return _beside("alibi", alibi, "f", library, q)


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    align: AlignName = "bottom_right",
    diagonal: int | None = None,
    scale: float | None = None,
    bias: Array | None = None,
    alibi: Array | Sequence[float] | bool | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    dropout_state: Array | None = None,
    lengths: Any = None,
    max_lengths: tuple[int, int] = (0, 0),
    block_mask: BlockMask | None = None,
    origin: Origin = (0, 0, 0, 0),
    algorithm: AlgorithmName = "automatic",
    layout: Layout = "bshd",
    out: Array | None = None,
    lse: Array | None = None,
    return_lse: bool = False,
    stream: int | None = None,
    threads: int = 0,
) -> Any:
    """Exact attention: ``dropout(softmax(softcap(scale * q k^T) + bias + alibi + mask)) v``.

    Args:
        q: (batch, queries, heads, head_dim); fp32, fp16, bf16, and fp64 on the CPU; head_dim from 1 to 256.
        k: (batch, keys, kv_heads, head_dim); kv_heads divides heads, and query head h reads h // (heads / kv_heads).
        v: (batch, keys, kv_heads, head_dim of the result).
        causal: no query sees a key after it.
        window: (left, right): only keys at most so far before and after the diagonal; -1 is no bound.
        align: where the diagonal lies when there are more or fewer keys than queries: "bottom_right", the last query
            meets the last key, or "top_left", the first meets the first (PyTorch's ``is_causal``).
        diagonal: an explicit one: row i meets it at column i + diagonal.
        scale: 1 / sqrt(head_dim) by default.
        bias: added to the scores, broadcast to (batch, heads, queries, keys); the type of q or of the LSE.
        alibi: slopes (heads) or (batch, heads), or True for those of the paper: -slope * distance is added.
        softcap: cap * tanh(score / cap) before bias and mask; 0 is off.
        dropout: the probability; what is dropped follows from ``seed``, ``offset`` and the element's position alone,
            the same on every device. ``dropout_state`` holds both as two 64-bit integers, read when the kernel runs.
        lengths: cumulative lengths [0, n1, n1 + n2, ...] in int32 of sequences packed into a batch of 1 (or arrays
            without a batch): one for queries and keys alike, or two. On a GPU ``max_lengths`` must say the longest.
        block_mask: only these blocks of keys are seen.
        origin: the global (row, column, batch entry, head) of the first ones, for a shard of a longer sequence.
        algorithm: "standard", "flash1", "flash2", "flash3" or "minimal" asks for one; the result is the same.
        layout: "bshd" as above, or "bhsd": (batch, heads, sequence, head_dim), PyTorch's order. The batch may miss.
        out, lse: arrays to write into instead of new ones.
        return_lse: also return the log-sum-exp of the scores, (batch, heads, queries) in fp32 (fp64 for fp64).
        stream: the CUDA stream; by default the current one of q's library.
        threads: CPU threads; 0 is all. No result depends on it.

    Returns:
        out, of the library and type of q; (out, lse) when ``return_lse`` or ``lse`` asks for it. A query that sees no
        key gives 0 and an LSE of -infinity.

    Raises:
        ValueError: an argument is wrong; the text names it, its value and what is allowed.
        NotImplementedError: no kernel serves the call; the text says what each one lacks.
        MemoryError: there is not enough.
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
    order = _layout(layout)
    description = options((causal, window, align, diagonal, scale, softcap, dropout, origin, algorithm, False),
                          block_mask)
    lengths_q, lengths_k, max_q, max_k = _lengths(lengths, max_lengths, library, q)
    q_shape, v_shape = q.shape, v.shape
    rank = len(q_shape)
    if rank not in (3, 4) or len(v_shape) != rank:
        raise ValueError(f"q has {rank} and v {len(v_shape)} dimensions; both must have 4, or 3 without a batch")
    if not library.writable and not (out is None and lse is None):
        raise ValueError("out and lse must not be given for arrays that cannot be written, as JAX's")
    heads, queries = (rank - 2, rank - 3) if order == _core.SEQUENCE_FIRST else (rank - 3, rank - 2)
    if out is None:
        out = library.empty((*q_shape[:-1], v_shape[-1]), q)
    if lse is None and return_lse:
        lse = library.empty((*q_shape[:rank - 3], q_shape[heads], q_shape[queries]), q, library.accumulator(q))
    _core.forward(description, q, k, v, bias, out, lse, _slopes(alibi, library, q, order), lengths_q, lengths_k,
                  max_q, max_k, seed, offset, dropout_state, order, library.stream(q) if stream is None else stream,
                  threads, library.lends_workspace(q))
    return library.finished(out) if lse is None else (library.finished(out), library.finished(lse))


def attention_backward(
    grad_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    grad_lse: Array | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    align: AlignName = "bottom_right",
    diagonal: int | None = None,
    scale: float | None = None,
    bias: Array | None = None,
    alibi: Array | Sequence[float] | bool | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    dropout_state: Array | None = None,
    lengths: Any = None,
    max_lengths: tuple[int, int] = (0, 0),
    block_mask: BlockMask | None = None,
    origin: Origin = (0, 0, 0, 0),
    algorithm: AlgorithmName = "automatic",
    deterministic: bool = False,
    layout: Layout = "bshd",
    wanted: Sequence[str] = ("q", "k", "v", "bias"),
    stream: int | None = None,
    threads: int = 0,
) -> Gradients:
    """The gradients of ``attention``, by recomputation: nothing of N x N size is ever kept.

    Args:
        grad_out: gradient of ``out``.
        q, k, v, out, lse: as given to ``attention`` and returned by it, with ``return_lse=True``.
        grad_lse: gradient of ``lse``, for those who use it.
        deterministic: bitwise reproducible also on GPUs; on the CPU gradients always are.
        wanted: which gradients to compute; that of the bias only when there is one, summed over what was broadcast.

    The rest must be as in the call of ``attention``, and so are the errors.

    >>> import numpy as np
    >>> q = np.random.default_rng(0).standard_normal((1, 5, 2, 8))
    >>> out, lse = attention(q, q, q, causal=True, return_lse=True)
    >>> grads = attention_backward(np.ones_like(out), q, q, q, out, lse, causal=True)
    >>> grads.v[0, :, 0, 0].sum().round(6)          # every row of probabilities adds up to 1
    np.float64(5.0)
    """
    library = library_of(q)
    order = _layout(layout)
    unknown = [name for name in wanted if name not in Gradients._fields]
    if unknown:
        raise ValueError(f"wanted has {unknown[0]!r}; it must name some of {', '.join(Gradients._fields)}")
    description = options((causal, window, align, diagonal, scale, softcap, dropout, origin, algorithm, deterministic),
                          block_mask)
    lengths_q, lengths_k, max_q, max_k = _lengths(lengths, max_lengths, library, q)
    grads = Gradients(*(library.empty(tuple(x.shape), x) if name in wanted and x is not None else None
                        for name, x in zip(Gradients._fields, (q, k, v, bias))))
    _core.backward(description, q, k, v, bias, out, lse, grad_out, grad_lse, grads.q, grads.k, grads.v, grads.bias,
                   _slopes(alibi, library, q, order), lengths_q, lengths_k, max_q, max_k, seed, offset, dropout_state,
                   order, library.stream(q) if stream is None else stream, threads, library.lends_workspace(q))
    return Gradients(*(None if x is None else library.finished(x) for x in grads))
