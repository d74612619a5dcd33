"""PyTorch's scaled_dot_product_attention with the library behind it."""

import math

import torch
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.overrides import handle_torch_function, has_torch_function_variadic

from tessera._core import HEADS_FIRST
from tessera.torch._attention import attend, new_dropout_state
from tessera.torch._calls import with_rows

Tensor = torch.Tensor


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``torch.nn.functional.scaled_dot_product_attention``: the same arguments, meaning and result.

    query is (..., heads, L, E), key (..., heads, S, E), value (..., heads, S, Ev), of rank 2 or more; leading
    dimensions broadcast. attn_mask: bool (True takes part) or float (added), broadcast to (..., heads, L, S), float
    masks with their gradient, or a CausalBias of torch.nn.attention.bias. is_causal: from the first key on (top-left);
    it may be combined with a mask. enable_gqa: key and value may have fewer heads. dropout_p applies whenever it is not
    0, as in PyTorch. ``__torch_function__`` of tensor subclasses comes first.

    A row without visible keys gives 0 and gradients of 0, as in PyTorch since 2.5 (older versions gave NaN). A bool mask
    keeps the smallest form that broadcasts to it: a padding mask stays (batch, 1, 1, S). On the CPU blocks of keys that it
    hides cost no time; on a GPU it becomes a bias of 0 and -inf.

    >>> import torch, tessera.torch
    >>> x = torch.randn(2, 8, 128, 64)
    >>> tessera.torch.scaled_dot_product_attention(x, x, x, is_causal=True).shape
    torch.Size([2, 8, 128, 64])
    """
    if dropout_p == 1.0:  # outside the library's range: all results and gradients are 0
        return 0.0 * scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, scale=scale,
                                                  enable_gqa=enable_gqa)
    align = "top_left"
    if has_torch_function_variadic(query, key, value, attn_mask):
        if not isinstance(attn_mask, CausalBias):
            return handle_torch_function(scaled_dot_product_attention, (query, key, value, attn_mask), query, key, value,
                                         attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        attn_mask, is_causal, align = None, True, _align_of(attn_mask, query, key, is_causal)
    q, k, v = query.shape, key.shape, value.shape
    batch = None
    if not (len(q) == 4 and (q == k == v or len(k) == len(v) == 4 and q[0] == k[0] == v[0] and k[1] == v[1]
                             and (q[1] == k[1] or enable_gqa))):
        rank = max(len(q), len(k), len(v))
        query, key, value, batch = _four_dimensional(query, key, value, enable_gqa)
    bias = visible = None
    if attn_mask is not None:
        bias, visible = masks_of(attn_mask, query, key, q[:1] if batch is None else batch)
    state = new_dropout_state(query.device) if dropout_p > 0.0 else None
    options = {"causal": is_causal, "align": align, "scale": scale, "dropout": dropout_p,
               "deterministic": torch.are_deterministic_algorithms_enabled()}
    out = attend(query, key, value, bias, options, {"layout": HEADS_FIRST, "dropout_state": state, "visible": visible})
    if batch is None:
        return out
    return out.reshape(*batch, *out.shape[1:]) if rank > 2 else out.reshape(out.shape[2:])


def _align_of(mask: CausalBias, query: Tensor, key: Tensor, is_causal: bool) -> str:
    """The alignment of a mask that has no values, only the name of a corner."""
    if is_causal:
        raise ValueError("attn_mask is a CausalBias and is_causal is True; pass only one of them")
    if mask.variant == CausalVariant.UPPER_LEFT:
        return "top_left"
    sizes, wanted = (mask.seq_len_q, mask.seq_len_kv), (query.shape[-2], key.shape[-2])
    if sizes != wanted:
        raise ValueError(f"attn_mask is a CausalBias for {sizes} tokens; it must be for those of query and key, {wanted}")
    return "bottom_right"


def _four_dimensional(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool):
    """Query, key and value with one batch dimension and kv heads that divide the query heads, and the dimensions that
    became the batch. Broadcast dimensions are expanded without a copy where a view allows it."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() < 2:
            raise ValueError(f"{name}.shape is {tuple(tensor.shape)}; it must have at least 2 dimensions")
    query, key, value = (tensor if tensor.dim() > 2 else tensor.unsqueeze(0) for tensor in (query, key, value))
    batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    heads, key_heads, value_heads = query.shape[-3], key.shape[-3], value.shape[-3]
    for name, count in (("key", key_heads), ("value", value_heads)):
        if enable_gqa and not key_heads == value_heads == heads and (count == 0 or heads % count != 0):
            raise ValueError(f"{name} has {count} heads; with enable_gqa they must divide those of query, {heads}")
    if enable_gqa and key_heads != value_heads:
        key, value = (tensor.repeat_interleave(heads // tensor.shape[-3], -3) for tensor in (key, value))
        key_heads = value_heads = heads
    if not enable_gqa:
        (heads,) = torch.broadcast_shapes((heads,), (key_heads,), (value_heads,))
        if key_heads != value_heads:
            key_heads = value_heads = heads

    def flat(tensor, heads):
        return tensor.expand(*batch, heads, *tensor.shape[-2:]).reshape(math.prod(batch), heads, *tensor.shape[-2:])

    return flat(query, heads), flat(key, key_heads), flat(value, value_heads), batch


def masks_of(mask: Tensor, query: Tensor, key: Tensor, batch: tuple[int, ...]) -> tuple[Tensor | None, Tensor | None]:
    """The mask as the library's bias or its boolean mask, (batch or 1, heads or 1, L or 1, S); the other one is None.
    `batch` is what mask may broadcast to."""
    full = (*batch, query.shape[1], query.shape[2], key.shape[2])
    if mask.dim() > len(full):
        raise RuntimeError(f"attn_mask.shape is {tuple(mask.shape)}; it must broadcast to {full}")
    mask = mask[(None,) * (len(full) - mask.dim())]
    if any(size not in (1, wanted) for size, wanted in zip(mask.shape, full)):
        raise RuntimeError(f"attn_mask.shape is {tuple(mask.shape)}; it must broadcast to {full}")
    if not mask.requires_grad:  # an expanded dimension shrinks to one element again
        for dimension in range(len(full) - 1):
            if mask.stride(dimension) == 0 and mask.shape[dimension] > 1:
                mask = mask.narrow(dimension, 0, 1)
    if any(size != 1 for size in mask.shape[:-3]):
        mask = mask.expand(*batch, -1, -1, -1)
    mask = mask.reshape(math.prod(mask.shape[:-3]), *mask.shape[-3:])
    if mask.shape[-1] != full[-1]:
        mask = mask.expand(-1, -1, -1, full[-1])

    if mask.dtype == torch.bool and query.is_cpu:
        return None, with_rows(mask)
    dtype = query.dtype
    if dtype != torch.float64 and torch.is_autocast_enabled(mask.device.type):
        dtype = torch.get_autocast_dtype(mask.device.type)  # the type that `attention` converts the query to
        mask = mask if mask.dtype in (torch.bool, torch.float32) else mask.to(dtype)
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, float("-inf")), None
    if mask.dtype not in (dtype, torch.float32):
        raise RuntimeError(f"attn_mask.dtype is {mask.dtype}; it must be torch.bool, torch.float32 or that of query, "
                           f"{query.dtype}")
    return (mask.to(dtype) if dtype == torch.float64 else mask), None
