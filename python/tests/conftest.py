"""What the tests of the Python package share.

They run on the package that PYTHONPATH or the environment offers: the build's own (CTest sets it), or an installed one.
"""

from __future__ import annotations

import os
import sys

import hypothesis
import pytest

sys.path.insert(0, os.path.dirname(__file__))  # the support modules; the folder of PyTorch tests is not called torch, which
# `import torch` would find where PyTorch is not installed

# Shared machines are slow at times: no test fails for its time alone. Failures print how to repeat them.
hypothesis.settings.register_profile(
    "tessera", deadline=None, max_examples=int(os.environ.get("TESSERA_TEST_EXAMPLES", "80")), print_blob=True,
    database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("tessera")


def pytest_report_header() -> str:
    import tessera

    return f"tessera {tessera.__version__} from {os.path.dirname(tessera.__file__)}"


@pytest.fixture
def torch():
    """PyTorch; without it the test is skipped."""
    return pytest.importorskip("torch", reason="PyTorch is not installed (tools/setup python)")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A file that is skipped as a whole has no test, which pytest calls a failure; CTest knows 77 as skipped."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and reporter.stats.get("skipped"):
        session.exitstatus = 77
