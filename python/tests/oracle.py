"""Attention by its definition, in fp64 NumPy: the N x N matrix, nothing clever. Knows nothing of the library.

Arrays are (batch, sequence, heads, head_dim); `Problem` says the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


def philox(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Philox4x32-7 of counters (..., 4) with keys (..., 2), as uint64 that hold 32 bits."""
    low = np.uint64(0xFFFFFFFF)
    c = [counter[..., i].astype(np.uint64) for i in range(4)]
    k0, k1 = (key[..., i].astype(np.uint64) for i in range(2))
    for _ in range(7):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ k0, p1 & low, (p0 >> np.uint64(32)) ^ c[3] ^ k1, p0 & low]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return np.stack(c, axis=-1)


def dropout_bits(seed: int, offset: int, batch: int, head: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The 15 random bits of every (row, column) of one head, in global coordinates."""
    words = lambda *values: np.array(values, dtype=np.uint64)  # noqa: E731
    stream = philox(words(offset & 0xFFFFFFFF, offset >> 32, batch, head), words(seed & 0xFFFFFFFF, seed >> 32))
    within = columns % 32
    counter = np.zeros((len(rows), len(columns), 4), dtype=np.uint64)
    counter[..., 0] = (columns // 32 * 4 + within % 8 // 2)[None, :]
    counter[..., 1] = rows[:, None]
    counter[..., 2], counter[..., 3] = stream[2], stream[3]
    result = philox(counter, np.broadcast_to(stream[:2], counter.shape[:2] + (2,)))
    word = np.take_along_axis(result, np.broadcast_to((within // 8)[None, :, None], result.shape[:2] + (1,)), axis=-1)
    return ((word[..., 0] >> (within % 2 * 16).astype(np.uint64)[None, :]) & np.uint64(0x7FFF)).astype(np.int64)


@dataclass(frozen=True)
class Problem:
    """Everything but the data."""

    scale: float | None = None
    left: int = -1
    right: int = -1
    align: str = "bottom_right"
    diagonal: int | None = None
    softcap: float = 0.0
    dropout: float = 0.0
    seed: int = 0
    offset: int = 0
    origin: tuple[int, int, int, int] = (0, 0, 0, 0)  # row, column, batch, head
    alibi: np.ndarray | None = None  # (heads) or (batch, heads)
    bias: np.ndarray | None = None  # broadcast to (batch, heads, queries, keys)
    visible: np.ndarray | None = None  # ([[batch,] heads,] queries, keys), for block masks and boolean masks
    lengths_q: tuple[int, ...] | None = None  # lengths of packed sequences, not cumulative
    lengths_k: tuple[int, ...] | None = None


@dataclass
class Head:
    """One (batch, head): every intermediate, kept for the gradients."""

    scores: np.ndarray  # scaled, before softcap
    probabilities: np.ndarray
    dropped: np.ndarray  # factor 0 or 32768 / (32768 - steps) per element
    out: np.ndarray
    lse: np.ndarray


def _offset_of_diagonal(p: Problem, nq: int, nk: int) -> int:
    """d in local coordinates: row i meets the diagonal at column i + d."""
    if p.diagonal is not None:
        return p.diagonal + p.origin[0] - p.origin[1]
    return nk - nq if p.align == "bottom_right" else p.origin[0] - p.origin[1]


def _head(p: Problem, q, k, v, bias, b: int, h: int) -> Head:
    nq, nk = len(q), len(k)
    scale = p.scale if p.scale is not None else 1 / np.sqrt(q.shape[-1])
    scores = scale * (q @ k.T)
    s = p.softcap * np.tanh(scores / p.softcap) if p.softcap else scores.copy()
    if bias is not None:
        s = s + bias
    i, j = np.arange(nq)[:, None], np.arange(nk)[None, :]
    distance = i + _offset_of_diagonal(p, nq, nk) - j
    if p.alibi is not None:
        s = s - (p.alibi[b, h] if p.alibi.ndim == 2 else p.alibi[h]) * np.abs(distance)
    seen = np.ones((nq, nk), dtype=bool)
    if p.left >= 0:
        seen &= distance <= p.left
    if p.right >= 0:
        seen &= -distance <= p.right
    if p.visible is not None:
        seen &= p.visible[h] if p.visible.ndim == 3 else p.visible
    s = np.where(seen, s, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        top = s.max(axis=1, keepdims=True, initial=-np.inf)
        weights = np.where(seen, np.exp(s - np.where(np.isfinite(top), top, 0)), 0)
        total = weights.sum(axis=1, keepdims=True)
        probabilities = np.where(total > 0, weights / np.where(total > 0, total, 1), 0)
        lse = np.where(total > 0, np.log(total) + top, -np.inf)[:, 0]
    dropped = np.ones((nq, nk))
    if p.dropout:
        row, column, batch, head = p.origin
        bits = dropout_bits(p.seed, p.offset, b + batch, h + head, np.arange(nq) + row, np.arange(nk) + column)
        steps = int(p.dropout * 32768 + 0.5)
        dropped = (bits >= steps) * 32768 / (32768 - steps)
    return Head(scores, probabilities, dropped, (probabilities * dropped) @ v, lse)


def _grad_head(p: Problem, head: Head, q, k, v, grad_out, grad_lse):
    """Gradients of q, k, v and of the scores after softcap (that is: of the bias)."""
    weights = head.probabilities * head.dropped
    grad_p = (grad_out @ v.T) * head.dropped
    grad_s = head.probabilities * (grad_p - (grad_p * head.probabilities).sum(axis=1, keepdims=True)
                                   + grad_lse[:, None])
    raw = grad_s * (1 - np.tanh(head.scores / p.softcap) ** 2) if p.softcap else grad_s
    scale = p.scale if p.scale is not None else 1 / np.sqrt(q.shape[-1])
    return scale * raw @ k, scale * raw.T @ q, weights.T @ grad_out, grad_s


def _sequences(p: Problem, q, k):
    """(batch entry of the arrays, batch entry of the contract, rows, columns) of every sequence."""
    if p.lengths_q is None:
        for b in range(q.shape[0]):
            yield b, b, slice(0, q.shape[1]), slice(0, k.shape[1])
        return
    i = j = 0
    for b, (nq, nk) in enumerate(zip(p.lengths_q, p.lengths_k)):
        yield 0, b, slice(i, i + nq), slice(j, j + nk)
        i, j = i + nq, j + nk


def attention(p: Problem, q, k, v, grad_out=None, grad_lse=None):
    """(out, lse), or with `grad_out` the tuple (out, lse, grad_q, grad_k, grad_v, grad_bias). lse is
    (batch, heads, queries); grad_bias has the shape of the bias, None without one."""
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    batch, nq, heads, _ = q.shape
    group = heads // max(k.shape[2], 1)
    out = np.zeros((batch, nq, heads, v.shape[-1]))
    lse = np.full((batch, heads, nq), -np.inf)
    grads = [np.zeros(x.shape) for x in (q, k, v)]
    bias = grad_bias = None
    if p.bias is not None:
        bias = np.broadcast_to(np.asarray(p.bias, dtype=np.float64), (batch, heads, nq, k.shape[1]))
        grad_bias = np.zeros(bias.shape)
    for at, b, rows, columns in _sequences(p, q, k):
        for h in range(heads):
            own = (q[at, rows, h], k[at, columns, h // group], v[at, columns, h // group])
            local = bias[at, h, rows, columns] if bias is not None else None
            visible = p.visible[b] if np.ndim(p.visible) == 4 else p.visible
            one = p if visible is None else replace(
                p, visible=visible[..., :rows.stop - rows.start, :columns.stop - columns.start])
            head = _head(one, *own, local, b, h)
            out[at, rows, h], lse[at, h, rows] = head.out, head.lse
            if grad_out is None:
                continue
            own_grad_lse = (np.zeros(len(own[0])) if grad_lse is None
                            else np.asarray(grad_lse, dtype=np.float64)[at, h, rows])
            gq, gk, gv, gs = _grad_head(one, head, *own, np.asarray(grad_out, dtype=np.float64)[at, rows, h],
                                        own_grad_lse)
            grads[0][at, rows, h] = gq
            grads[1][at, columns, h // group] += gk
            grads[2][at, columns, h // group] += gv
            if grad_bias is not None:
                grad_bias[at, h, rows, columns] = gs
    if grad_out is None:
        return out, lse
    if grad_bias is not None:
        shape = np.asarray(p.bias).shape
        grad_bias = grad_bias.sum(axis=tuple(range(4 - len(shape))))
        for axis, size in enumerate(shape):
            if size == 1:
                grad_bias = grad_bias.sum(axis=axis, keepdims=True)
    return out, lse, *grads, grad_bias


def blocks_to_elements(kept: np.ndarray, nq: int, nk: int, block_q: int, block_k: int) -> np.ndarray:
    """One flag per element from one flag per block."""
    return np.repeat(np.repeat(kept, block_q, axis=-2), block_k, axis=-1)[..., :nq, :nk]
