"""The attention matrix itself, for inspection; it needs the N x N memory that attention avoids."""

import torch

from tessera.torch import attention


@torch.no_grad()
def signed_probabilities(q, k, dropout_p, state, packed, words):
    """The probabilities, (batch, heads, queries, keys), negative where dropped: attention with unit vectors as values,
    with dropout and without. `packed` are the two cumulative lengths and the longest, or None; `words` are those of
    `tessera.torch.attention`."""
    if not packed:
        positions, keys = torch.arange(k.shape[1], device=k.device), k.shape[1]
    else:
        lengths_q, lengths_k, max_q, keys = packed[0], packed[1], int(packed[2]), int(packed[3])
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
    sequence, position = _places(lengths_q, q.shape[0])
    inside = sequence < len(lengths_q) - 1
    result[sequence[inside], position[inside]] = signed[inside]
    return result.transpose(1, 2)


def _places(lengths, total):
    """For each packed token its sequence, and its position in it."""
    tokens = torch.arange(total, device=lengths.device)
    sequence = torch.searchsorted(lengths[1:].contiguous(), tokens, right=True)
    return sequence, tokens - lengths[sequence]
