"""Tessera: exact attention, forward and backward, on CPUs and NVIDIA GPUs, for every array library.

>>> import numpy as np
>>> import tessera
>>> q = np.ones((1, 4, 2, 8), dtype=np.float32)      # batch, sequence, heads, head_dim
>>> out = tessera.attention(q, q, q, causal=True)
>>> out.shape
(1, 4, 2, 8)

The functions read arrays of PyTorch, NumPy, CuPy and JAX without a copy, and return arrays of the library of ``q``.
``attention_backward`` computes gradients; ``tessera.torch`` adds PyTorch's autograd. Modules and names that begin with
an underscore are private.
"""

from tessera import _core
from tessera._attention import Gradients, attention, attention_backward
from tessera._core import BlockMask, Plan, alibi_slopes
from tessera._plan import Info, explain, info, plan

__version__: str = _core.__version__

__all__ = [
    "BlockMask",
    "Gradients",
    "Info",
    "Plan",
    "__version__",
    "alibi_slopes",
    "attention",
    "attention_backward",
    "explain",
    "info",
    "plan",
]
