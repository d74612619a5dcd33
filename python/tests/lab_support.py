"""What the tests of tessera.lab share: the command run inside the tests' process, rows, a page, a small text."""

import json
import os
import pathlib
import random
import re
import subprocess
import sys
from html import unescape

import pytest

# Small work on a machine that has other things to do: threads that spin for the next piece of work would fight.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")



def pytorch_multiplies_bf16():
    """False: its own product of bf16 matrices ends the process (seen with 2.13 on a virtual machine with AMX: SIGILL)."""
    product = "import torch; x = torch.ones(256, 256, dtype=torch.bfloat16); x @ x"
    return subprocess.run([sys.executable, "-c", product], capture_output=True).returncode >= 0


# Before any process that works for the lab is begun. Where there is no AMX nothing was seen to go wrong.
cpu = pathlib.Path("/proc/cpuinfo")
if cpu.exists() and "amx_bf16" in cpu.read_text() and not pytorch_multiplies_bf16():
    print("PyTorch's own bf16 product is killed here: its library is held to instructions before AMX")
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

from tessera.lab import cli, machine  # noqa: E402

WORDS = "tile softmax query key value memory flash block sum exact row column scale mask".split()

needs_command = pytest.mark.skipif(
    machine.tessera_command() is None, reason="no tessera command: neither in the package, nor TESSERA_BINARY, nor on the PATH"
)


def lab(*words):
    """The exit code of `python -m tessera.lab WORDS`, run here."""
    return cli.main([str(word) for word in words])


def rows_of(directory, **wanted):
    """The rows of a directory that have these values."""
    rows = [json.loads(line) for line in (pathlib.Path(directory) / "results.jsonl").read_text().splitlines()]
    return [row for row in rows if all(row[field] == value for field, value in wanted.items())]


def page_of(directory, *more):
    """The text of `tessera report` without markup."""
    page = pathlib.Path(directory) / "page.html"
    words = [*machine.tessera_command(), "report", str(directory), *map(str, more), "--out", str(page)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    body = page.read_text().split('<script type="application/json"')[0]
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", "", body)))


def write_rows(directory, rows):
    """A directory of results with these rows."""
    directory.mkdir()
    (directory / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory):
    """Text that a small model learns something from: sentences of few words."""
    folder = tmp_path_factory.mktemp("text")
    source = random.Random(8)
    for name in ("one.txt", "two.txt"):
        lines = [" ".join(source.choice(WORDS) for _ in range(9)) + "." for _ in range(800)]
        (folder / name).write_text("\n".join(lines))
    return folder
