"""Attention on a key/value cache that is filled as generation goes on."""

import torch

from tessera.torch import attention

Tensor = torch.Tensor


@torch.no_grad()
def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
                            cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None,
                            causal=False, window_size=(-1, -1), softcap=0.0, rotary_interleaved=True,
                            alibi_slopes=None, num_splits=0, return_softmax_lse=False):
    """Attention of q (batch, seqlen_q, heads, head_dim) on caches (batch_cache, capacity, heads_k, head_dim), of which
    `cache_seqlens` (an int or int32 (batch); None: all) says how far they are filled. Without gradients.

    k, v (batch, seqlen_new, heads_k, head_dim) are first written into the caches behind what is there.
    rotary_cos, rotary_sin (positions, rotary_dim / 2) turn k, and q, by their positions; queries all by that of the
    first one unless `causal` or a window is given. cache_batch_idx (batch): which rows of the caches to use; they are
    gathered into a copy. cache_leftpad (batch): where they begin. num_splits is for the library to choose.

    The caches are read where they lie: to the library, what is filled and what is not are sequences of one packed
    batch, the latter without queries.

    Returns out (batch, seqlen_q, heads, head_dim), or (out, softmax_lse) with the LSE (batch, heads, seqlen_q).
    """
    if block_table is not None:
        raise NotImplementedError("block_table: paged caches are not supported; pass caches without pages")
    if rotary_cos is not None and cache_leftpad is not None:
        raise NotImplementedError("rotary_cos is not supported together with cache_leftpad; rotate q and k beforehand")
    if (k is None) != (v is None) or (k is not None and cache_seqlens is None):
        raise ValueError("k and v must be given together, and with cache_seqlens, which says where they go")
    batch, queries = q.shape[:2]
    capacity = k_cache.shape[1]
    rows = torch.arange(batch, device=q.device) if cache_batch_idx is None else cache_batch_idx.long()
    filled = capacity if cache_seqlens is None else cache_seqlens
    filled = filled.long() if isinstance(filled, Tensor) else torch.full((batch,), filled, device=q.device)

    if rotary_cos is not None:
        ordered = causal or tuple(window_size) != (-1, -1)
        steps = torch.arange(queries, device=q.device) * int(ordered)
        q = _rotated(q, filled[:, None] + steps, rotary_cos, rotary_sin, rotary_interleaved)
    if k is not None:
        places = filled[:, None] + torch.arange(k.shape[1], device=q.device)
        if rotary_cos is not None:
            k = _rotated(k, places, rotary_cos, rotary_sin, rotary_interleaved)
        k_cache[rows[:, None], places] = k
        v_cache[rows[:, None], places] = v
        filled = filled + k.shape[1]
    if cache_batch_idx is not None:
        k_cache, v_cache = k_cache[rows], v_cache[rows]

    if alibi_slopes is not None and alibi_slopes.dim() == 2:
        alibi_slopes = alibi_slopes.repeat_interleave(3, dim=0)
    out, lse = attention(q.flatten(0, 1), k_cache[:batch].flatten(0, 1), v_cache[:batch].flatten(0, 1),
                         lengths=_lengths(batch, queries, capacity, filled, cache_leftpad),
                         max_lengths=(queries, capacity), scale=softmax_scale, causal=causal,
                         window=tuple(window_size), softcap=softcap, alibi=alibi_slopes, return_lse=True)
    out, lse = out.unflatten(0, (batch, queries)), lse.unflatten(1, (batch, queries)).transpose(0, 1)
    return (out, lse) if return_softmax_lse else out


def _lengths(batch: int, queries: int, capacity: int, filled: Tensor, leftpad: Tensor | None):
    """Cumulative lengths of three sequences per cache row: left padding, filled tokens, free tokens."""
    row = torch.arange(batch, device=filled.device)
    begin = row * capacity + (0 if leftpad is None else leftpad)
    lengths_k = torch.stack((begin, row * capacity + filled, (row + 1) * capacity), dim=1).flatten()
    lengths_q = torch.stack((row, row + 1, row + 1), dim=1).flatten() * queries
    return tuple(torch.nn.functional.pad(lengths, (1, 0)).int() for lengths in (lengths_q, lengths_k))


def _rotated(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x (batch, seqlen, heads, head_dim) with its first dimensions turned, in pairs, by the angle of each position."""
    half = cos.shape[-1]
    cos, sin = (table[positions].unsqueeze(2).float() for table in (cos, sin))
    turned = x[..., :2 * half].float()
    pairs = turned.unflatten(-1, (half, 2)) if interleaved else turned.unflatten(-1, (2, half)).transpose(-1, -2)
    first, second = pairs.unbind(-1)
    pairs = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1)
    turned = (pairs if interleaved else pairs.transpose(-1, -2)).flatten(-2)
    return torch.cat((turned.to(x.dtype), x[..., 2 * half:]), dim=-1)
