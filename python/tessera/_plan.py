"""plan, explain and info: the kernel that a call would run, and what this build and machine offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tessera import _core
from tessera._arguments import core_options, takes_options
from tessera._arrays import device_name, dtype_name
from tessera._attention import _layout
from tessera._core import BlockMask, Plan
from tessera._types import Array, DirectionName, Layout

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tessera._arguments import Options


def _sizes(x: Array | Sequence[int], layout_code: int, name: str) -> tuple[int, int, int, int]:
    """(batch, sequence, heads, head_dim) of an array or a shape."""
    try:
        shape = tuple(getattr(x, "shape", x))
    except TypeError:
        raise ValueError(f"{name} is {x!r}; it must be an array or a shape") from None
    if len(shape) == 3:
        shape = (1, *shape)
    if len(shape) != 4:
        raise ValueError(f"{name} has {len(shape)} dimensions; it must have 4, or 3 without a batch")
    return shape if layout_code == _core.SEQUENCE_FIRST else (shape[0], shape[2], shape[1], shape[3])


@takes_options
def plan(
    q: Array | Sequence[int],
    k: Array | Sequence[int] | None = None,
    v: Array | Sequence[int] | None = None,
    *,
    direction: DirectionName = "forward",
    dtype: Any = None,
    device: str | None = None,
    bias: bool | Array = False,
    alibi: bool | Array = False,
    visible: bool | Array = False,
    block_mask: BlockMask | None = None,
    packed: bool = False,
    return_lse: bool = True,
    layout: Layout = "bshd",
    threads: int = 0,
    **options: Unpack[Options],
) -> Plan:
    """The kernel that ``attention`` or its backward would run: tiles, memory, FLOPs, traffic, and why no other.

    Args:
        q: an array, of which only sizes, type and device count; or a shape, together with ``dtype`` and ``device``.
        k, v: likewise; k defaults to q and v to k.
        direction: "forward" or "backward".
        dtype: "fp32", "bf16" or a type of an array library.
        device: "cpu", "cuda" or "cuda:1".
        bias, alibi, visible: whether the call has them; an array counts as True. The costs count every element of a
            boolean mask as true.
        packed: the batch counts packed sequences, and the sizes are those of the longest one.
        return_lse: whether forward writes the LSE.
        {options}

    All other arguments are as in ``attention``.

    >>> p = plan((1, 4096, 16, 64), causal=True, algorithm="flash2")
    >>> p.kernel, p.visible_pairs
    ('cpu.flash2', 134250496.0)
    """
    layout_code = _layout(layout)
    k = q if k is None else k
    v = k if v is None else v
    batch, q_length, q_heads, qk_dim = _sizes(q, layout_code, "q")
    _, k_length, kv_heads, _ = _sizes(k, layout_code, "k")
    v_dim = _sizes(v, layout_code, "v")[3]
    is_array = hasattr(q, "dtype")
    dtype = dtype_name(q) if dtype is None and is_array else "fp32" if dtype is None else dtype_name(dtype)
    device = device_name(q) if device is None and is_array else "cpu" if device is None else device
    return _core.plan(
        core_options(options, block_mask),
        batch=batch, q_length=q_length, k_length=k_length, q_heads=q_heads, kv_heads=kv_heads, qk_dim=qk_dim,
        v_dim=v_dim, dtype=dtype, return_lse=return_lse, bias=bias is not None and bias is not False,
        alibi=alibi is not None and alibi is not False,
        visible=visible is not None and visible is not False, packed=packed, device=device, direction=direction,
        threads=threads)


def explain(q: Array | Sequence[int], k: Array | Sequence[int] | None = None, v: Array | Sequence[int] | None = None,
            **arguments: Any) -> str:
    """``plan`` as text, one fact per line.

    >>> print(explain((1, 4096, 16, 64), causal=True, algorithm="flash2").splitlines()[0])
    kernel            cpu.flash2 (flash2, forward, cpu)
    """
    return str(plan(q, k, v, **arguments))


@dataclass(frozen=True)
class Info:
    """The result of ``info``; `print` shows it as text."""

    version: str
    build: str
    devices: list[dict[str, str]]
    kernels: list[dict[str, Any]]
    command: bool

    def __str__(self) -> str:
        lines = [self.build.rstrip(), f"command   {'yes' if self.command else 'no'}", "", "devices"]
        lines += [f"  {d['device']:8}{d['name']}: {d['description']}" for d in self.devices]
        lines += ["", "kernels"]
        lines += [f"  {x['name']:22}{x['direction']}" for x in self.kernels]
        return "\n".join(lines)


def info() -> Info:
    """This build, the devices of this machine, and all kernels.

    >>> info().devices[0]["device"]
    'cpu'
    """
    return Info(_core.__version__, _core.build_info(), _core.devices(), _core.kernels(), hasattr(_core, "command"))
