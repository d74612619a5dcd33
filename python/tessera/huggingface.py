"""``attn_implementation="tessera"`` for the models of Hugging Face transformers.

Importing this module registers it:

    import tessera.huggingface
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="tessera")

Results are those of ``attn_implementation="eager"``. A model that cannot use it fails when it is built, with the
reason and an alternative, as it does for ``"sdpa"``. Causal masks and sliding windows become the library's own, which
skip hidden keys; padding becomes a boolean mask of one row per sequence, which skips them, too (on GPUs: a bias). Other masks (prefix, packed, chunked, static caches)
are built in full. Softcap, grouped heads, dropout, attention sinks and position biases are supported. A padding token
without visible keys gives 0, where ``eager`` gives the average of all values; models read neither.
"""

import functools
import inspect
import sys
from collections.abc import Callable

import torch
import transformers
from torch.utils._pytree import tree_map
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from tessera.torch import attention
from tessera.torch._sdpa import masks_of

Tensor = torch.Tensor
NAME = "tessera"
LARGEST_HEAD_DIM = 256

if "q_offset" not in inspect.signature(eager_mask).parameters:
    raise ImportError(f"transformers is {transformers.__version__}; tessera.huggingface requires one whose mask functions "
                      "take q_offset, such as 5.22")


class Mask(Tensor):
    """The mask of a forward pass as a description that ``attention_forward`` reads, instead of N x N numbers.

    All other code sees the tensor of ``eager``: to read, slice or add the mask builds that tensor first. So a layer that
    computes attention itself, or changes its mask before, stays correct. Once built, only the tensor counts, because code
    may have written to it.

    causal: a query attends to no later key; the last query is aligned with the last key. window: how many keys to the
    left and to the right are visible, or None. padding: (batch, 1, 1, keys), True for a visible key, or None.
    """

    @staticmethod
    def of(shape, like: Tensor, causal: bool, window: tuple[int, int] | None, padding: Tensor | None,
           build: Callable[[], Tensor]) -> "Mask":
        """A mask of `shape`, (batch, 1, queries, keys), with the type and device of `like`; build() gives eager's."""
        mask = like.new_zeros(()).expand(shape).as_subclass(Mask)
        mask.causal, mask.window, mask.padding, mask.build, mask.built = causal, window, padding, build, None
        return mask

    def eager(self) -> Tensor:
        """The mask of ``eager``: 0 for a visible key, the lowest number of the type for others."""
        if self.built is None:
            self.built = self.build()
        return self.built

    def to(self, *args, **kwargs) -> Tensor:
        """As Tensor.to; the result is still a description. Models on several devices move their masks between them."""
        if self.built is not None:
            return self.built.to(*args, **kwargs)
        like = torch.zeros((), dtype=self.dtype, device=self.device).to(*args, **kwargs)
        if like.dtype == self.dtype and like.device == self.device:
            return self
        padding = None if self.padding is None else self.padding.to(like.device)
        return Mask.of(self.shape, like, self.causal, self.window, padding, lambda: self.eager().to(*args, **kwargs))

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if func in _NEEDS_NO_VALUES:
                return func(*args, **(kwargs or {}))
            args, kwargs = tree_map(_as_eager, (args, kwargs or {}))
            return func(*args, **kwargs)


# Functions that read properties of the tensor, not its numbers; torch.compile calls them for inputs of compiled layers.
_NEEDS_NO_VALUES = {
    getattr(Tensor, name).__get__ for name in dir(Tensor)
    if inspect.isgetsetdescriptor(inspect.getattr_static(Tensor, name))
    and not name.startswith("__") and name not in ("T", "mT", "H", "mH", "data", "real", "imag")
} | {
    Tensor._is_view, Tensor.as_subclass, Tensor.dense_dim, Tensor.dim, Tensor.element_size, Tensor.get_device,
    Tensor.is_coalesced, Tensor.is_complex, Tensor.is_conj, Tensor.is_contiguous, Tensor.is_floating_point, Tensor.is_inference,
    Tensor.is_neg, Tensor.ndimension, Tensor.nelement, Tensor.numel, Tensor.size, Tensor.sparse_dim, Tensor.storage_offset,
    Tensor.stride, Tensor.untyped_storage,
}


