"""`training`: small models end to end, what does not fit, Ctrl-C, and what the report says."""

import os
import signal
import subprocess
import sys
import time

import pytest
from lab_support import lab, needs_command, page_of, rows_of, torch, write_rows

from tessera.lab import cli, machine, worker
from tessera.lab.model import Attention, Transformer, count_parameters
from tessera.lab.training import CPU_FACTOR, STUDY, Problem, agreement

GRID = ("training", "--quick", "--device", "cpu", "--seq", "128,1024", "--width", "64", "--depth", "1")
BUDGET = "24MiB"  # one matrix of 1024 x 1024 is 4 MiB, and standard attention needs several


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run in which standard attention does not fit at the longer sequence."""
    directory = tmp_path_factory.mktemp("training") / "out"
    assert lab(*GRID, "--memory-budget", BUDGET, "--out", directory) == 0
    return directory


def test_every_point_is_a_row(measured):
    rows = rows_of(measured)
    assert [(row["algorithm"], row["q_length"]) for row in rows] == [
        ("standard", 128), ("flash", 128), ("standard", 1024), ("flash", 1024)
    ]  # fmt: skip
    for row in rows:
        assert row["schema"] == 1 and row["experiment"] == "training" and row["scale"] == "quick"
        assert row["embedding"] == 64 and row["depth"] == 1 and row["memory_budget_bytes"] == 24 * 2**20
    for row in rows_of(measured, status="ok"):
        assert row["median_ms"] > 0 and row["repetitions"] >= 3 and row["tflops"] > 0
        assert 0 < row["memory_used_bytes"] <= row["peak_bytes"] <= row["memory_budget_bytes"]


def test_what_does_not_fit_is_a_row_and_not_the_end(measured):
    (row,) = rows_of(measured, status="out_of_memory")
    assert row["algorithm"] == "standard" and row["q_length"] == 1024
    assert "allocate" in row["reason"] and row["median_ms"] is None and row["peak_bytes"] is None
    (after,) = rows_of(measured, algorithm="flash", q_length=1024)
    assert after["status"] == "ok" and after["time_saved_percent"] is None, "nothing to compare with"


def test_savings_are_shares_of_standard(measured):
    standard, flash = rows_of(measured, q_length=128)
    assert flash["time_saved_percent"] == pytest.approx(100 * (1 - flash["median_ms"] / standard["median_ms"]))
    assert flash["memory_saved_percent"] == pytest.approx(100 * (1 - flash["peak_bytes"] / standard["peak_bytes"]))
    assert flash["speedup_over_standard"] == pytest.approx(standard["median_ms"] / flash["median_ms"])
    assert standard["time_saved_percent"] is None


def test_both_attentions_give_the_same(measured, tmp_path):
    standard, flash = rows_of(measured, q_length=128)
    assert flash["verdict"] == "agrees" and flash["compared_with"] == "standard"
    assert 0 <= flash["max_difference"] <= flash["atol"] and standard["verdict"] is None
    assert flash["train_loss"] == pytest.approx(standard["train_loss"], rel=1e-4) and flash["train_loss"] > 0.5
    assert len(flash["sampled_outputs"].split()) == 32
    for field, value in (("train_loss", 9.0), ("train_loss", float("nan")), ("sampled_outputs", "nan" + " 0" * 31)):
        changed = dict(flash) | {field: value}
        agreement(changed, standard)
        assert changed["verdict"] == "differs", field


def test_heads_are_a_parameter(tmp_path, capsys):
    grid = [word for word in GRID if word != "128,1024"]
    grid.insert(grid.index("--seq") + 1, "128")
    assert lab(*grid, "--heads", "2,4", "--out", tmp_path / "out") == 0
    rows = rows_of(tmp_path / "out")
    assert {(row["q_heads"], row["qk_dim"], row["embedding"]) for row in rows} == {(2, 32, 64), (4, 16, 64)}
    assert all(row["verdict"] == "agrees" for row in rows if row["algorithm"] == "flash")
    assert lab(*grid, "--heads", "3", "--out", tmp_path / "none") == 2
    assert "--heads '3': must divide --width 64" in capsys.readouterr().err


def test_the_study_is_one_grid_divided_by_one_factor():
    study, full = STUDY[CPU_FACTOR], STUDY[1]
    for name in ("seq", "width"):
        assert [value * CPU_FACTOR for value in cli.numbers(name, study[name])] == cli.numbers(name, full[name])
    assert study["depth"] == full["depth"]
    assert machine.parse_bytes("", full["memory_budget"]) == CPU_FACTOR**2 * machine.parse_bytes("", study["memory_budget"])


def test_resume_refuses_another_budget(measured, capsys):
    assert lab(*GRID, "--memory-budget", "48MiB", "--out", measured, "--resume") == 2
    said = capsys.readouterr().err
    assert "'settings' is '--memory-budget 24.0 MiB', this run has '--memory-budget 48.0 MiB'" in said
    assert lab(*GRID, "--out", str(measured) + "-none", "--resume") == 2
    assert "has no results.jsonl to continue" in capsys.readouterr().err


def test_resume_repeats_nothing_and_adds_what_is_new(measured, capsys):
    before = rows_of(measured)
    assert lab(*GRID, "--memory-budget", BUDGET, "--out", measured) == 2
    assert "--resume" in capsys.readouterr().err
    assert lab(*GRID, "--memory-budget", BUDGET, "--out", measured, "--resume") == 0
    assert rows_of(measured) == before
    more = (*GRID, "--memory-budget", BUDGET, "--optimizer", "adamw", "--causal", "--seq", "128", "--out", measured, "--resume")
    assert lab(*more) == 0
    added = rows_of(measured)[len(before) :]
    assert {(row["optimizer"], row["mask"], row["status"]) for row in added} == {("adamw", "causal", "ok")}


def test_memory_is_what_the_tensors_need(tmp_path):
    """A model of 64 MiB: parameters alone, then with gradients, then with Adam's two moments."""
    expected = count_parameters(Transformer("flash", 512, 5)) * 4
    for optimizer, copies in (("none", 2), ("adamw", 4)):
        out = tmp_path / optimizer
        words = ("training", "--quick", "--device", "cpu", "--seq", "64", "--width", "512", "--depth", "5")
        words += ("--attention", "flash", "--memory-budget", "1GiB")
        assert lab(*words, "--optimizer", optimizer, "--out", out) == 0
        (row,) = rows_of(out)
        assert row["parameters"] * 4 == expected
        assert copies * expected <= row["peak_bytes"] <= (copies + 0.5) * expected + 2**25


