"""The types of arguments, and the words that they accept."""

from typing import Any, Literal

Array = Any
"""An array of PyTorch, NumPy, CuPy or JAX: an object with ``__dlpack__``."""

AlgorithmName = Literal["automatic", "standard", "flash1", "flash2", "flash3", "minimal"]
AlignName = Literal["bottom_right", "top_left"]
DTypeName = Literal["fp64", "fp32", "fp16", "bf16"]
DirectionName = Literal["forward", "backward"]

Layout = Literal["bshd", "bhsd"]
"""The order of the dimensions: b = batch, s = sequence, h = heads, d = head_dim."""

Origin = tuple[int, int, int, int]
"""The global row, column, batch entry and head of element 0."""
