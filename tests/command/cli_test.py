"""Drives the built `tessera` command, whose path is in TESSERA_BINARY, as a user or a script would."""

import csv
import io
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import time

import pytest

BINARY = os.environ.get("TESSERA_BINARY", "tessera")
TINY = ["--dim", "16", "--repetitions", "2"]
SMALL = ["--seq", "32", "--heads", "2", *TINY]
BOTH = ["--algorithm", "standard,flash2"]


def run(*arguments, env=None, **options):
    environment = {key: value for key, value in os.environ.items() if key != "TESSERA_KERNEL"}
    environment.update(env or {})
    return subprocess.run(
        [BINARY, *arguments], capture_output=True, text=True, timeout=120, env=environment, **options
    )


def succeed(*arguments, **options):
    result = run(*arguments, **options)
    assert result.returncode == 0, result.stderr
    assert "\033" not in result.stdout + result.stderr, "control sequences in a pipe"
    return result.stdout


# --- CPUs ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity is Linux's")
def test_threads_by_default_are_the_cpus_that_affinity_allows():
    allowed = sorted(os.sched_getaffinity(0))
    for count in {1, len(allowed)}:
        text = succeed("explain", "--seq", "4096", "--heads", "8",
                       preexec_fn=lambda count=count: os.sched_setaffinity(0, allowed[:count]))
        threads = int(re.search(r", (\d+) threads$", text, re.MULTILINE).group(1))
        # A cgroup's quota may allow fewer.
        assert threads == 1 if count == 1 else 1 <= threads <= count, text


def json_rows(*arguments):
    return [json.loads(line) for line in succeed("bench", *arguments, "--json", "-").splitlines()]


# The baseline needs OpenBLAS, which is optional.
needs_standard = pytest.mark.skipif(
    run("explain", "--algorithm", "standard").returncode != 0, reason="no OpenBLAS: no standard kernel"
)


# --- help and version ---------------------------------------------------------------------------------


def test_help_names_every_command():
    text = succeed("--help")
    for command in ("info", "explain", "bench", "lab", "peak", "verify", "report", "fit", "completion", "man"):
        assert re.search(rf"^  {command}\s", text, re.MULTILINE), command
    assert "Exit codes" in text


@pytest.mark.parametrize("command", ["info", "explain", "bench", "lab", "peak", "verify", "report", "fit"])
def test_help_of_a_command_has_options_defaults_and_examples(command):
    text = succeed(command, "--help")
    assert f"Usage: tessera {command} [OPTIONS]" in text
    assert "Examples:" in text
    assert f"  tessera {command}" in text.split("Examples:")[1]
    assert "\n\n\n" not in text
    assert max(len(line) for line in text.splitlines()) <= 120
    if command in ("explain", "bench", "peak"):
        for option in re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE):
            line = next(entry for entry in text.splitlines() if entry.startswith(f"  {option} "))
            assert "[" in line or option in ("--json", "--csv"), f"no default: {line}"


def test_version():
    assert re.fullmatch(r"tessera \d+\.\d+\.\d+\n", succeed("--version"))


# --- wrong arguments ----------------------------------------------------------------------------------

