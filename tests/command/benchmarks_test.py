"""The parts of benchmarks/ that need neither PyTorch nor a quiet machine."""

import json
import math
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import cpu_bars  # noqa: E402
import cpu_cells  # noqa: E402
import cpu_page  # noqa: E402
import gpu_bars  # noqa: E402
import hopper_bars  # noqa: E402
import judging  # noqa: E402
import peers_cpu  # noqa: E402
import roofline  # noqa: E402
import tessera_capi  # noqa: E402

STRUCTS = {
    "tsr_device": tessera_capi.Device,
    "tsr_tensor": tessera_capi.Tensor,
    "tsr_block_layout": tessera_capi.BlockLayout,
    "tsr_attention": tessera_capi.Attention,
    "tsr_forward_tensors": tessera_capi.ForwardTensors,
    "tsr_backward_tensors": tessera_capi.BackwardTensors,
    "tsr_execution": tessera_capi.Execution,
    "tsr_shapes": tessera_capi.Shapes,
    "tsr_plan": tessera_capi.Plan,
}
CTYPES = {
    "int32_t": "c_int",
    "int64_t": "c_long",
    "uint64_t": "c_ulong",
    "size_t": "c_ulong",
    "double": "c_double",
    "tsr_dtype": "c_int",
    "tsr_align": "c_int",
    "tsr_algorithm": "c_int",
    "tsr_direction": "c_int",
    "tsr_device_type": "c_int",
    "tsr_device": "Device",
}


def test_variables_hold_for_a_copy_of_the_library_alone():
    library = pathlib.Path(os.environ.get("TESSERA_BINARY", "tessera")).parent.parent / "lib/libtessera.so"
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT / "benchmarks")!r})
from tessera_capi import Tessera, Shapes, Plan, Device, byref, c_int32

def kernel(tessera):
    plan, shapes = Plan(), Shapes(batch=1, q_length=300, k_length=300, q_heads=1, qk_dim=16, dtype=1)
    tessera.check(tessera.library.tsr_plan_shapes(None, byref(shapes), Device(), c_int32(0), None, byref(plan)))
    return plan.kernel.decode()

usual, forced = Tessera({str(library)!r}), Tessera({str(library)!r}, TESSERA_KERNEL="cpu.flash1")
print(kernel(usual), kernel(forced), os.environ.get("TESSERA_KERNEL"))
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TESSERA_")}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    if "ASan runtime does not come first" in ran.stderr or "cannot allocate memory in static TLS" in ran.stderr:
        pytest.skip("Python cannot load a library with sanitizers")
    assert ran.stdout == "cpu.flash2 cpu.flash1 None\n", ran.stderr


@pytest.mark.parametrize("name", STRUCTS)
def test_structs_are_those_of_the_header(name):
    header = (ROOT / "include/tessera/capi.h").read_text()
    body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", header, re.DOTALL).group(1)
    declared = []
    for line in re.sub(r"///.*", "", body).split(";"):
        if match := re.fullmatch(r"\s*(?:const )?(\w+)\s*(\*?)\s*(\w+)(?:\[(\d+)\])?", line):
            kind, pointer, field, count = match.groups()
            declared.append((field, "pointer" if pointer else CTYPES[kind] + (f"_Array_{count}" if count else "")))
    mirrored = []
    for field, kind in STRUCTS[name]._fields_:
        pointer = kind.__name__ in ("c_void_p", "c_char_p") or kind.__name__.startswith("LP_")
        mirrored.append((field, "pointer" if pointer else kind.__name__))
    assert mirrored == declared


def test_bars_judge_each_row_or_their_mean():
    rows = [{"name": name, "kind": "attention", "speed": speed} for name, speed in (("a", 1.0), ("b", 4.0))]
    rows.append({"name": "not measured", "kind": "attention", "speed": None})
    machine = {"amd": True}
    each = judging.Bar("each", "speed", least=2, where={"kind": "attention"})
    assert judging.judge(each, rows, machine)["missed"] == ["a: 1"]
    most = judging.judge(judging.Bar("most", "speed", most=3), rows, machine)
    assert not most["met"] and most["worst"] == 4 and most["missed"] == ["b: 4"]
    mean = judging.judge(judging.Bar("mean", "speed", least=1.9, mean=True), rows, machine)
    assert mean["met"] and mean["worst"] == pytest.approx(2) and mean["cells"] == 2
    assert judging.judge(judging.Bar("none", "speed", 1, where={"kind": "decode"}), rows, machine)["met"] is None
    assert judging.judge(judging.Bar("elsewhere", "speed", 9, machine={"amd": False}), rows, machine) is None


