"""`peers`: PyTorch's backends and Tessera at small sizes, and what the report says."""

import collections
import statistics
import time

import pytest
from lab_support import lab, needs_command, page_of, rows_of, write_rows

from tessera.lab.compare import CacheFlush
from tessera.lab.memory import meter_of
from tessera.lab.peers import METHODS, MOST_CALLS, interleave


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("peers") / "out"
    assert lab("peers", "--quick", "--device", "cpu", "--seq", "64,128", "--heads", 2, "--out", out) == 0
    return out


def test_every_library_has_a_row_at_every_point(measured):
    rows = rows_of(measured)
    assert len(rows) == 2 * 2 * 2 * len(METHODS)
    assert [row["algorithm"] for row in rows[: len(METHODS)]] == list(METHODS)
    for row in rows:
        usable = row["algorithm"] in ("tessera", "sdpa_flash", "sdpa_math")  # the others need a GPU
        assert row["status"] == ("ok" if usable else "unsupported"), row["reason"]
        assert (row["median_ms"] is not None and row["repetitions"] >= 5) if usable else row["reason"]


def test_results_are_compared_with_exact_ones(measured):
    compared = [row for row in rows_of(measured, direction="forward", status="ok")]
    assert len(compared) == 2 * 2 * 3
    for row in compared:
        assert 0 < row["rms_error"] < 1e-5 * row["rms_reference"] and row["rms_reference"] > 0.05


def test_resume_fills_in_what_is_missing(measured, tmp_path):
    rows = rows_of(measured)
    out = write_rows(tmp_path / "out", rows[:7])
    assert lab("peers", "--quick", "--device", "cpu", "--seq", "64,128", "--heads", 2, "--out", out, "--resume") == 0
    assert rows_of(out)[:7] == rows[:7] and len(rows_of(out)) == len(rows)


@needs_command
def test_the_report_reads_what_the_rows_say(measured, tmp_path):
    rows = rows_of(measured, direction="forward", mask="full", q_length=128)
    times = {"tessera": 1.0, "sdpa_flash": 2.5, "sdpa_math": 10.0}
    for row in rows:
        if row["status"] == "ok":
            row["median_ms"] = times[row["algorithm"]]
    said = page_of(write_rows(tmp_path / "slow peer", rows))
    assert "so sdpa_flash is 2.5 times as slow" in said, said
    assert "sdpa_cudnn" in said and "unsupported" in said
    for row in rows:
        if row["algorithm"] == "sdpa_flash":
            row["median_ms"] = 0.5
    assert "so sdpa_flash is 2.0 times as fast" in page_of(write_rows(tmp_path / "fast peer", rows))


class Meter:
    def wait(self):
        pass


def called(names, seed=0, settle=lambda: None):
    """The order in which calls of these names are made, and their times."""
    order = []
    calls = {name: (lambda name=name: order.append(name)) for name in names}
    times = interleave(calls, 3600, Meter(), settle, lambda: None, seed)
    return order, times


def test_calls_are_interleaved():
    order, times = called("abc")
    assert all(len(taken) == MOST_CALLS for taken in times.values())
    assert all(sorted(order[i : i + 3]) == list("abc") for i in range(0, len(order), 3))
    assert called("a")[0] == ["a"] * MOST_CALLS and called("") == ([], {})


def test_every_library_follows_every_other_equally_often():
    """What a call leaves behind, in caches and clocks, must not fall on the same library every time."""
    rounds = 40
    followed = collections.Counter()
    for seed in range(rounds):
        order, _ = called("abcde", seed)
        followed.update(zip(order, order[1:]))
    assert not any(before == after for before, after in followed), "a library that follows itself has an advantage"
    # Each of the 20 pairs is as likely as any other; four deviations of a count allow for chance.
    expected = sum(followed.values()) / 20
    assert len(followed) == 20
    assert all(abs(count - expected) <= 4 * expected**0.5 for count in followed.values()), followed


def test_orders_are_those_of_the_seed():
    assert called("abcd", 1)[0] == called("abcd", 1)[0] != called("abcd", 2)[0]


def test_the_machine_settles_before_every_call_and_that_is_not_timed():
    settled = []
    order, times = called("ab", settle=lambda: (settled.append(1), time.sleep(0.002)))
    assert len(settled) == len(order) == 2 * MOST_CALLS
    assert statistics.median(times["a"] + times["b"]) < 0.001


def test_a_gpus_cache_is_emptied_and_waited_for():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (tools/setup python)")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    flush = CacheFlush("cuda", meter_of("cuda"))
    assert flush.memory.nbytes >= 2 * torch.cuda.get_device_properties("cuda").L2_cache_size >= 1 << 20
    flush.memory.fill_(1)
    flush()
    assert torch.cuda.current_stream().query() and not flush.memory.any()
