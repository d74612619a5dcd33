"""Attention for PyTorch: differentiable, compilable, on the CPU and on CUDA.

- `attention`: the library's operation with all its options.
- `scaled_dot_product_attention`: the same with PyTorch's signature; `replace_sdpa` uses it in unmodified models.
- `new_dropout_state`: the {seed, offset} that `attention` otherwise draws itself.
- `mask_key`: names a block mask for graphs that run in another process than the one that traced them.

docs/guides/pytorch.md is the guide.
"""

from tessera.torch._attention import attention, new_dropout_state
from tessera.torch._operators import mask_key
from tessera.torch._replace import replace_sdpa
from tessera.torch._sdpa import scaled_dot_product_attention

__all__ = ["attention", "mask_key", "new_dropout_state", "replace_sdpa", "scaled_dot_product_attention"]
