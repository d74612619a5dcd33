"""Stand-ins for packages that code already imports.

``install()`` makes ``import flash_attn`` find ``tessera.compat.flash_attn``.
"""

import importlib
import sys

_MODULES = ("", ".flash_attn_interface", ".bert_padding")


def install() -> None:
    """Makes ``import flash_attn``, ``flash_attn.flash_attn_interface`` and ``flash_attn.bert_padding`` find the
    library's stand-ins in this process, whether or not flash-attn is installed. Call it before the code that imports
    them.

    Raises ImportError when the real flash_attn is loaded already: some code would keep it.

    >>> import tessera.compat
    >>> tessera.compat.install()
    >>> from flash_attn import flash_attn_func
    """
    loaded = sys.modules.get("flash_attn")
    if loaded is not None and loaded.__name__ != "tessera.compat.flash_attn":
        raise ImportError(f"flash_attn is loaded already, from {getattr(loaded, '__file__', 'an unknown place')}; "
                          "tessera.compat.install() must come before its first import")
    for name in _MODULES:
        sys.modules["flash_attn" + name] = importlib.import_module("tessera.compat.flash_attn" + name)


def uninstall() -> None:
    """Undoes ``install``. Names that were imported meanwhile stay with those who have them."""
    for name in _MODULES:
        module = sys.modules.get("flash_attn" + name)
        if module is not None and module.__name__.startswith("tessera.compat."):
            del sys.modules["flash_attn" + name]
