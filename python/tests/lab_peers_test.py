"""`peers`: PyTorch's backends and Tessera at small sizes, and what the report says."""

import pytest
from lab_support import lab, needs_command, page_of, rows_of, write_rows

from tessera.lab.peers import LIBRARIES, interleave


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("peers") / "out"
    assert lab("peers", "--quick", "--device", "cpu", "--seq", "64,128", "--heads", 2, "--out", out) == 0
    return out


def test_every_library_has_a_row_at_every_point(measured):
    rows = rows_of(measured)
    assert len(rows) == 2 * 2 * 2 * len(LIBRARIES)
    assert [row["algorithm"] for row in rows[: len(LIBRARIES)]] == list(LIBRARIES)
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
    assert "sdpa_flash is 2.5× as slow as tessera at N = 128 (2.50 ms against 1.00 ms)" in said, said
    assert "sdpa_cudnn" in said and "unsupported" in said
    rows[1]["median_ms"] = 0.5
    assert "sdpa_flash is 2.0× as fast as tessera" in page_of(write_rows(tmp_path / "fast peer", rows))


def test_calls_are_interleaved():
    class Meter:
        def wait(self):
            pass

    order = []
    calls = {name: (lambda name=name: order.append(name)) for name in "abc"}
    times = interleave(calls, 0, Meter(), 0, lambda: None)
    assert order[:9] == list("abcbcacab") and all(len(taken) == 5 for taken in times.values())
