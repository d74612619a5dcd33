"""Exact attention in fp64 for some rows of an output."""

import math

SAMPLED_ROWS = 16


def sampled_error(q, k, v, out, causal):
    """The fields of a row that say how far some rows of an output are from the exact ones.

    q, k, v, out: (batch, heads, sequence, head_dim), with the same heads.
    """
    import torch

    length, keys = q.shape[2], k.shape[2]
    rows = torch.linspace(0, length - 1, min(SAMPLED_ROWS, length)).long().to(q.device)
    scores = q[:, :, rows].double() @ k.double().transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:  # aligned at the last query and the last key
        hidden = torch.arange(keys, device=q.device)[None, :] > rows[:, None] + keys - length
        scores = scores.masked_fill(hidden, -math.inf)
    exact = scores.softmax(-1) @ v.double()
    apart = out[:, :, rows].double() - exact
    return {
        "sampled_rows": len(rows), "max_error": float(apart.abs().max()),
        "rms_error": float(apart.square().mean().sqrt()), "rms_reference": float(exact.square().mean().sqrt()),
    }  # fmt: skip
