"""Stand-ins for packages that code already imports.

``install()`` makes ``import flash_attn`` find ``tessera.compat.flash_attn``.
"""

import importlib
import importlib.metadata
import pathlib
import sys

_MODULES = ("", ".flash_attn_interface", ".bert_padding")


class _Distribution(importlib.metadata.Distribution):
    """The metadata of an installed flash-attn: its name, version and package."""

    def read_text(self, filename):
        version = sys.modules["tessera.compat.flash_attn"].__version__
        return {"METADATA": f"Metadata-Version: 2.1\nName: flash_attn\nVersion: {version}\n",
                "top_level.txt": "flash_attn\n"}.get(filename)

    def locate_file(self, path):
        return pathlib.Path(__file__).parent / path


class _Finder(importlib.metadata.DistributionFinder):
    """Finds that distribution by name and in lists of all distributions; it finds no modules."""

    def find_spec(self, fullname, path=None, target=None):
        return None

    def find_distributions(self, context=importlib.metadata.DistributionFinder.Context()):
        if context.name is None or context.name.lower().replace("-", "_") == "flash_attn":
            yield _Distribution()


_finder = _Finder()


def install() -> None:
    """Makes ``import flash_attn``, ``flash_attn.flash_attn_interface`` and ``flash_attn.bert_padding`` find the
    library's stand-ins in this process, whether or not flash-attn is installed; ``importlib.metadata`` finds their
    version. Call it before the code that imports flash_attn or looks for it, as transformers does.

    Raises ImportError when the real flash_attn is already loaded, because some code would keep it.

    >>> import tessera.compat
    >>> tessera.compat.install()
    >>> from flash_attn import flash_attn_func
    """
    loaded = sys.modules.get("flash_attn")
    if loaded is not None and loaded.__name__ != "tessera.compat.flash_attn":
        raise ImportError(f"flash_attn is already loaded, from {getattr(loaded, '__file__', 'an unknown file')}; "
                          "tessera.compat.install() must come before its first import")
    for name in _MODULES:
        sys.modules["flash_attn" + name] = importlib.import_module("tessera.compat.flash_attn" + name)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """Undoes ``install``. Modules keep the names that they imported before."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    for name in _MODULES:
        module = sys.modules.get("flash_attn" + name)
        if module is not None and module.__name__.startswith("tessera.compat."):
            del sys.modules["flash_attn" + name]
