"""The package around the calls: documentation that runs, stubs that are true, plans, the command."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

import tessera
from tessera import _core
from tessera._arguments import CALL, TABLE, Description, call_arguments, core_options, description_of
from tessera._command import invocation


@pytest.mark.parametrize("name", ["tessera", "tessera._attention", "tessera._plan"])
def test_examples_in_the_documentation(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0 and result.failed == 0


def test_everything_public_is_documented():
    for name in tessera.__all__:
        thing = getattr(tessera, name)
        if name != "__version__":
            assert inspect.getdoc(thing), name


def stub() -> ast.Module:
    path = os.path.join(os.path.dirname(tessera.__file__), "_core.pyi")
    with open(path, encoding="utf-8") as file:
        return ast.parse(file.read())


def parameters(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    return [a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs] + (
        [f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])


def runtime_parameters(signature: str) -> list[str]:
    """The parameters of a signature as nanobind writes it."""
    inside = signature[signature.index("(") + 1:signature.rindex(") ->")]
    inside = re.sub(r"\[[^\[\]]*\]", "", re.sub(r"\[[^\[\]]*\]", "", inside))  # commas inside types
    inside = re.sub(r"\([^()]*\)", "", inside)  # default values
    return [p.split(":")[0].split("=")[0].strip() for p in inside.split(",") if p.strip() not in ("", "*", "/")]


def accepted(function, *arguments) -> list[str]:
    """The keywords that a function of the extension takes by a table: its error lists them."""
    with pytest.raises(TypeError, match="unknown argument; it takes ") as refusal:
        function(*arguments, no_such_argument=1)
    return str(refusal.value).split("it takes ")[1].split(", ")


def test_stubs_name_the_keywords_of_the_tables():
    functions = {node.name: node for node in stub().body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    options = next(node for node in functions["Options"].body if getattr(node, "name", "") == "__init__")
    assert sorted(parameters(options)[1:]) == sorted(accepted(_core.Options))
    assert sorted(parameters(functions["plan"])[1:]) == sorted(accepted(_core.plan, _core.Options()))


def test_call_arguments_are_those_of_the_extension():
    """A call passes the table CALL to both functions, with the same defaults for omitted arguments."""
    functions = {node.name: node for node in stub().body if isinstance(node, ast.FunctionDef)}
    for name in ("forward", "backward"):
        assert set(CALL) <= set(parameters(functions[name]))
    assert list(call_arguments({"max_q": 3})) == list(CALL) and call_arguments({"max_q": 3})["max_q"] == 3
    with pytest.raises(TypeError, match="unknown argument 'slopes'; a call takes alibi, "):
        call_arguments({"slopes": None})


def test_stubs_are_true():
    """Every name of the stub exists with the same parameters, and nothing is missing in it."""
    known = set()
    for node in stub().body:
        if isinstance(node, ast.AnnAssign):
            assert hasattr(_core, node.target.id)
            known.add(node.target.id)
        if isinstance(node, ast.FunctionDef):
            known.add(node.name)
            if node.name == "command" and not hasattr(_core, "command"):
                continue
            function = getattr(_core, node.name)
            runtime = runtime_parameters(function.__nb_signature__[0][0])
            if runtime[-1:] != ["**arguments"]:  # those are in a table
                assert runtime == parameters(node), node.name
        if isinstance(node, ast.ClassDef):
            known.add(node.name)
            runtime = getattr(_core, node.name)
            own = {m for m in vars(runtime) if not m.startswith("_")}
            methods = {m.name: m for m in node.body if isinstance(m, ast.FunctionDef)}
            attributes = {m.target.id for m in node.body if isinstance(m, ast.AnnAssign)}
            assert own == attributes | {m for m in methods if not m.startswith("_")}, node.name
            for name, method in methods.items():
                signature = getattr(getattr(runtime, name, None), "__nb_signature__", None)
                if signature and len(signature) == 1 and "**" not in signature[0][0]:
                    assert runtime_parameters(signature[0][0]) == parameters(method), f"{node.name}.{name}"
    assert {n for n in vars(_core) if not n.startswith("_")} <= known


def test_the_package_is_typed():
    assert os.path.exists(os.path.join(os.path.dirname(tessera.__file__), "py.typed"))


def test_every_option_is_declared_once():
    """Signature, docstring, extension and the way back to a description follow from the table."""
    for function in (tessera.attention, tessera.attention_backward, tessera.plan):
        shown = inspect.signature(function).parameters
        assert "options" not in shown
        for name, option in TABLE.items():
            assert shown[name].default == option.default and shown[name].kind is inspect.Parameter.KEYWORD_ONLY, name
            assert f"        {name}: " in function.__doc__, name
        assert not any(len(line) > 120 for line in function.__doc__.splitlines())
    assert _core.Options() == core_options({}) == core_options(dict(Description()._asdict()))
    made = core_options({"causal": True, "softcap": 2.0, "origin": (1, 2, 3, 4), "algorithm": "flash2"})
    assert core_options(description_of(made)._asdict()) == made != core_options({"causal": True})
    assert repr(made) == 'Options(right=0, softcap=2.0, origin=(1, 2, 3, 4), algorithm=\'flash2\')'
    assert pickle.loads(pickle.dumps(made)) == made and hash(made) == hash(pickle.loads(pickle.dumps(made)))


def test_unknown_arguments_are_named():
    q = np.ones((1, 2, 1, 4), np.float32)
    with pytest.raises(TypeError, match="unknown argument 'causl'; the options are causal, window"):
        tessera.attention(q, q, q, causl=True)
    with pytest.raises(TypeError, match="^the argument wanted is now called gradients$"):
        tessera.attention_backward(q, q, q, q, q, q, wanted="q")
    with pytest.raises(TypeError, match="Options has an unknown argument; it takes scale, left"):
        _core.Options(causal=True)


def test_plan():
    plan = tessera.plan((2, 512, 8, 64), (2, 1024, 2, 64), causal=True, dtype="bf16", threads=1)
    assert plan.direction == "forward" and plan.device == "cpu" and plan.threads == 1
    assert plan.visible_pairs == 2 * 8 * sum(i + 513 for i in range(512))
    assert all(isinstance(kernel, str) and reason for kernel, reason in plan.rejected)
    assert plan.workspace_bytes >= 0 and plan.traffic_bytes >= plan.minimum_bytes > 0
    backward = tessera.plan((2, 512, 8, 64), direction="backward", algorithm="flash1")
    assert backward.direction == "backward" and backward.algorithm == "flash1"
    q = np.empty((2, 8, 512, 64), dtype=np.float16)
    k = np.empty((2, 2, 1024, 64), dtype=np.float16)
    same = tessera.plan(q, k, layout="bhsd", causal=True)
    assert same.visible_pairs == plan.visible_pairs
    packed = tessera.plan((3, 100, 2, 32), packed=True, alibi=True)
    assert packed.kernel
    assert tessera.plan((1, 64, 2, 32), dtype=np.float64).kernel.startswith("cpu.")
    with pytest.raises(ValueError, match="q has 2 dimensions"):
        tessera.plan((3, 100))
    text = tessera.explain((2, 512, 8, 64))
    assert text.startswith("kernel") and str(tessera.plan((2, 512, 8, 64))) == text


def test_info():
    info = tessera.info()
    assert info.version == tessera.__version__ == _core.__version__
    assert info.devices[0]["device"] == "cpu"
    names = {(k["name"], k["direction"]) for k in info.kernels}
    assert {("cpu.flash2", "forward"), ("cpu.flash2", "backward"), ("cpu.standard", "forward")} <= names
    assert "cpu.flash2" in str(info) and info.version in str(info)


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([*invocation(), *arguments], capture_output=True, text=True, timeout=300, check=False)


needs_command = pytest.mark.skipif(not hasattr(_core, "command"), reason="this build has no command (TESSERA_LAB=OFF)")


@needs_command
def test_the_command():
    shown = run("explain", "--seq", "256", "--heads", "2", "--dim", "64", "--causal")
    assert shown.returncode == 0 and "cpu.flash2" in shown.stdout, shown.stderr
    assert run("info").stdout.startswith(f"tessera {tessera.__version__}")
    wrong = run("bench", "--seq", "none")
    assert wrong.returncode != 0 and wrong.stderr


def test_import_needs_no_array_library():
    """The package alone, without site-packages: neither NumPy nor PyTorch is needed to import it."""
    where = os.path.dirname(os.path.dirname(tessera.__file__))
    code = ("import sys, tessera, array; assert 'numpy' not in sys.modules and 'torch' not in sys.modules; "
            "x = memoryview(array.array('f', [1, 2, 3, 4])).cast('B').cast('f', (2, 1, 2)); "
            "out = memoryview(array.array('f', [0] * 4)).cast('B').cast('f', (2, 1, 2)); "
            "tessera._core.forward(tessera._core.Options(right=0), x, x, x, None, out, None); "
            "assert out[0, 0, 0] == 1 and 1 < out[1, 0, 0] < 3")
    subprocess.run([sys.executable, "-S", "-c", code], check=True, timeout=120,
                   env={**os.environ, "PYTHONPATH": where})
