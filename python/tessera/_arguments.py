"""The options of a call, each declared once: type, default, torch.library schema and documentation.

Signatures, docstrings, the operators' schema and the cache of descriptions follow from the table. A new option
takes one line here and one in ``for_each_field`` of python/src/options.cpp.
"""

import inspect
import textwrap
from collections import namedtuple
from typing import Annotated, Any, NamedTuple, TypedDict, get_type_hints

from tessera import _core
from tessera._core import BlockMask
from tessera._types import AlgorithmName, AlignName, Origin


class Option(NamedTuple):
    """What the table says about an option besides its type."""

    default: Any
    schema: str
    text: str


class Options(TypedDict, total=False):
    """The options of ``attention``, ``attention_backward``, ``plan`` and ``tessera.torch.attention``."""

    causal: Annotated[bool, Option(False, "bool", "a query attends only to keys at or before its own position.")]
    window: Annotated[tuple[int, int] | None, Option(None, "SymInt[]?", (
        "(left, right): how many keys before and after the diagonal are visible; -1 means no bound."))]
    align: Annotated[AlignName, Option("bottom_right", "str", (
        'where the diagonal lies when there are more or fewer keys than queries: "bottom_right", the last query meets '
        'the last key, or "top_left", the first query meets the first key (PyTorch\'s ``is_causal``).'))]
    diagonal: Annotated[int | None, Option(None, "SymInt?", (
        "an explicit diagonal: row i meets it at column i + diagonal."))]
    scale: Annotated[float | None, Option(None, "float?", "factor on q k^T; None is 1 / sqrt(head_dim).")]
    softcap: Annotated[float, Option(0.0, "float", "cap * tanh(score / cap) before bias and mask; 0 is off.")]
    dropout: Annotated[float, Option(0.0, "float", "the probability of dropping an element; 0 is off.")]
    origin: Annotated[Origin, Option((0, 0, 0, 0), "SymInt[]", (
        "the global (row, column, batch entry, head) of element 0, for a shard of a longer sequence."))]
    algorithm: Annotated[AlgorithmName, Option("automatic", "str", (
        '"standard", "flash1", "flash2", "flash3" or "minimal" selects one; all give the same result within '
        "rounding."))]
    deterministic: Annotated[bool, Option(False, "bool", (
        "makes gradients bitwise reproducible on GPUs, too; all other results always are."))]


_TYPES = get_type_hints(Options)
TABLE: dict[str, Option] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Options, include_extras=True).items()}

Description = namedtuple("Description", TABLE, defaults=[option.default for option in TABLE.values()])
"""All options of a call, in the order of the table."""

SCHEMA = ", ".join(f"{option.schema} {name}" for name, option in TABLE.items())
"""The options as parameters of a torch.library operator."""


class CallArgument(NamedTuple):
    """What a call takes besides q, k, v, bias and its options."""

    default: Any
    schema: str


CALL: dict[str, CallArgument] = {
    "alibi": CallArgument(None, "Tensor?"),
    "lengths_q": CallArgument(None, "Tensor?"),
    "lengths_k": CallArgument(None, "Tensor?"),
    "dropout_state": CallArgument(None, "Tensor?"),
    "visible": CallArgument(None, "Tensor?"),
    "max_q": CallArgument(0, "SymInt"),
    "max_k": CallArgument(0, "SymInt"),
    "layout": CallArgument(_core.SEQUENCE_FIRST, "int"),
}
"""The arguments of a call that ``tessera._core``, the operators of torch.library and their gradients pass on as they
are, tensors first. A new one takes a line here, its place in python/src/calls.cpp, and in the function that reads it."""

CALL_SCHEMA = ", ".join(f"{argument.schema} {name}" for name, argument in CALL.items())
CALL_TENSORS = sum(argument.schema.startswith("Tensor") for argument in CALL.values())
_CALL_DEFAULTS = {name: argument.default for name, argument in CALL.items()}


def call_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call in the order of the table, those that are not given by their defaults."""
    if given.keys() - CALL.keys():
        raise TypeError(f"unknown argument {min(given.keys() - CALL.keys())!r}; a call takes {', '.join(CALL)}")
    return _CALL_DEFAULTS | given


def takes_options(function):
    """Shows the table in the signature of a function that ends in ``**options``, and in place of a line "{options}"
    of its docstring. The function itself stays as it is: nothing is added to a call."""
    signature = inspect.signature(function)
    own = {name: parameter for name, parameter in signature.parameters.items() if name != "options"}
    shown = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=_TYPES[name])
             for name, option in TABLE.items() if name not in own]
    function.__signature__ = signature.replace(parameters=[*own.values(), *shown])
    lines = []
    for line in (function.__doc__ or "").splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        if line.strip() != "{options}":
            lines.append(line)
            continue
        for parameter in shown:
            lines += textwrap.wrap(f"{parameter.name}: {TABLE[parameter.name].text}", 116, initial_indent=indent,
                                   subsequent_indent=indent + "    ")
    function.__doc__ = "\n".join(lines)
    return function


def describe(options: dict[str, Any]) -> Description:
    """All options, those that are not given by their defaults."""
    for name in options:
        if name not in TABLE:
            raise TypeError(f"unknown argument {name!r}; the options are {', '.join(TABLE)}")
    return Description(**options)


_made: dict[tuple, _core.Options] = {}
_MOST = 256
_FIXED = (bool, int, float, str, tuple, type(None))


def core_options(options: dict[str, Any], block_mask: BlockMask | None = None) -> _core.Options:
    """The extension's form of a call's options. Calls with equal options share one object.

    The cache holds only immutable values, and no block masks, which can be large.
    """
    key = tuple(options.items())
    try:
        made = _made.get(key)
    except TypeError:  # a list, say, has no hash
        made = _core_options(describe(options))
    else:
        if made is None:
            made = _core_options(describe(options))
            if all(isinstance(value, _FIXED) for value in options.values()):
                if len(_made) >= _MOST:
                    _made.clear()
                _made[key] = made
    return made if block_mask is None else made.with_blocks(block_mask)


def _core_options(description: Description) -> _core.Options:
    """The extension knows a band (left, right) where the table has ``causal`` and ``window``."""
    rest = description._asdict()
    causal, window = rest.pop("causal"), rest.pop("window")
    if hasattr(causal, "__dlpack__"):
        raise ValueError(f"causal is an array ({type(causal).__name__}); it must be True or False")
    left, right = (-1, -1) if window is None else two_integers("window", window, "(left, right)")
    return _core.Options(left=left, right=0 if causal else right, **rest)


def description_of(made: _core.Options) -> Description:
    """The description that gives this object again; window and origin as lists, as operators take them."""
    rest = {name: getattr(made, name) for name in TABLE if name not in ("causal", "window", "origin")}
    return Description(causal=False, window=[made.left, made.right], origin=list(made.origin), **rest)


def two_integers(name: str, values: Any, meaning: str) -> tuple[int, int]:
    """Two integers that were passed as one argument."""
    try:
        first, second = values
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {values!r}; it must be two integers, {meaning}") from None
    return first, second
