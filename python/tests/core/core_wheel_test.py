"""The wheel: made from this build, installed into a clean environment, used there without PyTorch."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import zipfile

import numpy
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    extension = os.environ.get("TESSERA_EXTENSION")
    if not extension:
        pytest.skip("TESSERA_EXTENSION does not say which extension to pack (CTest does)")
    for module in ("scikit_build_core", "auditwheel"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed (tools/setup python)")
    out = tmp_path_factory.mktemp("wheel")
    build = pathlib.Path(extension).parents[2]
    subprocess.run([ROOT / "tools/wheel", "--build", build, "--out", out, "--python", sys.executable], check=True,
                   timeout=600)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A new environment with the wheel in it and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
    subprocess.run([folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-index",
                    "--disable-pip-version-check", wheel], check=True, timeout=300)
    return folder


def run(environment, *command, **variables):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TESSERA"))}
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300, check=False,
                          cwd=environment, env={**clean, **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_in_it(wheel):
    assert "manylinux" in wheel.name and wheel.name.startswith("tessera_attention-")
    assert wheel.stat().st_size <= 40e6
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert {"tessera/__init__.py", "tessera/py.typed", "tessera/_core.pyi"} <= set(names)
    assert not [n for n in names if "__pycache__" in n or n.startswith("tests/")]
    assert "Name: tessera-attention" in metadata and "Requires-Dist" not in metadata


def test_it_works_alone(environment):
    """Without NumPy and PyTorch: import, a call on Python's own buffers, the facts of the machine."""
    code = """
import array, tessera
x = memoryview(array.array('f', range(8))).cast('B').cast('f', (4, 1, 2))
out = memoryview(array.array('f', [0] * 8)).cast('B').cast('f', (4, 1, 2))
tessera._core.forward(tessera._core.Options(right=0), x, x, x, None, out, None)
assert out[0, 0, 1] == 1
print(tessera.info())
"""
    shown = run(environment, environment / "bin/python", "-c", code)
    assert "cpu.flash2" in shown


def test_it_works_with_numpy(environment, tmp_path):
    """NumPy alone beside it, borrowed from this environment."""
    site = pathlib.Path(numpy.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            (tmp_path / name).symlink_to(site / name)
    code = """
import sys, numpy as np, tessera
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((2, 20, 3, 8)) for _ in range(3))
s = np.einsum('bihd,bjhd->bhij', q, k) / np.sqrt(8)
p = np.exp(s - s.max(-1, keepdims=True)); p /= p.sum(-1, keepdims=True)
np.testing.assert_allclose(tessera.attention(q, k, v), np.einsum('bhij,bjhd->bihd', p, v), atol=1e-12)
assert 'torch' not in sys.modules
"""
    run(environment, environment / "bin/python", "-c", code, PYTHONPATH=str(tmp_path))


def test_the_command_comes_with_it(environment):
    program = environment / "bin/tessera"
    if "not in this build" in run(environment, environment / "bin/python", "-c",
                                  "import tessera; print('' if tessera.info().command else 'not in this build')"):
        pytest.skip("this build has no command (TESSERA_LAB=OFF)")
    assert "cpu.flash2" in run(environment, program, "explain", "--seq", "128", "--heads", "2", "--dim", "64")
