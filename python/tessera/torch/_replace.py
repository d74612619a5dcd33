"""`replace_sdpa`: the library's attention instead of PyTorch's, for a block of code."""

import contextlib
import contextvars
import functools
import threading

import torch
import torch.nn.functional as functional
import torch.utils.checkpoint as checkpointing
from torch.nn.attention.bias import CausalBias
from torch.overrides import (
    TorchFunctionMode,
    get_overridable_functions,
    handle_torch_function,
    has_torch_function_variadic,
)

from tessera.torch._sdpa import scaled_dot_product_attention

_BUILTIN = torch._C._nn.scaled_dot_product_attention

# How many replace_sdpa() blocks the running code is in. Threads and asyncio tasks each have their own count. The compiler
# cannot trace a context variable, so traced code reads the count of the thread.
_depth = contextvars.ContextVar("tessera.torch.replace_sdpa", default=0)
_thread = threading.local()


class replace_sdpa(contextlib.ContextDecorator):
    """In this block ``torch.nn.functional.scaled_dot_product_attention`` is the library's.

    It is for models that cannot be edited. Blocks nest, end however the code in them ends, and affect the thread or
    asyncio task that entered them (in compiled code: the thread). Enter one around the forward pass: PyTorch's activation
    checkpointing then recomputes with the same attention, also outside of the block. On exit the block keeps replacements
    that other code has made meanwhile.

    It reaches code that looks the function up when it calls it (``F.scaled_dot_product_attention``,
    torch.nn.MultiheadAttention, transformers, diffusers), not code that has imported it by name before.

    >>> import torch, tessera.torch
    >>> x = torch.randn(1, 4, 32, 16)
    >>> with tessera.torch.replace_sdpa():
    ...     y = torch.nn.functional.scaled_dot_product_attention(x, x, x)
    """

    def __enter__(self) -> None:
        if torch.compiler.is_compiling():  # traced: a mode changes nothing outside of the graph
            self._mode = _Mode()
            self._mode.__enter__()
            return
        _stand_ins.acquire()
        _depth.set(_depth.get() + 1)
        _thread.depth = getattr(_thread, "depth", 0) + 1

    def __exit__(self, *exception) -> None:
        if torch.compiler.is_compiling():
            self._mode.__exit__(*exception)
            return
        _thread.depth = max(getattr(_thread, "depth", 0) - 1, 0)
        _depth.set(max(_depth.get() - 1, 0))
        _stand_ins.release()


def _holds() -> bool:
    """Whether the running code is in a replace_sdpa() block."""
    if torch.compiler.is_compiling():
        return getattr(_thread, "depth", 0) > 0
    return _depth.get() > 0


class _Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return (scaled_dot_product_attention if func is _BUILTIN else func)(*args, **(kwargs or {}))


# --- replacements in PyTorch's modules while any code is in a replace_sdpa() block ------------------------------------
# Each is made once for its original, so that compiled code finds the same function again.


@functools.lru_cache(maxsize=8)
def _switch(original):
    """scaled_dot_product_attention: the library's in a replace_sdpa() block, the original elsewhere."""

    @functools.wraps(original)
    def switch(query, key, value, attn_mask=None, *args, **kwargs):
        if not _holds():
            return original(query, key, value, attn_mask, *args, **kwargs)
        if has_torch_function_variadic(query, key, value, attn_mask) and type(attn_mask) is not CausalBias:
            return handle_torch_function(functional.scaled_dot_product_attention, (query, key, value, attn_mask), query,
                                         key, value, attn_mask, *args, **kwargs)
        return scaled_dot_product_attention(query, key, value, attn_mask, *args, **kwargs)

    return switch


@functools.lru_cache(maxsize=8)
def _remembering(original):
    """_checkpoint_without_reentrant_generator, which keeps a function in order to run it again."""

    @functools.wraps(original)
    def generator(function, *args, **kwargs):
        return original(_as_now(function), *args, **kwargs)

    return generator


@functools.lru_cache(maxsize=8)
def _remembering_class(original):
    """CheckpointFunction, the reentrant kind."""

    class CheckpointFunction(original):
        @staticmethod
        def forward(ctx, run_function, *args):
            return original.forward(ctx, _as_now(run_function), *args)

    return CheckpointFunction


def _as_now(function):
    """The function, which always runs with the attention that is active now."""
    if not _holds():
        return function

    @functools.wraps(function, assigned=())
    def run(*args, **kwargs):
        with replace_sdpa():
            return function(*args, **kwargs)

    return run


class _StandIns:
    """Installed while any block is active. Replacements that other code has made stay, and keep what they wrap."""

    def __init__(self, *places) -> None:
        self._places = [place for place in places if hasattr(*place[:2])]
        self._lock = threading.Lock()
        self._users = 0
        self._replaced: dict[int, tuple] = {}  # by the identity of a stand-in: it, and what it replaces

    def acquire(self) -> None:
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            # PyTorch lists the functions that modes may override once, when it first compiles, by the names in its
            # modules. The list must exist before another function has such a name.
            get_overridable_functions()
            for owner, name, make in self._places:
                original = getattr(owner, name)
                if id(original) not in self._replaced:
                    stand_in = make(original)
                    self._replaced[id(stand_in)] = (stand_in, original)
                    setattr(owner, name, stand_in)

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            for owner, name, _ in self._places:
                _, original = self._replaced.pop(id(getattr(owner, name)), (None, None))
                if original is not None:
                    setattr(owner, name, original)


_stand_ins = _StandIns((functional, "scaled_dot_product_attention", _switch),
                       (checkpointing, "_checkpoint_without_reentrant_generator", _remembering),
                       (checkpointing, "CheckpointFunction", _remembering_class))