@needs_command
def test_the_report_reads_what_the_rows_say(measured, tmp_path):
    rows = [row for row in rows_of(measured) if row["optimizer"] == "none"]
    (flash,) = [row for row in rows if row["algorithm"] == "flash" and row["q_length"] == 128]
    saved = f"training with flash attention saves {flash['time_saved_percent']:.1f} % of the time"
    if flash["time_saved_percent"] < 0:
        saved = f"training with flash attention takes {-flash['time_saved_percent']:.1f} % longer"
    said = page_of(write_rows(tmp_path / "as measured", rows))
    assert saved in said, said
    assert "standard runs out of memory at N = 1024" in said
    assert "flash fits sequences of 1024 tokens and standard of 128 tokens" in said, "the frontier"
    for row in rows:
        if row["time_saved_percent"] is not None:
            row["time_saved_percent"], row["status"] = 66.6, "ok"
        if row["status"] == "out_of_memory":
            row |= {"status": "ok", "reason": None, "median_ms": 5.0, "peak_bytes": 2**25}
    said = page_of(write_rows(tmp_path / "changed", rows))
    assert "training with flash attention saves 66.6 % of the time" in said and "runs out of memory" not in said
    assert "flash and standard fit sequences of the same length (1024 tokens)" in said


# --- Ctrl-C -------------------------------------------------------------------------------------------


def interrupt(process):
    process.send_signal(signal.SIGINT)


def terminate_group(process):
    """As timeout(1) does it: to the command and to the process that measures, at once."""
    os.killpg(process.pid, signal.SIGTERM)


