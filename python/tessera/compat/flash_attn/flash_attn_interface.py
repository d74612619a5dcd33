"""flash-attn 2's interface over ``tessera.torch.attention``.

Tensors are (batch, seqlen, heads, head_dim), packed (total, heads, head_dim). Causal masks and windows count from the
bottom right; windows are inclusive, -1 is no bound; key and value may have fewer heads. With ``return_attn_probs`` the
functions return (out, softmax_lse, S_dmask): LSE as (batch, heads, seqlen_q), packed (heads, total_q), and S_dmask, when
there is dropout, the probabilities (batch, heads, seqlen_q, seqlen_k), negative where dropped (else None).
"""

import torch

from tessera.compat.flash_attn._kvcache import flash_attn_with_kvcache
from tessera.torch import attention, new_dropout_state

Tensor = torch.Tensor

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """Attention of q (batch, seqlen_q, heads, head_dim) on k, v (batch, seqlen_k, heads_k, head_dim)."""
    return _attention(q, k, v, {}, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                      return_attn_probs)


def flash_attn_kvpacked_func(q, kv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                             alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """The same for kv (batch, seqlen_k, 2, heads_k, head_dim), which is not copied."""
    return flash_attn_func(q, *kv.unbind(-3), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                           deterministic, return_attn_probs)


def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                              alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """The same for qkv (batch, seqlen, 3, heads, head_dim), which is not copied."""
    return flash_attn_func(*qkv.unbind(-3), dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                           deterministic, return_attn_probs)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None):
    """Packed sequences: q (total_q, heads, head_dim), k, v (total_k, heads_k, head_dim), int32 cumulative lengths
    (batch + 1), and the longest of each. Sequences may be empty. Pages (`block_table`) are not supported."""
    if block_table is not None:
        raise NotImplementedError("block_table: paged keys and values are not supported; pass them packed")
    packed = {"lengths": (cu_seqlens_q, cu_seqlens_k), "max_lengths": (int(max_seqlen_q), int(max_seqlen_k))}
    return _attention(q, k, v, packed, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                      deterministic, return_attn_probs)


def flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                                    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """The same for kv (total_k, 2, heads_k, head_dim), which is not copied."""
    return flash_attn_varlen_func(q, *kv.unbind(-3), cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                                  softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False,
                                     window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                                     return_attn_probs=False):
    """The same for qkv (total, 3, heads, head_dim), which is not copied."""
    return flash_attn_varlen_func(*qkv.unbind(-3), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p,
                                  softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs)


def _attention(q, k, v, packed, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
               return_attn_probs):
    words = dict(packed, scale=softmax_scale, causal=causal, window=tuple(window_size), softcap=softcap,
                 alibi=alibi_slopes, deterministic=deterministic)
    if not return_attn_probs:
        return attention(q, k, v, dropout=dropout_p, **words)
    state = new_dropout_state(q.device) if dropout_p > 0 else None
    out, lse = attention(q, k, v, dropout=dropout_p, dropout_state=state, return_lse=True, **words)
    return out, lse, _signed_probabilities(q, k, dropout_p, state, packed, words) if dropout_p > 0 else None


@torch.no_grad()
def _signed_probabilities(q, k, dropout_p, state, packed, words):
    """The probabilities, (batch, heads, queries, keys), negative where dropped: attention with unit vectors as values,
    with dropout and without. For looking at; it holds the N x N matrix."""
    if not packed:
        positions, keys = torch.arange(k.shape[1], device=k.device), k.shape[1]
    else:
        (lengths_q, lengths_k), (max_q, keys) = packed["lengths"], packed["max_lengths"]
        _, positions = _places(lengths_k, k.shape[0])

    def matrix(p):
        parts = []
        for first in range(0, keys, 256):  # the largest head_dim
            columns = torch.arange(first, min(first + 256, keys), device=k.device)
            unit = (positions[:, None] == columns).to(k.dtype)[:, None, :].expand(*k.shape[:-1], len(columns))
            parts.append(attention(q, k, unit, dropout=p, dropout_state=state if p > 0 else None, **words))
        return torch.cat(parts, dim=-1)

    probabilities = matrix(0.0)
    signed = torch.where(matrix(dropout_p) == 0, -probabilities, probabilities)
    if not packed:
        return signed.transpose(1, 2)
    result = signed.new_zeros(len(lengths_q) - 1, max_q, *signed.shape[1:])
    result[_places(lengths_q, q.shape[0])] = signed
    return result.transpose(1, 2)


def _places(lengths, total):
    """For each packed token its sequence, and its position in it."""
    tokens = torch.arange(total, device=lengths.device)
    sequence = torch.searchsorted(lengths[1:].contiguous(), tokens, right=True)
    return sequence, tokens - lengths[sequence]
