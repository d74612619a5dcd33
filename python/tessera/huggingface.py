"""``attn_implementation="tessera"`` for the models of Hugging Face transformers.

Importing this module registers it:

    import tessera.huggingface
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="tessera")

Causal masks and sliding windows become the library's own, which skip what they hide; padding becomes a bias of one row
per sequence. Only masks that are neither (prefix, packed, chunked, static caches) are built in full. Softcap, grouped
heads, dropout, attention sinks and position biases are passed on. A padding token that sees nothing gives 0, where
``eager`` gives an average of everything; neither is ever read.
"""

import inspect

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from tessera.torch import attention
from tessera.torch._sdpa import bias_of

Tensor = torch.Tensor

if "q_offset" not in inspect.signature(sdpa_mask).parameters:
    raise ImportError(f"transformers is {transformers.__version__}; tessera.huggingface needs one whose mask functions "
                      "take q_offset (5.22 does)")


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    cache=None,
    **kwargs,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: query, key, value are (batch, heads, sequence, head_dim); returns the output
    as (batch, sequence, heads, head_dim), and None for the weights, which are never held.

    A mask with a row for every query is complete. Without a mask, or with a single row for many queries (`mask` makes
    such a one for padding), causality and the window of the module apply in addition.
    """
    if cache is not None:
        raise NotImplementedError('cache: paged caches are not supported by attn_implementation="tessera"; use "sdpa"')
    queries = query.shape[2]
    complete = attention_mask is not None and attention_mask.shape[-2] == queries
    causal, window = False, None
    if not complete:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        window = None if sliding_window is None else (sliding_window - 1, 0 if causal else sliding_window - 1)
    bias = None
    if attention_mask is not None:
        bias = bias_of(attention_mask[..., :key.shape[2]], query, key, query.shape[:1])
    if position_bias is not None:
        bias = position_bias.to(query.dtype) if bias is None else position_bias.to(query.dtype) + bias
    out = attention(query, key, value, causal=causal, window=window, scale=scaling, softcap=softcap or 0.0, bias=bias,
                    dropout=dropout, layout="bhsd", return_lse=s_aux is not None)
    if s_aux is not None:  # a sink takes its share of every row: exp(sink) joins the sum whose logarithm is the LSE
        out, lse = out
        out = out * torch.sigmoid(lse - s_aux.reshape(1, -1, 1)).unsqueeze(-1).to(out.dtype)
    return out.transpose(1, 2).contiguous(), None


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    dtype: torch.dtype = torch.float32,
    config=None,
    **kwargs,
) -> Tensor | None:
    """The mask of a forward pass: None where causality and window say it all, (batch, 1, 1, keys) for padding in
    addition to them, (batch, 1, queries, keys) for everything else; 0 where a key is seen, -inf where not."""
    if _is_plain(q_length, kv_length, q_offset, kv_offset, local_size, allow_is_causal_skip,
                 allow_is_bidirectional_skip, config):
        if attention_mask is None:
            return None
        padding = attention_mask[:, kv_offset:kv_offset + kv_length].bool()
        padding = torch.nn.functional.pad(padding, (0, kv_length - padding.shape[1]))  # keys not yet spoken of: unseen
        if not torch.compiler.is_compiling() and padding.all():
            return None
        if q_length > 1:
            return _bias(padding[:, None, None, :], dtype)
    seen = sdpa_mask(batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset,
                     kv_offset=kv_offset, attention_mask=attention_mask, local_size=local_size,
                     allow_is_causal_skip=False, allow_is_bidirectional_skip=False, **kwargs)
    return _bias(seen, dtype)


def _is_plain(q_length, kv_length, q_offset, kv_offset, local_size, causal, bidirectional, config) -> bool:
    """Whether the mask is causal, a causal window or full, apart from padding, and its diagonal ends at the last key.
    transformers allows to skip a mask exactly when nothing else was mixed into it."""
    if local_size is not None and kv_length > local_size:
        # A window reaches attention_forward as `sliding_window`; chunks, which come with a local size, too, do not.
        if not causal or getattr(config, "sliding_window", None) != local_size \
                or getattr(config, "attention_chunk_size", None) is not None:
            return False
    if bidirectional:
        return True
    return causal and isinstance(q_offset, int) and q_offset - kv_offset == kv_length - q_length


def _bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, float("-inf"))


AttentionInterface.register("tessera", attention_forward)
AttentionMaskInterface.register("tessera", mask)
