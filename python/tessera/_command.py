"""The command `tessera` that comes with the package: it measures, explains and checks."""

from __future__ import annotations

import sys

from tessera import _core


def invocation() -> list[str]:
    """How another process starts the command: append its arguments."""
    return [sys.executable, "-m", "tessera"]


def main() -> None:
    """Runs the command with the arguments of this process, and ends with its exit status."""
    if not hasattr(_core, "command"):
        sys.exit("tessera: this build of the package is without the command; build it where CLI11, fmt, nlohmann-json "
                 "and Chart.js are installed (tools/setup run)")
    sys.exit(_core.command(["tessera", *sys.argv[1:]]))