def _as_eager(value):
    return value.eager() if isinstance(value, Mask) else value


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
    **kwargs,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: query, key, value are (batch, heads, sequence, head_dim); returns the output
    as (batch, sequence, heads, head_dim), and None for the weights, which are never stored.

    A mask decides alone: a `Mask` by its description, any other tensor by its broadcast values. Without a mask every key
    is visible, unless the caller or the module has ``is_causal``, as for ``sdpa``; then `sliding_window` applies, too.
    """
    for name in ("cache", "indices", "block_indices"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f'{name}: {_UNSUPPORTED_ARGUMENTS[name]} not supported by '
                                      f'attn_implementation="{NAME}"; use "sdpa" or "eager"')
    if query.shape[3] > LARGEST_HEAD_DIM or value.shape[3] > LARGEST_HEAD_DIM:
        raise NotImplementedError(f"head_dim: {query.shape[3]} for queries and {value.shape[3]} for values is not supported "
                                  f'by attn_implementation="{NAME}", which supports up to {LARGEST_HEAD_DIM}; use "sdpa" or '
                                  '"eager"')
    causal, window, given = False, None, attention_mask
    if isinstance(attention_mask, Mask):
        if attention_mask.built is None and attention_mask.shape[2:] == (query.shape[2], key.shape[2]):
            causal, window, given = attention_mask.causal, attention_mask.window, attention_mask.padding
        else:
            given = attention_mask.eager()
    elif attention_mask is None and query.shape[2] > 1:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        window = (sliding_window - 1, 0) if causal and sliding_window is not None else None
    bias = visible = None
    if given is not None:
        bias, visible = masks_of(given[..., :key.shape[2]], query, key, query.shape[:1])
    if position_bias is not None:
        bias = position_bias.to(query.dtype) if bias is None else position_bias.to(query.dtype) + bias
    out = attention(query, key, value, causal=causal, window=window, scale=scaling, softcap=softcap or 0.0, bias=bias,
                    visible=visible, dropout=dropout, layout="bhsd", return_lse=s_aux is not None)
    if s_aux is not None:  # a sink takes its share of every row: exp(sink) joins the sum whose logarithm is the LSE
        out, lse = out
        out = out * torch.sigmoid(lse - s_aux.reshape(1, -1, 1)).unsqueeze(-1).to(out.dtype)
    return out.transpose(1, 2).contiguous(), None


_UNSUPPORTED_ARGUMENTS = {"cache": "paged caches are", "indices": "sparse attention by index is",
                          "block_indices": "sparse attention by blocks is"}


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
    device: torch.device | str = "cpu",
    config=None,
    **kwargs,
) -> Tensor | None:
    """The mask of a forward pass: a `Mask` when causality, a window and padding describe it, eager's mask otherwise, and
    None when eager has none."""
    build = functools.partial(
        eager_mask, batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        attention_mask=attention_mask, local_size=local_size, dtype=dtype, device=device, **kwargs)
    pattern = _pattern(q_length, kv_length, q_offset, kv_offset, local_size, allow_is_causal_skip,
                       allow_is_bidirectional_skip, config)
    if pattern is None:
        return build()
    padding = None
    if attention_mask is not None:
        visible = attention_mask[:, kv_offset:kv_offset + kv_length].bool()
        visible = torch.nn.functional.pad(visible, (0, kv_length - visible.shape[1]))  # keys beyond the mask are hidden
        if torch.compiler.is_compiling() or not visible.all():
            padding = visible[:, None, None, :]
    if pattern == (False, None) and padding is None:
        return None
    like = torch.empty((), dtype=dtype, device=device)
    if type(like) is not Tensor:  # torch.export traces with tensors that cannot become a Mask
        return build()
    return Mask.of((batch_size, 1, q_length, kv_length), like, *pattern, padding, build)


def _pattern(q_length, kv_length, q_offset, kv_offset, local_size, causal, bidirectional, config):
    """Whether the mask is causal, and its window; None when the mask has more than that and padding. transformers allows
    to skip a causal or a full mask exactly when nothing else was mixed into it."""
    if not causal and not bidirectional:
        return None
    if bidirectional and (local_size is None or kv_length < local_size):
        return False, None
    if not isinstance(q_offset, int) or q_offset + q_length != kv_offset + kv_length:  # the diagonal ends at the last key
        return None
    if local_size is None or (causal and q_offset + q_length <= local_size):  # all within the first window or chunk
        return True, None
    # A chunk comes with a local size, too, and only the configuration tells it from a window.
    if getattr(config, "sliding_window", None) != local_size or getattr(config, "attention_chunk_size", None) is not None:
        return None
    return (True, (local_size - 1, 0)) if causal else (False, (local_size, local_size))


def _refuse_unsupported(model: PreTrainedModel) -> None:
    """Raises ValueError for a model whose layers do not use transformers' AttentionInterface: they would never call the
    library, or not find its name. transformers checks this only for its own implementations."""
    kind = type(model)
    reason = None
    if not (kind._supports_attention_backend or kind._supports_sdpa or kind._supports_flash_attn or kind._supports_flex_attn):
        reason = "it declares no support for an attention other than eager"
    elif not kind._supports_attention_backend and not kind._can_set_attn_implementation():
        reason = "its layers do not call transformers' AttentionInterface"
    else:
        for name, table in vars(sys.modules[kind.__module__]).items():
            if isinstance(table, dict) and "eager" in table and NAME not in table:
                reason = f"its layers take their attention from a table, {name}, that has only {', '.join(table)}"
    if reason is not None:
        raise ValueError(f'{kind.__name__} does not support attn_implementation="{NAME}": {reason}. Load the model with '
                         'attn_implementation="eager". To choose for a part of a larger model, use the name of its configuration: '
                         f'attn_implementation={{"text_config": "{NAME}", "vision_config": "eager"}}')


def _with_refusal(original):
    """PreTrainedModel.get_correct_attn_implementation with a check for this implementation. Every model calls it when it
    is built and when its attention is changed."""

    @functools.wraps(original)
    def get_correct_attn_implementation(self, requested_attention, is_init_check=False):
        chosen = original(self, requested_attention, is_init_check)
        if chosen == NAME:
            _refuse_unsupported(self)
        return chosen

    return get_correct_attn_implementation


AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, mask)
PreTrainedModel.get_correct_attn_implementation = _with_refusal(PreTrainedModel.get_correct_attn_implementation)
