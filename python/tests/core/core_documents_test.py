"""The Python programs in the documentation run, and print what the text says.

Every fenced block marked `python` that imports tessera is a program; a block marked `text` after it is its output.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


def programs():
    for path in (ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        blocks = [(m.group(1), m.group(2), text.count("\n", 0, m.start()) + 1) for m in FENCE.finditer(text)]
        for index, (language, body, line) in enumerate(blocks):
            if language == "python" and re.search(r"^(import|from) tessera", body, re.MULTILINE):
                after = blocks[index + 1] if index + 1 < len(blocks) else ("", "", 0)
                yield pytest.param(body, after[1] if after[0] == "text" else None, id=f"{path.name}:{line}")


@pytest.mark.parametrize(("program", "expected"), programs())
def test_program(program, expected):
    for module in ("torch", "transformers"):
        if re.search(rf"^(import|from) (tessera\.)?{module}", program, re.MULTILINE):
            if importlib.util.find_spec(module) is None:
                pytest.skip(f"{module} is not installed (tools/setup python)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False,
                          env=os.environ)
    assert done.returncode == 0, done.stderr
    if expected is not None:
        assert done.stdout.rstrip() == expected.rstrip()