WRONG = [
    # arguments, what the one line must contain
    ([], ["command", "info, explain, bench, lab, peak, verify"]),
    (["frobnicate"], ["'frobnicate'", "info, explain, bench, lab, peak, verify"]),
    (["bnech"], ["'bnech'", "did you mean bench?"]),
    (["completion", "fish"], ["SHELL", "'fish'", "bash, zsh"]),
    (["man", "bnech"], ["NAME", "'bnech'", "did you mean bench?"]),
    (["--frobnicate"], ["'--frobnicate'"]),
    (["info", "--jsn"], ["'--jsn'", "--json"]),
    (["info", "extra"], ["'extra'"]),
    (["bench", "--sqe", "5"], ["'--sqe'", "--seq"]),
    (["bench", "--seq"], ["--seq"]),
    (["bench", "--seq", "0"], ["--seq", "'0'", "at least 1"]),
    (["bench", "--seq", "-5"], ["--seq", "'-5'"]),
    (["bench", "--seq", "12x"], ["--seq", "'12x'", "integer"]),
    (["bench", "--seq", "1,,2"], ["--seq", "''"]),
    (["bench", "--seq", "512..256"], ["--seq", "'512..256'", "range"]),
    (["bench", "--seq", "99999999999999999999"], ["--seq", "'99999999999999999999'"]),
    (["bench", "--batch", "1.5"], ["--batch", "'1.5'"]),
    (["bench", "--dim", "257"], ["--dim", "'257'", "1 to 256"]),
    (["bench", "--v-dim", "0"], ["--v-dim", "'0'", "1 to 256"]),
    (["bench", "--dtype", "fp8"], ["--dtype", "'fp8'", "fp64, fp32, fp16, bf16"]),
    (["bench", "--heads", "8", "--kv-heads", "3"], ["--kv-heads", "'3'", "--heads 8"]),
    (["bench", "--causal", "maybe"], ["--causal", "'maybe'", "yes"]),
    (["bench", "--window", "5"], ["--window", "'5'", "LEFT,RIGHT"]),
    (["bench", "--window", "-2,0"], ["--window", "'-2,0'"]),
    (["bench", "--align", "centre"], ["--align", "'centre'", "bottom_right, top_left"]),
    (["bench", "--block-mask", "diagonal"], ["--block-mask", "'diagonal'", "local:RADIUS"]),
    (["bench", "--block-mask", "local"], ["--block-mask", "'local'", "local:RADIUS"]),
    (["bench", "--block-mask", "strided:0"], ["--block-mask", "'strided:0'"]),
    (["bench", "--block-mask", "random:2"], ["--block-mask", "'random:2'", "density"]),
    (["bench", "--block-size", "0"], ["--block-size", "'0'"]),
    (["bench", "--softcap", "-1"], ["--softcap", "'-1'", "at least 0"]),
    (["bench", "--dropout", "1"], ["--dropout", "'1'", "below 1"]),
    (["bench", "--direction", "sideways"], ["--direction", "'sideways'", "forward, backward"]),
    (["bench", "--algorithm", "flash9"], ["--algorithm", "'flash9'", "standard"]),
    (["bench", "--threads", "-1"], ["--threads", "'-1'"]),
    (["bench", "--device", "tpu"], ["--device", "'tpu'", "cpu"]),
    (["bench", "--memory-budget", "lots"], ["--memory-budget", "'lots'", "16GiB"]),
    (["bench", "--warmup", "x"], ["--warmup", "'x'"]),
    (["bench", "--repetitions", "0"], ["--repetitions", "'0'"]),
    (["bench", "--repetitions", "3", "--min-time", "1"], ["--repetitions", "--min-time"]),
    (["bench", "--atol", "1"], ["--atol", "--check"]),
    (["bench", "--check", "--atol", "-1"], ["--atol", "'-1'"]),
    (["bench", "--json", "/no/such/folder/rows"], ["--json", "'/no/such/folder/rows'"]),
    (["bench", "--json", "-", "--csv", "-"], ["--json", "--csv"]),
    (["bench", "--batch", "1000000000", "--seq", "1000000000"], ["--batch", "--seq"]),
    (["explain", "--seq", "1,2"], ["one value"]),
    (["explain", "--algorithm", "standard,flash2"], ["--algorithm", "one"]),
    (["lab", "sequense"], ["'sequense'", "did you mean sequence?", "out_of_memory"]),
    (["lab", "--quick", "--full"], ["--quick", "--full"]),
    (["lab", "--resume"], ["--resume", "--out"]),
    (["lab", "--resume", "--out", "/no/such/run"], ["--resume", "'/no/such/run'", "results.jsonl"]),
    (["lab", "--study", "t5"], ["--study", "'t5'", "did you mean t4?", "sweeps"]),
    (["lab", "--study", "t4", "--quick"], ["--study", "--quick"]),
    (["lab", "--study", "t4", "t4_head"], ["'t4_head'", "did you mean t4_heads?"]),
    (["lab", "batch", "--batch", "4"], ["--batch", "batch", "leave"]),
    (["lab", "causal", "--causal"], ["--causal", "causal"]),
    (["lab", "--dtype", "fp8"], ["--dtype", "'fp8'", "bf16"]),
    (["lab", "--dropout", "0.1,0.2"], ["--dropout", "'0.1,0.2'", "one value"]),
    (["lab", "--memory-budget", "lots"], ["--memory-budget", "'lots'", "16GiB"]),
    (["lab", "--device", "tpu"], ["--device", "'tpu'", "cpu"]),
    (["lab", "--device", "cuda:999"], ["--device", "'cuda:999'", "not usable here"]),
    (["lab", "--out", "/proc/nowhere"], ["--out", "'/proc/nowhere'"]),
    (["peak", "--threads", "-1"], ["--threads", "'-1'", "0 to 4096"]),
    (["peak", "--repetitions", "0"], ["--repetitions", "'0'", "1 to 10000"]),
    (["peak", "--ceilings", "tensor_cores"], ["--ceilings", "'tensor_cores'", "fp32_fma", "memory_read"]),
    (["explain", "--assume-gpu", "8.6"], ["--assume-gpu", "--device cuda"]),
    (["verify", "--device", "tpu"], ["--device", "'tpu'"]),
    (["verify", "--dtype", "int8"], ["--dtype", "'int8'", "fp64, fp32, fp16, bf16"]),
    (["verify", "--kernel", "nothing"], ["--kernel", "'nothing'", "cpu."]),
    (["verify", "--feature", "nothing"], ["--feature", "'nothing'", "causal"]),
    (["verify", "--case", "nothing"], ["--case", "'nothing'"]),
    (["verify", "--tolerance", "-1"], ["--tolerance", "'-1'"]),
    (["verify", "--json", "--markdown"], ["--json", "--markdown"]),
    (["fit"], ["--memory", "16GiB"]),
    (["fit", "--memory", "lots"], ["--memory", "'lots'", "16GiB"]),
    (["fit", "--memory", "0"], ["--memory", "'0'"]),
    (["fit", "--memory", "1GiB", "--width", "0"], ["--width", "'0'", "1 to"]),
    (["fit", "--memory", "1GiB", "--depth", "x"], ["--depth", "'x'", "integer"]),
    (["fit", "--memory", "1GiB", "--width", "100", "--heads", "3"], ["--heads", "'3'", "--width 100"]),
    (["fit", "--memory", "1GiB", "--width", "1024", "--heads", "2"], ["--heads", "'2'", "at least 4"]),
    (["fit", "--memory", "1GiB", "--dtype", "fp8"], ["--dtype", "'fp8'", "fp64, fp32, fp16, bf16"]),
    (["fit", "--memory", "1GiB", "--dtype", "fp16,bf16"], ["--dtype", "'fp16,bf16'", "one"]),
    (["fit", "--memory", "1GiB", "--causal", "yes,no"], ["--causal", "'yes,no'", "one"]),
    (["fit", "--memory", "1GiB", "--vocab", "-1"], ["--vocab", "'-1'"]),
    (["fit", "--memory", "1GiB", "--train", "--optimizer", "lion"], ["--optimizer", "'lion'", "adam, sgd, none"]),
    (["fit", "--memory", "1GiB", "--train", "--optimizer", "adam,sgd"], ["--optimizer", "'adam,sgd'", "one"]),
    (["fit", "--memory", "1GiB", "--optimizer", "sgd"], ["--optimizer", "--train"]),
    (["fit", "--memory", "1GiB", "--checkpoint"], ["--checkpoint", "--train"]),
    (["fit", "--memory", "1GiB", "--train", "--kv-cache"], ["--kv-cache", "--train"]),
    (["fit", "--memory", "1GiB", "--device", "tpu"], ["--device", "'tpu'", "cpu"]),
    (["fit", "--memory", "1GiB", "--assume-gpu", "8.6"], ["--assume-gpu", "--device cuda"]),
]


