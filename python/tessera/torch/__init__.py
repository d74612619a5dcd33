"""Attention for PyTorch: differentiable, compilable, on the CPU and on CUDA.

- `attention`: the library's operation in the library's words.
- `scaled_dot_product_attention`: the same under PyTorch's signature; `replace_sdpa` puts it under models as they are.
- `new_dropout_state`: the {seed, offset} that `attention` otherwise draws for itself.
- `mask_key`: names a block mask for graphs that are run in another process than the one that traced them.

docs/guides/pytorch.md is the guide.
"""

from tessera.torch._attention import attention, new_dropout_state
from tessera.torch._operators import mask_key
from tessera.torch._replace import replace_sdpa
from tessera.torch._sdpa import scaled_dot_product_attention

__all__ = ["attention", "mask_key", "new_dropout_state", "replace_sdpa", "scaled_dot_product_attention"]
