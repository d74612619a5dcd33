"""Packed sequences as flash-attn takes them: with less strict lengths than the library's."""

import torch
import torch.nn.functional as functional


def packed_words(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, alibi_slopes=None):
    """`lengths`, `max_lengths` and `alibi` for `tessera.torch.attention`.

    flash-attn takes a max_seqlen above the number of tokens, and tokens behind the last sequence, which belong to none.
    On the CPU these become two more sequences, one without keys and one without queries: their output and gradients are
    0. On a GPU, where the lengths cannot be read without waiting for it, their output is not written, as by flash-attn.
    """
    tokens_q, tokens_k = q.shape[0], k.shape[0]
    lengths = cu_seqlens_q, cu_seqlens_k
    longest = min(int(max_seqlen_q), tokens_q), min(int(max_seqlen_k), tokens_k)
    if not q.is_cuda and not _covered(cu_seqlens_q, tokens_q, cu_seqlens_k, tokens_k):
        lengths = (torch.cat((cu_seqlens_q, cu_seqlens_q.new_tensor([tokens_q, tokens_q]))),
                   torch.cat((cu_seqlens_k, cu_seqlens_k[-1:], cu_seqlens_k.new_tensor([tokens_k]))))
        longest = 0, 0  # the library finds out
        if alibi_slopes is not None and alibi_slopes.dim() == 2:
            alibi_slopes = functional.pad(alibi_slopes, (0, 0, 0, 2))
    return {"lengths": lengths, "max_lengths": longest, "alibi": alibi_slopes}


def _covered(cu_seqlens_q, tokens_q, cu_seqlens_k, tokens_k):
    """Whether every token belongs to a sequence. Code that is traced cannot look: there it is assumed that not."""
    if torch.compiler.is_compiling():
        return False
    return int(cu_seqlens_q[-1]) >= tokens_q and int(cu_seqlens_k[-1]) >= tokens_k