@pytest.mark.parametrize("stop", [interrupt, terminate_group])
def test_ctrl_c_keeps_finished_rows(tmp_path, stop):
    """The command itself, in a process of its own. What it was measuring is no row, and no failed one either."""
    out = tmp_path / "out"
    words = [sys.executable, "-m", "tessera.lab", *GRID, "--seq", "64..8192", "--memory-budget", "4GiB", "--out", str(out)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
            if (out / "results.jsonl").exists() and len(rows_of(out)) >= 2:
                break
        stop(process)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "continue with" in said and "--resume" in said and "Traceback" not in said
    assert 2 <= len(rows_of(out)) < 16 and all(row["status"] == "ok" for row in rows_of(out))


def test_a_signal_to_the_group_while_a_process_starts(monkeypatch):
    """It ends the process that starts others: that is an interruption, and only then."""

    def start(_process):
        raise EOFError("unexpected EOF")

    monkeypatch.setattr(worker._CONTEXT.Process, "start", start)
    interrupted = worker.Interrupt()
    with pytest.raises(EOFError):
        worker.run(task, {"what": "memory"}, interrupted)
    interrupted.asked = True
    with pytest.raises(worker.Interrupted):
        worker.run(task, {"what": "memory"}, interrupted)


# --- processes ----------------------------------------------------------------------------------------


def task(link, what):
    if what == "memory":
        return len(bytearray(1 << 50))
    if what == "error":
        raise ValueError("first line\nsecond line")
    if what in ("abort", "killed"):
        os.kill(os.getpid(), signal.SIGABRT if what == "abort" else signal.SIGKILL)
    if what == "wait":
        while not link.stopping():
            link.report(waiting=True)
            time.sleep(0.01)
    return what


@pytest.mark.parametrize(
    "what, status, reason",
    [
        ("fine", "ok", ""),
        ("memory", "out_of_memory", "MemoryError"),
        ("error", "failed", "ValueError: first line"),
        ("abort", "failed", "SIGABRT"),
        ("killed", "out_of_memory", "killed by the system"),
    ],
)
def test_outcomes_of_processes(what, status, reason):
    with worker.Interrupt() as interrupt:
        outcome = worker.run(task, {"what": what}, interrupt)
    assert outcome.status == status and reason in outcome.reason and "second" not in outcome.reason
    assert outcome.value == (what if status == "ok" else None)


@pytest.mark.parametrize("patient", [True, False])
def test_processes_are_stopped(patient):
    said = []

    def listen(**fields):
        said.append(fields)
        os.kill(os.getpid(), signal.SIGINT)

    with worker.Interrupt() as interrupt, pytest.raises(worker.Interrupted):
        worker.run(task, {"what": "wait"}, interrupt, listener=listen, patient=patient)
    assert said[0] == {"waiting": True} and len(said) < 1000


def taking_turns(link, name):
    for _ in range(5):
        if not link.turn():
            return "stopped"
        link.report(begin=name)
        time.sleep(0.02)
        link.report(end=name)
    if name == "error":
        raise ValueError("at the end")
    return name


def test_processes_work_in_turns():
    said = []
    listeners = [lambda **fields: said.append(fields)] * 3
    with worker.Interrupt() as interrupt:
        outcomes = worker.run_in_turns(taking_turns, [{"name": name} for name in ("a", "error", "c")], interrupt, listeners)
    assert [outcome.status for outcome in outcomes] == ["ok", "failed", "ok"] and outcomes[2].value == "c"
    names = [fields["begin"] for fields in said[::2]]
    assert names == [fields["end"] for fields in said[1::2]], "one begins when the other has ended"
    assert all(sorted(names[i : i + 3]) == ["a", "c", "error"] for i in range(0, 15, 3)), "in rounds"
    assert all(a != b for a, b in zip(names, names[1:])), "none follows itself"


def test_processes_in_turns_are_stopped_together():
    said = []

    def listen(**fields):
        said.append(fields)
        if len(said) == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with worker.Interrupt() as interrupt, pytest.raises(worker.Interrupted):
        worker.run_in_turns(taking_turns, [{"name": name} for name in "ab"], interrupt, [listen] * 2)
    assert len(said) < 10


# --- models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["flash", "sdpa"])
@pytest.mark.parametrize("causal", [False, True])
def test_all_attentions_are_the_same_function(causal, kind):
    torch.manual_seed(1)
    standard = Attention("standard", 128, 2, causal=causal)
    other = Attention(kind, 128, 2, causal=causal)
    other.load_state_dict(standard.state_dict())
    x = torch.randn(2, 100, 128)
    results = []
    for module in (standard, other):
        out = module(x)
        out.square().sum().backward()
        results.append((out.detach(), *(parameter.grad for parameter in module.parameters())))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert results[0][0].abs().max() > 0.1


def test_operations_are_counted():
    point = Problem("flash", 256, 128, 3, 2, "fp32", "none", False, 2**30, 0)
    # Four matrices of the width squared, two of four times that; Q K^T and P V; forward once, backward twice.
    linear, pairs = 2 * (4 * 128**2 + 8 * 128**2) * 512, 2 * 2 * 2 * 256**2 * 128
    assert point.flops() == 3 * 3 * (linear + pairs)
