"""Packed sequences as flash-attn takes them: with less strict lengths than the library's."""

import torch
import torch.nn.functional as functional


def packed_words(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, alibi_slopes=None):
    """`lengths`, `max_lengths` and `alibi` for `tessera.torch.attention`.

    flash-attn allows a max_seqlen above the number of tokens, and tokens after the last sequence. On the CPU these tokens
    become two more sequences, one without keys and one without queries: their output and gradients are 0. On a GPU the
    host cannot read the lengths without waiting; there their output is not written, as in flash-attn.
    """
    tokens_q, tokens_k = q.shape[0], k.shape[0]
    lengths = cu_seqlens_q, cu_seqlens_k
    longest = min(int(max_seqlen_q), tokens_q), min(int(max_seqlen_k), tokens_k)
    if not q.is_cuda and not _covered(cu_seqlens_q, tokens_q, cu_seqlens_k, tokens_k):
        lengths = (torch.cat((cu_seqlens_q, cu_seqlens_q.new_tensor([tokens_q, tokens_q]))),
                   torch.cat((cu_seqlens_k, cu_seqlens_k[-1:], cu_seqlens_k.new_tensor([tokens_k]))))
        longest = 0, 0  # the library reads the lengths
        if alibi_slopes is not None and alibi_slopes.dim() == 2:
            alibi_slopes = functional.pad(alibi_slopes, (0, 0, 0, 2))
    return {"lengths": lengths, "max_lengths": longest, "alibi": alibi_slopes}


def _covered(cu_seqlens_q, tokens_q, cu_seqlens_k, tokens_k):
    """Whether every token belongs to a sequence. Traced code cannot read the lengths and assumes False."""
    if torch.compiler.is_compiling():
        return False
    return int(cu_seqlens_q[-1]) >= tokens_q and int(cu_seqlens_k[-1]) >= tokens_k
