"""The command `tessera` that comes with the package: it measures, explains and checks."""

from __future__ import annotations

import os
import sys


def path() -> str | None:
    """Where the program is; None when this build has none."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "tessera")
    return program if os.access(program, os.X_OK) else None


def main() -> None:
    """Becomes the program, with the arguments of this process."""
    program = path()
    if program is None:
        sys.exit("tessera: this build of the package does not have the command (it was built with TESSERA_LAB=OFF)")
    os.execv(program, ["tessera", *sys.argv[1:]])