@pytest.mark.parametrize("bars", [cpu_bars.BARS, gpu_bars.BARS, hopper_bars.BARS], ids=["cpu", "gpu", "hopper"])
def test_bars_have_names_of_their_own_and_one_bound(bars):
    assert len({(bar.text, str(bar.machine)) for bar in bars}) == len(bars)
    assert all(math.isfinite(bar.least) != math.isfinite(bar.most) for bar in bars)


def test_wrong_results_have_no_speed(capsys):
    sheet = judging.Sheet({"fp16": 1e-2}, ("ratio",))
    for error in (1e-3, 1e-1, math.inf):
        sheet.add({"name": "a cell", "dtype": "fp16", "error": error, "ratio": 2.0}, "fast")
    assert [row["ratio"] for row in sheet.rows] == [2.0, None, None]
    assert capsys.readouterr().out.count("WRONG") == 2
    bar = judging.Bar("error", "error_share", most=1)
    assert len(judging.judge(bar, sheet.rows, {})["missed"]) == 2


def test_the_last_line_has_the_ratios_and_the_file_has_the_cells(tmp_path, capsys):
    rows = [{"name": "a cell", "ratio": 0.123456789}]
    verdicts = judging.judge_all([judging.Bar("speed", "ratio", 1), judging.Bar("none", "cost", 1)], rows, {})
    out = tmp_path / "result.json"
    assert judging.conclude({"cells": rows}, verdicts, out, brief=True) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "MISSED        speed >= 1: 0.123 over 1 cells" in lines and "not measured  none >= 1" in lines
    last = json.loads(lines[-1])
    assert last == {"met": False, "missed": ["speed"], "ratios": {"speed": 0.12346, "none": None}}
    assert json.loads(out.read_text())["cells"] == [{"name": "a cell", "ratio": 0.12346}]
    assert judging.conclude({"cells": rows}, [], None) == 0


def test_gpu_cells_are_of_one_size():
    for length in gpu_bars.LENGTHS:
        for dim in gpu_bars.HEAD_DIMS:
            batch, heads, *rest = gpu_bars.shape(length, dim)
            assert rest == [length, dim] and batch * length == gpu_bars.TOKENS and heads * dim == gpu_bars.WIDTH
            assert gpu_bars.flops(length, "forward", False) == 4 * batch * heads * length * length * dim
    assert gpu_bars.flops(512, "backward", True) == 1.25 * gpu_bars.flops(512, "forward", False)


def test_flash_attention_3_is_known_for_every_cell():
    for protocol in hopper_bars.PROTOCOLS:
        for dim in gpu_bars.HEAD_DIMS:
            for causal in (False, True):
                ratios = [hopper_bars.flash_attention_3(protocol, dim, causal, n) for n in gpu_bars.LENGTHS]
                assert len(ratios) == 6 and all(0.8 < ratio < 1.4 for ratio in ratios)


def test_causal_masks_are_compared_with_the_same_cell_without():
    def cell(direction, causal, milliseconds):
        common = {"dtype": "bf16", "dim": 64, "length": gpu_bars.CAUSAL_LENGTH, "name": "a cell"}
        return {"section": direction, "direction": direction, "causal": causal, "tessera_ms": milliseconds, **common}

    rows = [cell("forward", False, 4.0), cell("forward", True, 2.0), cell("backward", False, None)]
    rows += [cell("backward", True, 1.0), {"section": "memory", "name": "another"}]
    gpu_bars.derive(rows)
    assert [row.get("causal_cost") for row in rows] == [None, 0.5, None, None, None]
    bar = next(bar for bar in gpu_bars.BARS if bar.value == "causal_cost")
    assert judging.judge(bar, rows, {})["met"]