@pytest.mark.parametrize("arguments, parts", WRONG, ids=[" ".join(case[0]) or "nothing" for case in WRONG])
def test_wrong_arguments_get_one_line_and_exit_2(arguments, parts):
    result = run(*arguments)
    assert result.returncode == 2, result
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and result.stderr.endswith("\n"), result.stderr
    assert result.stderr.startswith("tessera"), result.stderr
    for part in parts:
        assert part in result.stderr, result.stderr


# --- info ---------------------------------------------------------------------------------------------


def test_info():
    text = succeed("info")
    for part in ("Build", "Machine", "Kernels", "cpu.flash2", "cpu.standard", "causal", "dropout"):
        assert part in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_info_json():
    info = json.loads(succeed("info", "--json"))
    assert info["devices"][0]["device"] == "cpu"
    assert info["available_memory_bytes"] > 0 and info["commit"]
    kernels = {(kernel["name"], kernel["direction"]) for kernel in info["kernels"]}
    for name in ("cpu.standard", "cpu.flash2"):
        assert {(name, "forward"), (name, "backward")} <= kernels
    for kernel in info["kernels"]:
        assert kernel["features"] and not set(kernel["features"]) & set(kernel["missing"])


# --- explain ------------------------------------------------------------------------------------------


def test_explain_says_what_runs_and_why_not_the_others():
    text = succeed("explain", "--seq", "4096", "--causal", "--dtype", "bf16")
    for part in ("cpu.flash2", "tiles", "workspace", "traffic", "50.0%", "not chosen", "cpu.standard"):
        assert part in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_explain_plans_for_gpus_that_are_not_there():
    text = succeed("explain", "--device", "cuda", "--assume-gpu", "9.0", "--seq", "512", "--algorithm", "minimal")
    assert "cuda.minimal" in text and "shared" in text
    for gpu, dtype, kernel in (("7.5", "fp16", "cuda.flash2_sm75"), ("8.6", "bf16", "cuda.flash2"),
                               ("9.0", "bf16", "cuda.hopper"), ("10.0", "fp32", "cuda.flash2")):
        for direction in ("forward", "backward"):
            text = succeed("explain", "--device", "cuda", "--assume-gpu", gpu, "--seq", "4096", "--dtype", dtype,
                           "--direction", direction)
            assert kernel in text, text
    result = run("explain", "--device", "cuda", "--assume-gpu", "6.1")
    assert result.returncode == 2 and "must be one of 7.5" in result.stderr


def test_gpus_are_measured_or_the_reason_is_given():
    devices = [device["device"] for device in json.loads(succeed("info", "--json"))["devices"]]
    verify = run("verify", "--device", "cuda", "--dtype", "fp32", "--feature", "dense")
    bench = run("bench", "--device", "cuda", "--seq", "64", "--repetitions", "2", "--algorithm", "minimal", "--json", "-")
    row = json.loads(bench.stdout.splitlines()[0])
    if "cuda:0" in devices:
        assert verify.returncode == 0, verify
        assert row["status"] == "ok" and row["gpu"] and row["peak_extra_bytes"] == 0
    else:
        assert verify.returncode == 2 and "cuda:0 cannot be used: " in verify.stderr
        assert row["status"] == "unsupported" and "cuda:0 cannot be used: " in row["reason"]


