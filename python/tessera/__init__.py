"""Tessera: exact attention, forward and backward, on CPUs and NVIDIA GPUs, for every array library.

>>> import numpy as np
>>> import tessera
>>> q = np.ones((1, 4, 2, 8), dtype=np.float32)      # batch, sequence, heads, head_dim
>>> out = tessera.attention(q, q, q, causal=True)
>>> out.shape
(1, 4, 2, 8)

Arrays of PyTorch, NumPy, CuPy and JAX come in without a copy, and results come back in the library of ``q``. For
gradients through PyTorch's autograd there is ``tessera.torch``; ``attention_backward`` computes them by hand.
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