def test_peers_gpu_says_why_it_measures_nothing(tmp_path):
    library = tmp_path / "libtessera.so"
    library.touch()
    command = [sys.executable, ROOT / "benchmarks/peers_gpu.py", "--library", library]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # no GPU, where there is one
    skipped = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert skipped.returncode == 77 and skipped.stdout.startswith("SKIP: PyTorch ")
    skipped = subprocess.run([*command, "--algorithm", "flash3"], capture_output=True, text=True, env=environment)
    assert skipped.returncode == 77
    for option, value in (("--algorithm", "hoper"), ("--sections", "foward"), ("--head-dims", "96"), ("--seconds", "0"), ("--library", "no")):
        refused = subprocess.run([*command, option, value], capture_output=True, text=True)
        assert refused.returncode == 2 and option in refused.stderr


def test_roofline_draws_every_cell(tmp_path):
    def cell(kind, **more):
        common = {"dtype": "fp32", "threads": 2, "layout": "bhnd", "flops": 1e9, "tessera_gflops": 90.0}
        return {"kind": kind, **common, **more}

    sizes = {"length": 1024, "dim": 64, "causal": False, "torch_gflops": 50.0, "minimum_bytes": 4e6}
    result = {
        "machine": "A <CPU>, 2 CPUs",
        "date": "2026-01-01",
        "commit": "abc",
        "versions": {"tessera": "1", "torch": "2"},
        "peaks": [
            {"name": "fp32_fma", "threads": 2, "rate": 100.0},
            {"name": "memory_read", "threads": 2, "rate": 30.0},
        ],
        "cells": [
            cell("attention", direction="forward", **sizes),
            cell("attention", direction="backward", **{**sizes, "minimum_bytes": 3e6}),
            cell("attention", direction="forward", **{**sizes, "causal": True}),
            cell("decode", torch_gbps=1.0, minimum_bytes=5e8),
        ],
    }
    source, figure = tmp_path / "result.json", tmp_path / "figure.svg"
    source.write_text(json.dumps(result))
    command = [sys.executable, ROOT / "benchmarks/roofline.py", source, "--out", figure]
    subprocess.run(command, check=True)
    drawing = xml.etree.ElementTree.parse(figure).getroot()
    texts = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("1024\u00d764") == 2 and "decode" in texts
    assert "Attention on A <CPU>, 2 threads" in texts
    assert any("30 GB/s" in text for text in texts) and any("100 GFLOP/s" in text for text in texts)
    refused = subprocess.run([*command, "--threads", "3"], capture_output=True, text=True)
    assert refused.returncode == 2 and "--threads 3" in refused.stderr


def test_roofline_draws_the_rows_against_pytorch():
    row = {"peer": "pytorch", "supported": True, "group": "decode", "keys": 32768, "flops": 4e9, "minimum_bytes": 2e9, "peer_gflops": 10.0}
    short, lacking, other = row | {"keys": 2048}, row | {"supported": False}, row | {"peer": "openvino"}
    cells = roofline.cells_against_pytorch({"rows": [row, short, lacking, other]}, "bhnd")
    assert [(cell["kind"], cell["torch_gbps"], cell["layout"]) for cell in cells] == [("decode", 5.0, "bhnd")]
    assert roofline.cells_against_pytorch({"cells": ["as they are"]}, "bhnd") == ["as they are"]


def test_the_benchmarks_time_by_the_harness_of_the_lab():
    """It is loaded from its file, so the package need not be there; results belong to the call that returned them."""
    harness = judging.compare
    calls, clock = {0: lambda: "ours", 1: lambda: "theirs"}, harness.WallClock()
    assert 0 <= harness.rehearse(calls, clock) < 1
    times, results = harness.interleave(calls, clock, lambda rounds, _: rounds == 4)
    assert results == {0: "ours", 1: "theirs"} and [len(taken) for taken in times.values()] == [4, 4]
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r}); import judging; assert 'tessera' not in sys.modules"
    subprocess.run([sys.executable, "-I", "-c", code], check=True)


# --- peers_cpu.py and its page ----------------------------------------------------------------------------------------


def cpu_options(**more):
    every = {"groups": cpu_cells.GROUPS, "dtypes": ["fp32", "bf16", "fp16"], "directions": ["forward", "backward"]}
    return every | {"shapes": cpu_cells.SHAPES, "threads": [1, 2], "quick": False} | more