def test_explain_json_matches_the_arithmetic():
    plan = json.loads(
        succeed("explain", *"--batch 2 --seq 128 --seq-k 256 --heads 4 --dim 32 --json".split())
    )
    pairs = 2 * 4 * 128 * 256
    assert plan["visible_pairs"] == pairs
    assert plan["flops"] == 4 * pairs * 32
    assert plan["traffic_bytes"] >= plan["minimum_bytes"] > 0
    assert plan["rejected"] and all(entry["reason"] for entry in plan["rejected"])


@needs_standard
def test_explain_takes_both_directions_and_one_algorithm():
    arguments = "--seq 64 --direction forward,backward --algorithm standard --json".split()
    plans = json.loads(succeed("explain", *arguments))
    assert [plan["direction"] for plan in plans] == ["forward", "backward"]
    assert {plan["kernel"] for plan in plans} == {"cpu.standard"}


@pytest.mark.parametrize(
    "options, share",
    [
        (["--causal"], 0.5),
        (["--causal", "no"], 1),
        (["--window", "63,0"], None),
        (["--window", "none"], 1),
        (["--align", "top-left", "--causal"], None),
        (["--block-mask", "local:0", "--block-size", "128"], 0.125),
        (["--block-mask", "random:0.25", "--block-size", "64"], 0.25),
        (["--block-mask", "butterfly"], None),
        (["--block-mask", "bigbird:1,1,2", "--block-size", "64"], None),
        (["--block-mask", "fixed:4,1"], None),
        (["--bias", "--alibi", "--softcap", "20", "--dropout", "0.1"], 1),
        (["--kv-heads", "2", "--v-dim", "48"], 1),
    ],
)
def test_explain_understands_every_option(options, share):
    plan = json.loads(succeed("explain", "--seq", "1024", *options, "--json"))
    if share is not None:
        assert plan["visible_pairs"] == pytest.approx(share * 8 * 1024 * 1024, rel=0.01)
    assert succeed("explain", "--seq", "1024", *options)


def test_explain_draws_small_block_masks():
    text = succeed("explain", *"--seq 256 --block-mask local:0 --block-size 64".split())
    assert "#...\n  .#..\n  ..#.\n  ...#\n" in text


def test_unsupported_is_one_line_and_exit_1():
    result = run("explain", "--seq", "64", "--algorithm", "flash3")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "cpu.flash2" in result.stderr and "flash3" in result.stderr


def test_the_old_name_of_flash3_is_refused_with_the_new_one():
    result = run("explain", "--seq", "64", "--algorithm", "hopper")
    assert result.returncode == 2
    assert "--algorithm 'hopper': hopper is now called flash3" in result.stderr


# --- bench --------------------------------------------------------------------------------------------


@needs_standard
def test_bench_table_fits_and_compares():
    text = succeed("bench", *TINY, *BOTH, *"--seq 32,64 --heads 2 --direction forward,backward".split())
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= 120
    header = next(line for line in lines if "algorithm" in line)
    for column in ("seq", "direction", "median ms", "spread", "TFLOP/s", "extra mem", "max error", "vs standard"):
        assert column in header
    rows = [line for line in lines if re.search(r"\b(standard|flash2)\b.*x$", line)]
    assert len(rows) == 2 * 2 * 2, text
    assert len({len(row) for row in rows}) == 1, "columns are aligned"


