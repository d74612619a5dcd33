"""The command `tessera` of the package."""

from __future__ import annotations

import sys

from tessera import _core


def invocation() -> list[str]:
    """The words that start the command in another process; append its arguments."""
    return [sys.executable, "-m", "tessera"]


def main() -> None:
    """Runs the command with the arguments of this process and exits with its status."""
    if not hasattr(_core, "command"):
        sys.exit("tessera: this build has no command; build the package with CLI11, fmt, nlohmann-json and Chart.js "
                 "installed (tools/setup run)")
    sys.exit(_core.command(["tessera", *sys.argv[1:]]))
