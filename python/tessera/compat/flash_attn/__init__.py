"""flash-attn 2's functions, by Tessera: the same signatures, layouts, conventions and return values.

They run on the CPU, too, in float64 and float32 as well as in the half types, for every head_dim up to 256. What
differs: rows that see no key have an LSE of -inf (flash-attn 2: +inf; 3: -inf), and the probabilities that
``return_attn_probs`` gives are exact. ``__version__`` is the version of flash-attn whose interface this is.
"""

from tessera.compat.flash_attn import bert_padding, flash_attn_interface
from tessera.compat.flash_attn.flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__version__ = "2.8.3"

__all__ = [
    "bert_padding",
    "flash_attn_func",
    "flash_attn_interface",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
