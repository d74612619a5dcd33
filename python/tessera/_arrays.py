"""What the functions need of an array library: new arrays on the device of another, and its current stream.

The module of an array's type identifies its library; a library is imported only when one of its arrays arrives.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Sequence
from typing import Any

from tessera._types import Array

DTYPE_NAMES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


class Library:
    """An array library that can make arrays: NumPy and everything that follows the array API standard."""

    writable = True
    """Whether arrays can be written after they are made."""

    def __init__(self, namespace: Any) -> None:
        self.namespace = namespace

    def empty(self, shape: tuple[int, ...], like: Array, dtype: Any = None) -> Array:
        """A new contiguous array on the device of `like`, of its type unless `dtype` is given."""
        return self.namespace.empty(shape, dtype=like.dtype if dtype is None else dtype)

    def accumulator(self, like: Array) -> Any:
        """The type of an LSE: float64 for float64, else float32."""
        return self.namespace.float64 if dtype_name(like) == "fp64" else self.namespace.float32

    def numbers(self, values: Sequence[Any], kind: str, like: Array) -> Array:
        """An array of int32 ("i") or float32 ("f") with these values, on the device of `like`."""
        return array.array(kind, values)

    def check_inputs(self, *arrays: Array) -> None:
        """Raises ValueError for arrays whose gradients would be lost silently."""

    def finished(self, result: Array) -> Array:
        """The result that the caller gets for an array of `empty`."""
        return result

    def stream(self, like: Array) -> int | None:
        """The current stream of this library; None when the extension asks for it, or on the CPU."""
        return None

    def lends_workspace(self, like: Array) -> bool:
        """Whether workspace should come from this library."""
        return False


class Torch(Library):
    def empty(self, shape: tuple[int, ...], like: Array, dtype: Any = None) -> Array:
        return like.new_empty(shape, dtype=dtype)

    def numbers(self, values: Sequence[Any], kind: str, like: Array) -> Array:
        dtype = self.namespace.int32 if kind == "i" else self.namespace.float32
        return self.namespace.tensor(values, dtype=dtype, device=like.device)

    def check_inputs(self, *arrays: Array) -> None:
        if self.namespace.is_grad_enabled():
            for x in arrays:
                if getattr(x, "requires_grad", False):  # some may belong to other libraries
                    raise ValueError("a tensor requires a gradient, which tessera.attention does not record; "
                                     "use tessera.torch.attention, torch.no_grad() or detach()")

    def stream(self, like: Array) -> int | None:
        if not like.is_cuda or hasattr(type(like), "__dlpack_c_exchange_api__"):
            return None
        return int(self.namespace.cuda.current_stream(like.device).cuda_stream)

    def lends_workspace(self, like: Array) -> bool:
        return bool(like.is_cuda)  # so that PyTorch's counters include it


class Cupy(Library):
    def empty(self, shape: tuple[int, ...], like: Array, dtype: Any = None) -> Array:
        with like.device:
            return super().empty(shape, like, dtype)

    def numbers(self, values: Sequence[Any], kind: str, like: Array) -> Array:
        with like.device:
            return self.namespace.asarray(values, dtype="int32" if kind == "i" else "float32")

    def stream(self, like: Array) -> int | None:
        with like.device:  # each device has its own current stream
            return int(self.namespace.cuda.get_current_stream().ptr)


class Jax(Library):
    """JAX's arrays cannot be written: results are NumPy arrays first."""

    writable = False

    def __init__(self, namespace: Any) -> None:
        import numpy

        super().__init__(numpy)
        self.jax = namespace

    def finished(self, result: Array) -> Array:
        return self.jax.numpy.asarray(result)


_KINDS: dict[str, type[Library]] = {"torch": Torch, "cupy": Cupy, "jax": Jax}
_known: dict[type, Library] = {}


def library_of(q: Array) -> Library:
    """The library that `q` belongs to. Raises TypeError when it is not an array of a known library."""
    found = _known.get(type(q))
    if found is None:
        found = _known[type(q)] = _find(q)
    return found


def _find(q: Array) -> Library:
    if "Tracer" in type(q).__name__ and type(q).__module__.startswith("jax"):
        raise TypeError(f"q is of type {type(q).__name__}; inside jax.jit, grad and vmap arrays have no memory; "
                        "call tessera outside of them, or through jax.pure_callback")
    for base in type(q).__mro__:
        root = base.__module__.partition(".")[0].removesuffix("lib")  # jaxlib's arrays are JAX's
        if root == "numpy" or root in _KINDS:
            __import__(root)
            return _KINDS.get(root, Library)(sys.modules[root])
    if hasattr(q, "__array_namespace__") and hasattr(q, "__dlpack__"):
        return Library(q.__array_namespace__())
    raise TypeError(f"q is of type {type(q).__name__}; it must be an array of PyTorch, NumPy, CuPy, JAX or another "
                    "library with __dlpack__ and __array_namespace__")


def shape_of(name: str, x: Array) -> tuple[int, ...]:
    """The sizes of an argument. Raises TypeError, in the words of the extension, when it is not an array."""
    try:
        return x.shape
    except AttributeError:
        raise TypeError(f"{name} is of type {type(x).__name__}; it must be an array with __dlpack__ (PyTorch, NumPy, CuPy, "
                        "JAX)") from None


def dtype_name(array_or_dtype: Any) -> str:
    """The name of a type as the library has it, "fp32", from an array or a type of any array library."""
    dtype = array_or_dtype
    if not isinstance(dtype, (str, type)):
        dtype = getattr(dtype, "dtype", dtype)
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = name.rpartition(".")[2]  # PyTorch's say "torch.float32"
    return DTYPE_NAMES.get(name, name)


def device_name(like: Array) -> str:
    """"cpu" or "cuda:N", from any array."""
    kind, index = like.__dlpack_device__()
    return f"cuda:{index}" if kind in (2, 13) else "cpu"