@needs_standard
def test_bench_rows_describe_themselves():
    rows = json_rows(*SMALL, *BOTH, *"--batch 1,2 --causal no,yes --direction forward,backward".split())
    assert len(rows) == 2 * 2 * 2 * 2
    for row in rows:
        assert row["status"] == "ok" and row["reason"] is None
        assert row["kernel"].startswith("cpu." + row["algorithm"])
        assert row["version"] and row["machine"] and row["device"] == "cpu" and row["dtype"] == "fp32"
        assert (row["q_length"], row["k_length"], row["q_heads"], row["qk_dim"]) == (32, 32, 2, 16)
        assert row["mask"] in ("full", "causal")
        assert row["repetitions"] == 2 and row["threads"] >= 1
        assert 0 < row["min_ms"] <= row["lower_quartile_ms"] <= row["median_ms"]
        assert row["median_ms"] <= row["upper_quartile_ms"] <= row["max_ms"]
        full = row["mask"] == "full"
        assert row["visible_pairs"] == row["batch"] * 2 * (32 * 32 if full else 32 * 33 // 2)
        pairs = row["batch"] * 2 * 32 * 32 / (1 if full else 2)  # FlashAttention's convention
        assert row["flops"] == 4 * pairs * 16 * (1 if row["direction"] == "forward" else 2.5)
        assert row["tflops"] == pytest.approx(row["flops"] / row["median_ms"] / 1e9)
        assert row["predicted_traffic_bytes"] > 0 and row["tensor_bytes"] > 0
        assert row["peak_extra_bytes"] == row["planned_workspace_bytes"]
        if row["direction"] == "forward":
            assert row["sampled_rows"] == 16
            assert 0 < row["max_error"] < 1e-5 and row["rms_error"] <= row["max_error"]
            assert row["rms_reference"] > 0.01
        else:
            assert row["max_error"] is None
        if row["algorithm"] == "standard":
            assert row["speedup_over_standard"] == 1
        else:
            assert row["speedup_over_standard"] > 0


@pytest.mark.parametrize("dtype, bound", [("fp64", 1e-13), ("fp32", 1e-5), ("fp16", 1e-2), ("bf16", 5e-2)])
def test_bench_error_follows_the_type(dtype, bound):
    rows = [row for row in json_rows(*SMALL, "--dtype", dtype) if row["status"] == "ok"]
    assert "flash2" in {row["algorithm"] for row in rows}
    for row in rows:
        assert row["dtype"] == dtype and 0 < row["max_error"] < bound


def test_bench_writes_equal_json_and_csv(tmp_path):
    lines, table = tmp_path / "rows.jsonl", tmp_path / "rows.csv"
    options = ["--block-mask", "none,bigbird:1,0,1", "--block-size", "8", "--window", "9,0"]
    succeed("bench", *SMALL, *BOTH, *options, "--json", str(lines), "--csv", str(table))
    from_json = [json.loads(line) for line in lines.read_text().splitlines()]
    from_csv = list(csv.DictReader(io.StringIO(table.read_text())))
    assert len(from_json) == len(from_csv) == 4
    assert from_csv[2]["mask"] == "window:9,0+bigbird:1,0,1/8"
    for row, cells in zip(from_json, from_csv):
        assert list(row) == list(cells)
        for key, cell in cells.items():
            if row[key] is None:
                assert cell == ""
            elif isinstance(row[key], bool):
                assert cell == str(row[key]).lower()
            elif isinstance(row[key], (int, float)):
                assert float(cell) == pytest.approx(row[key])
            else:
                assert cell == row[key]


def test_bench_measures_repeated_values_once():
    rows = json_rows(*TINY, *"--seq 32,32 --seq 32 --heads 2 --algorithm flash2,flash2".split())
    assert len(rows) == 1


def test_bench_csv_to_standard_output():
    rows = list(csv.DictReader(io.StringIO(succeed("bench", *SMALL, "--csv", "-"))))
    kernels = json.loads(succeed("info", "--json"))["kernels"]
    here = {kernel["algorithm"] for kernel in kernels if kernel["device"] == "cpu"}
    assert {row["algorithm"] for row in rows} == here, "every algorithm of the machine by default"


def test_bench_ranges_and_every_score_option():
    rows = json_rows(
        *"--seq 16..64 --heads 4 --kv-heads 2 --dim 8 --v-dim 12 --bias --alibi --softcap 0,9".split(),
        *"--dropout 0.2 --threads 1,2 --algorithm flash2 --repetitions 1 --warmup 0".split(),
        *["--direction", "forward,backward"],
    )
    assert len(rows) == 3 * 2 * 2 * 2
    assert {row["q_length"] for row in rows} == {16, 32, 64}
    assert all(row["status"] == "ok" for row in rows), [row["reason"] for row in rows]
    assert all(row["max_error"] < 1e-5 for row in rows if row["direction"] == "forward")


@needs_standard
def test_bench_memory_budget_makes_rows():
    rows = json_rows(*BOTH, *"--seq 64,512 --heads 4 --dim 16 --memory-budget 2MiB --repetitions 1".split())
    status = {(row["q_length"], row["algorithm"]): row for row in rows}
    assert status[64, "standard"]["status"] == "ok"
    assert status[64, "flash2"]["status"] == "ok"
    assert status[512, "flash2"]["status"] == "ok"
    refused = status[512, "standard"]
    assert refused["status"] == "out_of_memory"
    assert "2.00 MiB" in refused["reason"]
    assert refused["median_ms"] is None and refused["planned_workspace_bytes"] > 2**20
    text = succeed("bench", *BOTH, *"--seq 512 --heads 4 --dim 16 --memory-budget 2MiB --repetitions 1".split())
    assert re.search(r"standard\s+out of memory: needs", text)


def test_bench_measures_both_directions_in_one_row():
    rows = json_rows(*SMALL, *"--algorithm flash2 --direction forward,backward,both".split())
    assert [row["direction"] for row in rows] == ["forward", "backward", "forward + backward"]
    assert rows[2]["flops"] == rows[0]["flops"] + rows[1]["flops"]
    assert rows[2]["executed_flops"] == rows[0]["executed_flops"] + rows[1]["executed_flops"]
    for row in rows:
        assert row["status"] == "ok" and row["peak_bytes"] == row["tensor_bytes"] + row["peak_extra_bytes"]
        assert row["host_ms"] == row["median_ms"], "on a CPU"
        assert row["executed_flops"] > row["flops"] and row["verdict"] is None


@needs_standard
def test_bench_checks_results():
    check = [*SMALL, *"--algorithm standard,flash1,flash2 --direction forward,both --check".split()]
    rows = [json.loads(line) for line in succeed("bench", *check, "--json", "-").splitlines()]
    assert [row["verdict"] for row in rows] == ["agrees"] * 6
    assert [row["compared_with"] for row in rows] == ["fp64", "standard", "standard"] * 2
    assert all(0 <= row["max_difference"] <= row["atol"] == 0.01 for row in rows)
    assert len(re.findall(r"agrees: [0-9.e-]+", succeed("bench", *check))) == 6
    result = run("bench", *check, "--atol", "1e-9", "--dtype", "bf16")
    assert result.returncode == 1 and "differs: " in result.stdout
    assert re.search(r"tessera bench: \d of 6 compared rows differ by more than --atol 1e-09\n$", result.stderr)
    alone = run("bench", *SMALL, *"--algorithm flash2 --direction backward --check".split())
    assert alone.returncode == 2 and "name two algorithms" in alone.stderr


def test_bench_goes_on_after_rows_that_cannot_be():
    rows = json_rows(*TINY, *"--seq 32 --heads 3,4 --kv-heads 2 --algorithm flash3,flash2".split())
    assert [row["status"] for row in rows] == ["invalid", "invalid", "unsupported", "ok"]
    assert "--kv-heads" in rows[0]["reason"]
    assert "flash3" in rows[2]["reason"] and "\n" not in rows[2]["reason"]


def test_bench_without_any_result_fails():
    result = run("bench", *SMALL, "--algorithm", "flash3")
    assert result.returncode == 1
    assert "unsupported" in result.stdout
    assert result.stderr == "tessera bench: no row could be measured\n"


def start(*arguments, **options):
    return subprocess.Popen(
        [BINARY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def test_bench_keeps_finished_rows_when_interrupted(tmp_path):
    lines, table = tmp_path / "rows.jsonl", tmp_path / "rows.csv"
    process = start(
        *["bench", "--seq", "64", "--heads", "1", "--dim", "16", "--batch", "1..100+1"],
        *["--min-time", "0.1", "--algorithm", "automatic,flash2"],
        *["--json", str(lines), "--csv", str(table)],
    )
    deadline = time.monotonic() + 120
    while not (lines.exists() and lines.read_text().count("\n") >= 4):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.endswith("tessera bench: interrupted\n")
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert 4 <= len(rows) < 200 and lines.read_text().endswith("\n")
    assert len(list(csv.DictReader(io.StringIO(table.read_text())))) == len(rows)
    printed = re.findall(r"^ *\d+ +(?:automatic|flash2) .*\d$", output, re.MULTILINE)
    assert len(printed) == len(rows)


def test_closed_pipe_is_quiet():
    process = start("bench", *"--seq 64 --heads 1 --dim 8 --batch 1..50+1 --min-time 0.1".split())
    assert process.stdout.readline().startswith("tessera")
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=120) == -signal.SIGPIPE
    process.stderr.close()
    assert errors == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_full_disk_is_reported():
    result = run("bench", *SMALL, "--json", "/dev/full")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "--json '/dev/full'" in result.stderr and "No space left" in result.stderr
    with open("/dev/full", "w") as full:
        result = subprocess.run([BINARY, "info"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1
    assert "standard output" in result.stderr


def on_terminal(*arguments, env=None):
    """Everything the command writes to a terminal, and its exit code."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", **(env or {})}
    process = subprocess.Popen([BINARY, *arguments], stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    output = b""
    try:
        while chunk := os.read(master, 65536):
            output += chunk
    except OSError:  # how a terminal says that the other side is gone
        pass
    os.close(master)
    return output.decode(), process.wait(timeout=120)


def test_terminal_gets_progress_and_colour_unless_told_otherwise():
    arguments = ["verify", "--feature", "causal", "--dtype", "fp32"]
    output, code = on_terminal(*arguments, env={"NO_COLOR": ""})
    assert code == 0
    assert "\r\033[K[  0%] verifying fp32 causal" in output
    assert "\033[32m" in output
    output, code = on_terminal(*arguments, env={"NO_COLOR": "1"})
    assert code == 0
    assert not re.search(r"\033\[\d+m", output)


# --- completion and manual pages ------------------------------------------------------------------------


def completed(*words):
    """What bash offers for the last word."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = f"{succeed('completion', 'bash')}\nCOMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}\n_tessera\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-u", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_bash_completes_commands_options_and_values():
    assert completed("tessera", "be") == ["bench"]
    assert {"info", "bench", "lab", "report"} <= set(completed("tessera", ""))
    assert completed("tessera", "bench", "--dt") == ["--dtype"]
    assert completed("tessera", "bench", "--dtype", "b") == ["bf16"]
    assert completed("tessera", "lab", "--study", "") == ["t4", "sweeps", "l4", "tables", "paper"]
    assert completed("tessera", "lab", "block") == ["block_size"]


def test_zsh_has_every_command_and_option():
    script = succeed("completion", "zsh")
    assert script.startswith("#compdef tessera\n") and "'bench:Measure algorithms" in script
    assert "'*--study[Repeat a study" in script and "(t4 sweeps l4 tables paper)" in script
    if subprocess.run(["sh", "-c", "command -v zsh"], capture_output=True).returncode == 0:
        assert subprocess.run(["zsh", "-n"], input=script, text=True).returncode == 0


@pytest.mark.parametrize("command", ["", "bench", "lab", "report"])
def test_manual_pages_are_the_help(command):
    page = succeed("man", *([command] if command else []))
    assert page.startswith(f".TH TESSERA{'-' * bool(command)}{command.upper()} 1 ")
    for section in ("NAME", "SYNOPSIS", "OPTIONS", "DESCRIPTION"):
        assert f"\n.SH {section}\n" in page
    for option in re.findall(r"^  (?:-h,)?(--[a-z-]+)", succeed(*([command] if command else []), "--help"), re.MULTILINE):
        assert "\\fB" + option.replace("-", "\\-") + "\\fR" in page, option
    for line in page.splitlines():
        assert not line.startswith(("'", ".")) or line.split()[0] in (".TH", ".SH", ".SS", ".TP", ".B", ".nf", ".fi"), line


# --- lab ----------------------------------------------------------------------------------------------


def test_lab_lists_the_studies():
    text = succeed("lab", "--list")
    for study in ("t4", "sweeps", "l4", "tables", "paper"):
        assert f"\n{study}: " in text, study
    assert "divided by 4" in text and "python -m tessera.lab training --study" in text
    one = succeed("lab", "--study", "t4", "--list")
    for figure in range(1, 13):
        assert f"Figure {figure}: " in one, figure
    assert "--heads 1..16,24,32,64" in one


def test_lab_settings_are_kept_and_checked(tmp_path):
    words = [*"lab summary --quick --device cpu --causal --dtype bf16 --threads 1 --algorithm flash2".split(), "--out", str(tmp_path / "out")]
    succeed(*words)
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and {row["algorithm"] for row in rows} == {"flash2"}
    for row in rows:
        assert (row["mask"], row["dtype"], row["threads"], row["scale"]) == ("causal", "bf16", 1, "quick")
        assert row["settings"] == "--causal yes --dtype bf16 --threads 1" and row["usable_cpus"] >= 1 and row["study_factor"] is None
    assert "0 rows measured" in succeed(*words, "--resume")
    other = run(*[word if word != "bf16" else "fp32" for word in words], "--resume")
    assert other.returncode == 2 and "'--causal yes --dtype bf16 --threads 1'" in other.stderr.replace('"', "'")
    budget = run(*words, "--memory-budget", "1GiB", "--resume")
    assert budget.returncode == 2 and "--memory-budget 1.00 GiB" in budget.stderr


def test_lab_repeats_a_study_with_its_factor(tmp_path):
    out = tmp_path / "out"
    text = succeed(*"lab --study t4 t4_summary --device cpu --out".split(), str(out))
    assert "every sequence length divided by 4" in text
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {(row["scale"], row["study_factor"], row["q_length"], row["batch"], row["mask"]) for row in rows} == {
        ("study", 4, 128, 16, "causal")
    }
    assert {row["direction"] for row in rows} == {"forward", "backward", "forward + backward"}
    described = json.loads((out / "experiments.json").read_text())["experiments"]
    assert {experiment["name"][:3] for experiment in described} == {"t4_"}


def test_report_draws_rows_of_bench(tmp_path):
    rows = tmp_path / "rows.jsonl"
    succeed("bench", *TINY, *"--seq 32,64,128 --heads 2 --algorithm flash2 --causal no,yes".split(), "--json", str(rows))
    text = succeed("report", str(rows), "--out", str(tmp_path / "page.html"))
    assert "1 experiment, 3 figures" in text
    page = (tmp_path / "page.html").read_text()
    assert "Peak memory" in page and "causal" in page


# --- peak ---------------------------------------------------------------------------------------------


def test_peak_names_every_ceiling_once_per_thread_count():
    report = json.loads(succeed("peak", "--threads", "2,1,1", "--repetitions", "2", "--json"))
    names = ["fp32_fma", "bf16_dot", "bf16_amx", "l1_read", "l2_read", "l3_read", "memory_read"]
    peaks = report["peaks"]
    assert [(peak["threads"], peak["name"]) for peak in peaks] == [(t, name) for t in (1, 2) for name in names]
    assert report["machine"] and report["version"] and report["repetitions"] == 2
    for peak in peaks:
        assert peak["unit"] == ("GB/s" if peak["name"].endswith("_read") else "GFLOP/s")
        if peak["missing"] is None:
            assert 0 < peak["min"] <= peak["lower_quartile"] <= peak["median"]
            assert peak["median"] <= peak["upper_quartile"] <= peak["max"]
        else:
            assert peak["median"] is None and peak["name"].startswith("bf16_")


def test_peak_table_and_choice():
    text = succeed("peak", *"--ceilings memory_read,fp32-fma --threads 1 --repetitions 1".split())
    lines = text.splitlines()
    assert lines[1].split() == ["ceiling", "instructions", "threads", "median", "unit", "spread"]
    assert [line.split()[0] for line in lines[3:]] == ["fp32_fma", "memory_read"]


# --- verify -------------------------------------------------------------------------------------------


@needs_standard
def test_verify_table():
    kernels = ["--kernel", "cpu.flash2,cpu.standard"]
    text = succeed("verify", "--feature", "causal,GQA", "--dtype", "fp32,bf16", *kernels)
    lines = text.splitlines()
    assert lines[0].split() == ["cpu.flash2", "cpu.standard"]
    assert lines[1].split() == ["feature", "fp32", "bf16", "fp32", "bf16"]
    assert re.match(r"causal( +\u2713 0\.\d\d){4}$", lines[3])
    assert re.match(r"GQA( +\u2713 0\.\d\d){4}$", lines[4])
    assert re.search(r"\d+ passed, 0 failed in ", text)
    assert max(len(line) for line in lines) <= 120


def test_verify_json_and_markdown():
    selection = ["--feature", "window", "--dtype", "fp16", "--kernel", "cpu.flash2", "--threads", "1"]
    report = json.loads(succeed("verify", *selection, "--json"))
    assert report["ok"] and report["complete"] and report["failed"] == 0
    assert report["passed"] == len(report["cases"]) > 3
    for case in report["cases"]:
        assert (case["kernel"], case["dtype"], case["feature"]) == ("cpu.flash2", "fp16", "window")
        assert case["status"] == "passed" and 0 <= case["worst_share_of_allowed"] <= 1
        assert {"out", "grad_q", "grad_k", "grad_v"} <= {tensor["tensor"] for tensor in case["tensors"]}
    markdown = succeed("verify", *selection, "--markdown")
    assert markdown == "| feature | `cpu.flash2` fp16 |\n|---|---|\n| window | \u2713 |\n"


def test_verify_fails_with_numbers_and_a_command_to_replay():
    """A tolerance far below rounding makes honest results fail, which shows what a failure looks like."""
    result = run("verify", "--feature", "causal", "--dtype", "fp32", "--tolerance", "0.001")
    assert result.returncode == 1
    assert "FAIL" in result.stdout and "allowed" in result.stdout
    replay = re.search(r"again: tessera (verify .*)", result.stdout).group(1)
    again = subprocess.run(f"{BINARY} {replay}", shell=True, capture_output=True, text=True)
    assert again.returncode == 1
    assert again.stdout.count("again: ") == 1
    report = json.loads(
        run("verify", "--feature", "causal", "--dtype", "fp32", "--tolerance", "0.001", "--json").stdout
    )
    assert not report["ok"] and report["failed"] > 0


def wait_for_handler(process, number):
    """Until the process catches the signal: under a sanitizer on a busy machine that takes seconds."""
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline and process.poll() is None
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        caught = int(re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE).group(1), 16)
        if caught >> (number - 1) & 1:
            return
        time.sleep(0.02)


def test_verify_interrupted():
    process = start("verify", "--json")
    wait_for_handler(process, signal.SIGINT)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "tessera verify: interrupted" in errors
    assert json.loads(output)["complete"] is False


# --- fit ----------------------------------------------------------------------------------------------

MODEL = ["--width", "2048", "--depth", "24", "--heads", "16", "--dtype", "bf16"]


def test_fit_shows_lengths_and_what_takes_the_memory():
    text = succeed("fit", "--memory", "16GiB", *MODEL)
    assert re.search(r"^flash2 +\d+ ", text, re.MULTILINE)
    lengths = {m[1]: int(m[2]) for m in re.finditer(r"^(\S+) +█+ (\d+)$", text, re.MULTILINE)}
    bars = {m[1]: len(m[2]) for m in re.finditer(r"^(\S+) +(█+) \d+$", text, re.MULTILINE)}
    assert max(bars.values()) == bars["flash2"] == 60
    for name, length in lengths.items():
        assert bars[name] == round(60 * length / lengths["flash2"])
    assert "█ parameters  + at work" in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_fit_that_cannot_says_why_and_what_would():
    text = succeed("fit", "--memory", "16GiB", *MODEL, "--train")
    assert "Nothing fits" in text and "take 18.0 GiB" in text and "optimizer 13.5 GiB" in text
    options, length = re.search(r"^  (--depth \d+) +N = (\d+)$", text, re.MULTILINE).groups()
    smaller = [options.split()[1] if word == "24" else word for word in MODEL]
    replay = json.loads(succeed("fit", "--memory", "16GiB", *smaller, "--train", "--json"))
    assert replay[-1]["longest"] == int(length) >= 2048
    assert max(len(line) for line in text.splitlines()) <= 120


def test_fit_json_adds_up():
    for row in json.loads(succeed("fit", "--memory", "24GiB", *MODEL, "--train", "--json")):
        parts = [row[field] for field in row if field.endswith("_bytes") and field != "total_bytes"]
        assert row["longest"] % 64 == 0 and row["longest"] > 0
        assert sum(parts) == row["total_bytes"] <= 24 * 2**30


def test_fit_without_a_gpu_says_so():
    if "cuda:0" in succeed("info"):
        pytest.skip("there is a GPU here")
    result = run("fit", "--memory", "16GiB", "--device", "cuda")
    assert result.returncode == 1 and result.stdout == "" and "cuda:0 cannot be used" in result.stderr
