"""Forward and backward one by one, as code that shards sequences itself calls them (ring attention and the like).

flash-attn keeps them private, but their signatures are what such code is written against. `rng_state` is int64
{seed, offset} on the device, what `tessera.torch.attention` calls dropout_state. No gradient is recorded.
"""

import torch

from tessera import _core
from tessera._arguments import core_options
from tessera.compat.flash_attn._packed import packed_words
from tessera.compat.flash_attn._probabilities import signed_probabilities
from tessera.torch import _calls, attention, new_dropout_state


def _flash_attn_forward(q, k, v, dropout_p, softmax_scale, causal, window_size_left=-1, window_size_right=-1,
                        softcap=0.0, alibi_slopes=None, return_softmax=False):
    """(out, softmax_lse, S_dmask, rng_state) of (batch, seqlen, heads, head_dim); S_dmask is empty unless requested."""
    return _forward(q, k, v, None, dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap,
                    alibi_slopes, return_softmax)


def _flash_attn_varlen_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                               softmax_scale, causal, window_size_left=-1, window_size_right=-1, softcap=0.0,
                               alibi_slopes=None, return_softmax=False, block_table=None, leftpad_k=None,
                               seqused_k=None):
    """The same for packed sequences."""
    for name, value in {"block_table": block_table, "leftpad_k": leftpad_k, "seqused_k": seqused_k}.items():
        if value is not None:
            raise NotImplementedError(f"{name} is not supported; pass packed keys and values without gaps")
    packed = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _forward(q, k, v, packed, dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap,
                    alibi_slopes, return_softmax)


def _flash_attn_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal,
                         window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None,
                         deterministic=False, rng_state=None):
    """Writes the gradients into those of dq, dk, dv that are given; returns the row sums of dout * out, (batch, heads,
    seqlen_q)."""
    return _backward(dout, q, k, v, out, softmax_lse, (dq, dk, dv), None, dropout_p, softmax_scale,
                     causal, (window_size_left, window_size_right), softcap, alibi_slopes, deterministic, rng_state)


def _flash_attn_varlen_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                                max_seqlen_k, dropout_p, softmax_scale, causal, window_size_left=-1,
                                window_size_right=-1, softcap=0.0, alibi_slopes=None, deterministic=False,
                                rng_state=None):
    """The same for packed sequences; returns (heads, total_q)."""
    return _backward(dout, q, k, v, out, softmax_lse, (dq, dk, dv),
                     (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k),
                     dropout_p, softmax_scale, causal,
                     (window_size_left, window_size_right), softcap, alibi_slopes, deterministic, rng_state)


@torch.no_grad()
def _forward(q, k, v, packed, dropout_p, softmax_scale, causal, window, softcap, alibi, return_softmax):
    state = new_dropout_state(q.device)
    words = {"scale": softmax_scale, "causal": causal, "window": window, "softcap": softcap, "alibi": alibi}
    if packed:
        words.update(packed_words(q, k, *packed, alibi))
    out, lse = attention(q, k, v, dropout=dropout_p, dropout_state=state, return_lse=True, **words)
    signed = signed_probabilities(q, k, dropout_p, state, packed, words) if return_softmax else q.new_empty(0)
    return out, lse, signed, state


@torch.no_grad()
def _backward(dout, q, k, v, out, lse, grads, packed, dropout_p, softmax_scale, causal, window, softcap,
              alibi, deterministic, state):
    options = core_options({"causal": causal, "window": window, "scale": softmax_scale, "softcap": softcap,
                            "dropout": dropout_p, "deterministic": deterministic})
    if dropout_p > 0 and state is None:
        raise ValueError("rng_state is None; with dropout it must be the one that forward returned")
    (lengths_q, lengths_k), (max_q, max_k) = (None, None), (0, 0)
    if packed:
        (lengths_q, lengths_k), (max_q, max_k), alibi = packed_words(q, k, *packed, alibi).values()
    if alibi is not None:
        alibi = _calls.with_rows(alibi)
    q, k, v, out, dout = (_calls.with_rows(x) for x in (q, k, v, out, dout))
    _core.backward(options, q, k, v, None, out, lse, dout, None, *grads, None, alibi=alibi, lengths_q=lengths_q,
                   lengths_k=lengths_k, max_q=max_q, max_k=max_k, dropout_state=state, stream=_calls.stream(q),
                   threads=torch.get_num_threads(), workspace_from_q=q.is_cuda)
    return (dout.float() * out.float()).sum(-1).transpose(-1, -2)