def test_cpu_cells_have_names_of_their_own_and_count_what_is_visible():
    cells = cpu_cells.cells_of(cpu_options())
    assert len({cell.name for cell in cells}) == len(cells)
    assert {(cell.direction, cell.dtype) for cell in cells if cell.group == "attention"} == {
        (direction, dtype) for direction in ("forward", "backward") for dtype in ("fp32", "bf16")
    }
    assert {cell.keys for cell in cells if cell.group == "decode"} == {2048, 8192, 32768}
    assert {cell.threads for cell in cells if cell.group == "short"} == {cpu_cells.CHOSEN}
    for cell in cells:
        assert cell.heads % cell.kv_heads == 0 and cell.name.startswith(cell.dtype)
        if cell.feature == "window":
            seen = sum(row - column < cpu_cells.WINDOW for row in range(cell.queries) for column in range(row + 1))
            assert cell.visible_pairs() == seen and cell.queries > cpu_cells.WINDOW
        if cell.feature == "padding":
            assert cell.visible_pairs() == cell.queries * sum(cell.padded_lengths()) and cell.padded_lengths()[-1] == cell.keys
    quick = cpu_cells.cells_of(cpu_options(quick=True, groups=["decode", "short"]))
    assert 0 < len(quick) < len([cell for cell in cells if cell.group in ("decode", "short")])


class QuietMachine:
    def ceiling(self, dtype, threads):
        return 100.0 * threads


def cpu_table(peers):
    """A table with one cell, and what each peer made of it: a ratio or a reason."""
    cell = cpu_cells.Cell("attention", "1,8,1024,64 full", "fp32", "forward", 1, 8, 8, 1024, 1024, 64, False, 1)
    table = peers_cpu.Table(QuietMachine(), [1, 2])
    for peer, outcome in peers.items():
        row = cell.facts() | {"supported": isinstance(outcome, float), "reason": outcome}
        if row["supported"]:
            times = {"tessera_seconds": 0.05, "peer_seconds": 0.05 * outcome, "ratio": outcome, "flops": cell.flops()}
            row |= times | {"error": 1e-6, "variant": "bhnd", "layout": "bhnd", "kernel": "cpu.flash2"}
        table.add(peer, row)
    table.note_peaks()
    return table


def test_a_cpu_cell_is_held_against_its_fastest_peer():
    table = cpu_table({"pytorch": 2.0, "zentorch": 1.1, "openvino": "no such operator"})
    (cell,) = table.cells()
    assert cell["ratio"] == 1.1 and cell["best_peer"] == "zentorch"
    assert cell["peers"] == {"pytorch": 2.0, "zentorch": 1.1, "openvino": "no such operator"}
    assert cell["fraction"] == pytest.approx(4 * 8 * 1024**2 * 64 / 0.05 / 100e9) and cell["error_share"] == pytest.approx(0.01)
    machine = {"amd": True, "bf16": "bf16_dot"}
    verdicts = {verdict["bar"]: verdict for verdict in judging.judge_all(cpu_bars.BARS, [cell], machine)}
    assert not verdicts["fp32 forward full, x best peer"]["met"] and not verdicts["fp32 forward full, of peak"]["met"]
    assert verdicts["fp32 backward full, x best peer"]["met"] is None
    (lacking,) = cpu_table({"openvino": "no such operator"}).cells()
    assert "ratio" not in lacking and lacking["peers"]["openvino"] == "no such operator"


def test_times_of_tessera_that_differ_between_processes_are_named(capsys):
    table = cpu_table({"pytorch": 2.0, "zentorch": 1.1})
    peers_cpu.show_disturbed(table.cells())
    assert capsys.readouterr().out == ""
    table.new[0]["tessera_seconds"] *= 1.5
    peers_cpu.show_disturbed(table.cells())
    assert "fp32 forward 1,8,1024,64 full, 1 thread: by 50 %" in capsys.readouterr().out


def test_a_crash_of_a_cpu_peer_costs_one_cell(tmp_path, monkeypatch, capsys):
    worker = tmp_path / "cpu_worker.py"
    worker.write_text("""
import json, os, sys
options = json.loads(sys.argv[1])
print(json.dumps({"event": "ready", "versions": {"a library": "1"}}), flush=True)
for name in ("first", "second", "third"):
    if name not in options["skip"]:
        print(json.dumps({"event": "begin", "cell": name}), flush=True)
        if name == "second":
            print("something is wrong", file=sys.stderr, flush=True)
            os.abort()
        print(json.dumps({"event": "row", "row": {"name": name, "supported": True}}), flush=True)
""")
    monkeypatch.setattr(peers_cpu, "HERE", tmp_path)
    rows = []
    peer = peers_cpu.Worker("a library", {}, rows.append)
    assert peer.run() and peer.versions == {"a library": "1"}
    assert [(row["name"], row["supported"]) for row in rows] == [("first", True), ("second", False), ("third", True)]
    assert rows[1]["reason"] == "ended by signal 6: something is wrong" and len(peer.failures) == 1
    worker.write_text("import sys; sys.exit('no module named x')")
    absent = peers_cpu.Worker("a library", {}, rows.append)
    assert not absent.run() and "no module named x" in absent.failures[0]["reason"] and len(rows) == 3


