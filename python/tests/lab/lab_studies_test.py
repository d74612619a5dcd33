"""`studies`: PyTorch at the points of a run of `tessera lab`, and the page of both."""

import json
import math
import subprocess

import pytest
from lab_support import lab, needs_command, page_of, rows_of, torch, write_rows

from tessera.lab import machine, studies, worker
from tessera.lab.model import standard_attention
from tessera.lab.rows import FIELDS

pytestmark = needs_command


def point(**changed):
    fields = {name: FIELDS[name] for name in studies.POINT_FIELDS}
    fields |= {"experiment": "sequence", "direction": "forward", "dtype": "fp32", "batch": 2, "q_length": 48, "k_length": 48,
               "q_heads": 4, "kv_heads": 4, "qk_dim": 16, "v_dim": 16, "mask": "full"}  # fmt: skip
    return fields | changed


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of the lab, cut to a few points of two experiments."""
    out = tmp_path_factory.mktemp("studies") / "run"
    words = [*machine.tessera_command(), "lab", "causal", "steps", "--quick", "--device", "cpu", "--out", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [row for row in rows_of(out) if row["experiment"] == "steps" or row["q_length"] <= 512]
    (out / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return out


@pytest.fixture(scope="module")
def measured(run):
    assert lab("studies", run) == 0
    return run / "pytorch"


def test_every_point_has_both_methods(run, measured):
    ours = {(row["mask"], row["q_length"]) for row in rows_of(run, experiment="causal")}
    for method in studies.METHODS:
        theirs = rows_of(measured, experiment="causal", algorithm=method)
        assert {(row["mask"], row["q_length"]) for row in theirs} == ours and len(theirs) == len(ours)
        for row in theirs:
            assert row["status"] == "ok" and row["median_ms"] > 0 and row["repetitions"] >= 5 and row["torch"]
            assert 0 < row["max_error"] < 1e-5 and row["peak_bytes"] >= row["tensor_bytes"] > 0
            (same,) = rows_of(run, experiment="causal", algorithm="flash2", mask=row["mask"], q_length=row["q_length"])
            assert row["flops"] == same["flops"] and row["tflops"] == pytest.approx(row["flops"] / row["median_ms"] / 1e9)
            assert all(row[name] == same[name] for name in ("machine", "commit", "device", "scale", "settings"))


def test_standard_attention_is_timed_step_by_step(measured):
    steps = {row["stage"]: row for row in rows_of(measured, experiment="steps", algorithm="pytorch")}
    assert list(steps) == list(studies.STAGES)
    assert all(row["status"] == "ok" and row["median_ms"] > 0 for row in steps.values())
    (fused,) = rows_of(measured, experiment="steps", algorithm="sdpa")
    assert fused["stage"] == studies.ONE_KERNEL


def test_the_page_has_pytorchs_curve(run, measured):
    assert (measured / "report.html").exists()
    said = page_of(run, measured)
    assert "pytorch" in said and "sdpa" in said
    assert "pytorch" not in page_of(run)


def test_resume_repeats_nothing(run, measured, tmp_path, capsys):
    rows = rows_of(measured)
    out = write_rows(tmp_path / "out", rows[:3])
    assert lab("studies", run, "--out", out) == 2
    assert "--resume" in capsys.readouterr().err
    assert lab("studies", run, "--out", out, "--resume") == 0
    assert rows_of(out)[:3] == rows[:3] and len(rows_of(out)) == len(rows)


def test_what_is_no_run_of_this_machine_is_named(run, tmp_path, capsys):
    for path, said in ((tmp_path / "none", "cannot be read"), (tmp_path, "cannot be read")):
        assert lab("studies", path) == 2 and said in capsys.readouterr().err
    other = write_rows(tmp_path / "other", [row | {"machine": "Another, 64 CPUs"} for row in rows_of(run)])
    assert lab("studies", other) == 2
    assert "was measured on Another, 64 CPUs; this is " in capsys.readouterr().err
    assert lab("studies", run, "--methods", "pytroch", "--out", tmp_path / "out") == 2
    assert "did you mean pytorch?" in capsys.readouterr().err


@pytest.mark.parametrize("direction", ["forward", "backward", "forward + backward"])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_both_methods_compute_the_same(mask, direction):
    one = studies.Point(point(mask=mask, direction=direction, kv_heads=2), "cpu")
    results = [one.calls(method)[None]() for method in studies.METHODS]
    for a, b in zip(*(result if isinstance(result, tuple) else (result,) for result in results), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_steps_together_are_standard_attention():
    one = studies.Point(point(mask="causal"), "cpu")
    state, steps = studies.unfused_steps(one.q, one.k, one.v, True, 0.0)
    for _, step in steps:
        step()
    expected = standard_attention(one.q, one.k, one.v, causal=True, dropout=0.0)
    torch.testing.assert_close(state["out"], expected, rtol=1e-5, atol=1e-6)


def test_running_out_of_memory_is_a_row():
    fields = point(q_length=2048, k_length=2048, memory_budget_bytes=24 << 20)
    with worker.Interrupt() as interrupt:
        arguments = {"fields": fields, "flops": 1e9, "staged": False, "methods": ["pytorch", "sdpa"], "device": "cpu", "threads": 1}
        outcome = worker.run(studies.measure, arguments, interrupt)
    assert outcome.status == "ok", outcome.reason
    assert outcome.value["pytorch", None]["status"] == "out_of_memory", outcome.value
    assert outcome.value["sdpa", None]["status"] == "ok", outcome.value


def test_only_what_pytorch_can_be_asked_is_a_point():
    rows = [point() | {"algorithm": name, "stage": None, "flops": 1.0} for name in ("standard", "flash2")]
    assert len(studies.points_of(rows)) == 1
    for name, value in (("mask", "window:3,0"), ("bias", True), ("softcap", 3.0), ("requested_block_k", 64), ("level", "L1")):
        assert studies.points_of([row | {name: value} for row in rows]) == [], name
    (staged,) = studies.points_of([rows[0] | {"stage": "mask", "flops": 5.0}, rows[1] | {"stage": "one kernel"}])
    assert staged[1] == 1.0 and staged[2], "the nominal work is the whole call's"
    assert studies.threads_of("--causal yes --threads 3", 8) == 3 and studies.threads_of("", 8) == 8


def test_executed_operations_are_those_of_the_products_and_more():
    forward, backward = (studies.executed_flops(point(direction=name)) for name in ("forward", "backward"))
    pairs = 2 * 4 * 48 * 48
    assert forward == pairs * (4 * 16 + 6) and backward == pairs * (8 * 16 + 3), "P is kept: no product twice"
    assert math.isclose(studies.executed_flops(point(direction="forward + backward")), forward + backward)
