"""flash-attn 2's interface over ``tessera.torch.attention``.

Tensors are (batch, seqlen, heads, head_dim), packed (total, heads, head_dim). Causal masks and windows count from the
bottom right; windows are inclusive, and -1 means no bound; key and value may have fewer heads. With ``return_attn_probs`` the
functions return (out, softmax_lse, S_dmask): LSE as (batch, heads, seqlen_q), packed (heads, total_q), and S_dmask, when
there is dropout, the probabilities (batch, heads, seqlen_q, seqlen_k), negative where dropped (else None).
"""

from tessera.compat.flash_attn._kvcache import flash_attn_with_kvcache
from tessera.compat.flash_attn._packed import packed_words
from tessera.compat.flash_attn._passes import (
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
)
from tessera.compat.flash_attn._probabilities import signed_probabilities
from tessera.torch import attention, new_dropout_state

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "_flash_attn_varlen_backward",
    "_flash_attn_varlen_forward",
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
    return _attention(q, k, v, None, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
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
    (batch + 1), and at least the longest of each. Sequences may be empty. Tokens after the last one give 0 on the CPU and
    are not written on GPUs. Pages (`block_table`) are not supported."""
    if block_table is not None:
        raise NotImplementedError("block_table: paged keys and values are not supported; pass them packed")
    packed = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
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
    words = {"scale": softmax_scale, "causal": causal, "window": tuple(window_size), "softcap": softcap,
             "alibi": alibi_slopes, "deterministic": deterministic}
    if packed:
        words.update(packed_words(q, k, *packed, alibi_slopes))
    if not return_attn_probs:
        return attention(q, k, v, dropout=dropout_p, **words)
    state = new_dropout_state(q.device) if dropout_p > 0 else None
    out, lse = attention(q, k, v, dropout=dropout_p, dropout_state=state, return_lse=True, **words)
    return out, lse, signed_probabilities(q, k, dropout_p, state, packed, words) if dropout_p > 0 else None