def test_peers_cpu_refuses_what_it_does_not_know():
    command = [sys.executable, ROOT / "benchmarks/peers_cpu.py"]
    for option, value in (("--peers", "pytorhc"), ("--groups", "decod"), ("--shapes", "1,1,1,1"), ("--library", "no")):
        refused = subprocess.run([*command, option, value], capture_output=True, text=True)
        assert refused.returncode == 2 and option in refused.stderr and value in refused.stderr


def test_a_cpu_result_names_no_paths():
    line = peers_cpu.command_line(["--out", "/a/b.json", "--quick", "--library=/a/c.so", "--groups", "decode", "--command", "/a/d"])
    assert line == "benchmarks/peers_cpu.py --quick --groups decode"


def test_the_cpu_page_shows_every_peer(tmp_path):
    table = cpu_table({"pytorch": 2.0, "zentorch": 1.25, "openvino": "no such operator"})
    rows = list(table.rows.values())
    alone = {"name": "fp32 forward growth, 1 thread", "peers": {}, "growth": 1.07}
    result = {
        "machine": "A <CPU>, 2 CPUs, Linux 6", "usable_cpus": 2, "governor": "performance", "date": "2026-01-01", "commit": "abc",
        "load": {"before": [0.1, 0, 0], "after": [0.2, 0, 0]}, "versions": {"tessera": "1", "torch": "2", "openvino": "3"},
        "peaks": [{"name": "fp32_fma", "threads": 1, "rate": 100.0, "unit": "GFLOP/s"}], "rows": rows,
        "cells": [*table.cells(), alone],
        "bars": [{"bar": "a bar", "met": False, "least": 1.5, "worst": 1.25, "cells": 1, "missed": ["a cell: 1.25"]}],
    }  # fmt: skip
    source, page, figure = (tmp_path / name for name in ("result.json", "page.md", "figure.svg"))
    source.write_text(json.dumps(result))
    parts = "".join(f"<!-- measured: {part} -->\n<!-- end -->\ntext of {part}\n" for part in cpu_page.PARTS)
    page.write_text(parts)
    command = [sys.executable, ROOT / "benchmarks/cpu_page.py", source, "--page", page, "--figure", figure]
    subprocess.run(command, check=True)
    written = page.read_text()
    assert "| fp32 forward 1,8,1024,64 full | 43 | 2.00 | 1.25 | – |  |" in written
    assert "**OpenVINO**: 0 of 1 cells measured; no such operator (fp32 attention)." in written
    assert "**PyTorch**: 1 of 1 cells measured." in written and cpu_page.MISSING in written
    assert "| a bar | ≥ 1.5 | 1.25 | 1 | 1 |" in written and "| fp32 forward growth, 1 thread | 1.07 |" in written
    assert all(f"text of {part}" in written for part in cpu_page.PARTS)
    subprocess.run(command, check=True)
    assert page.read_text() == written
    drawing = xml.etree.ElementTree.parse(figure).getroot()
    texts = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert "Share of the arithmetic peak on A <CPU>, 2 CPUs" in texts and "PyTorch 2" in texts and "1,8,1024,64 full" in texts
    places = [element for element in drawing.iter("{http://www.w3.org/2000/svg}rect") if element.get("class") in ("pytorch", "zentorch")]
    assert len(places) == 4  # two in the legend, two in the panel
    (ours,) = [float(element.get("cx")) for element in drawing.iter("{http://www.w3.org/2000/svg}circle")][1:]
    theirs = [float(element.get("x")) + 3 for element in places if element.get("class") == "pytorch"][1:]
    assert theirs[0] - cpu_page.LEFT == pytest.approx((ours - cpu_page.LEFT) / 2, abs=0.2)
