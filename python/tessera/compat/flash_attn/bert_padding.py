"""Between padded batches and packed tokens, as ``flash_attn.bert_padding`` does it."""

import torch
import torch.nn.functional as functional

Tensor = torch.Tensor


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """The rows `indices` of a tensor, differentiable."""
    return input.index_select(0, indices)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """A tensor of `first_axis_dim` rows, zero except for `values` in the rows `indices`, differentiable."""
    zeros = values.new_zeros(first_axis_dim, *values.shape[1:])
    return zeros.index_copy(0, indices, values)


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None):
    """The tokens of (batch, seqlen, ...) that attention_mask (batch, seqlen), or unused_mask, selects, packed.

    Returns them as (total, ...), their indices in the flattened batch, the cumulative lengths (batch + 1, int32), the
    longest length as an int, and the lengths that attention_mask alone selects (batch, int32).
    """
    selected = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = selected.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = selected.flatten().nonzero().flatten()
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, _cumulative(lengths), _longest(lengths), used


def unpad_input_for_concatenated_sequences(hidden_states: Tensor, attention_mask_in_length: Tensor):
    """The same for rows that hold several sequences one after the other: attention_mask_in_length (batch, seqlen) lists
    their lengths in each row, then zeros. Returns tokens, indices, cumulative lengths of all, and the longest."""
    filled = attention_mask_in_length.sum(dim=-1, keepdim=True)
    positions = torch.arange(attention_mask_in_length.shape[-1], device=filled.device)
    indices = (positions < filled).flatten().nonzero().flatten()
    lengths = attention_mask_in_length.flatten()
    lengths = lengths[lengths != 0]
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, _cumulative(lengths), _longest(lengths)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Packed tokens back in their places of (batch, seqlen, ...), zeros elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


def _cumulative(lengths: Tensor) -> Tensor:
    return functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def _longest(lengths: Tensor) -> int:
    return int(lengths.max()) if lengths.numel() else 0
