"""Tessera against the CPU attention of PyTorch, zentorch, OpenVINO and ONNX Runtime, and against the machine.

Each peer has a process of its own, in which its calls and Tessera's are interleaved on the same tensors with the same
number of threads: every ratio is within one process, and no library's threads spin beside another's. A peer may compute
a cell in several ways (layouts, operators); the fastest right one counts. Medians of 15 rounds count; calls shorter than
20 ms are repeated to fill that time. Results are compared first, so that a wrong one cannot win. What a peer lacks is a
row with the reason. Speeds are also shares of what `tessera peak` measures before and after each peer: the larger counts.
GFLOP/s follow FlashAttention's convention: 4 B H N N D forward, half of that for causal masks, 2.5 times that backward.

At the end come the cells with all peers, the bars (cpu_bars.py) and, as the last line, a JSON object; --out has all rows.
Exit codes: 0 every bar is met, 1 some bar is missed (each is printed), 2 wrong arguments, 130 interrupted: the
finished rows are kept.

    make peers-cpu                                          # in an environment of its own, with all peers
    make peers-cpu ARGS="--groups decode,short --add"       # adds to the rows of --out, or replaces them
"""

import argparse
import json
import os
import pathlib
import platform
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time

from cpu_bars import BARS
from cpu_cells import ALONE, GROUPS, PEERS, QUICK_SHAPES, SHAPES, TOLERANCE
from judging import DIRECTIONS, ROOT, commit, conclude, judge_all, listed

HERE = pathlib.Path(__file__).resolve().parent
DTYPES = ("fp32", "bf16", "fp16")
STEADY = 0.95  # the ceilings before and after should differ by no more
AGREEMENT = 0.9  # of Tessera's times in different processes
PATIENCE = 300  # seconds without a row: the process hangs
FAILURES = 5  # crashes after which a peer is given up

# --- the machine
#   --------------------------------------------------------------------------------------


class Machine:
    """The ceilings, from the `tessera` command beside the library, and what may disturb a measurement."""

    def __init__(self, command, threads, plain=False):
        self.command, self.threads, self.plain = command, threads, plain
        self.peaks, self.drift = {}, {}  # (name, threads): the larger measurement; the smaller one as a share of it
        self.vendor = cpu_vendor()

    def measure(self):
        counts = ",".join(str(count) for count in self.threads)
        command = [self.command, "peak", "--threads", counts, "--json"]
        text = subprocess.check_output(command, stderr=subprocess.DEVNULL)
        for peak in json.loads(text)["peaks"]:
            if peak["median"] is not None:
                self.note(peak["name"], peak["threads"], peak["median"])

    def note(self, name, threads, rate):
        largest = max(self.peaks.get((name, threads), rate), rate)
        smallest = min(self.drift.get((name, threads), 1) * self.peaks.get((name, threads), rate), rate)
        self.peaks[name, threads], self.drift[name, threads] = largest, smallest / largest

    def ceiling(self, dtype, threads):
        """The rate of the fastest arithmetic for a type, or None."""
        names = ("bf16_amx", "bf16_dot", "fp32_fma") if dtype == "bf16" and not self.plain else ("fp32_fma",)
        return next((self.peaks[name, threads] for name in names if (name, threads) in self.peaks), None)

    def facts(self):
        names = {name for name, _ in self.peaks}
        best = next((name for name in ("bf16_amx", "bf16_dot") if name in names and not self.plain), "fp32_fma")
        return {"amd": self.vendor == "AuthenticAMD", "bf16": best}

    def describe(self):
        info = json.loads(subprocess.check_output([self.command, "info", "--json"]))
        return {
            "machine": info["machine"],
            "vendor": self.vendor,
            "usable_cpus": usable_cpus(),
            "governor": read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "not visible",
            "huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled"),
            "bf16_instructions": not self.plain,
        }


def read(path):
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return None


def usable_cpus():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def cpu_vendor():
    lines = (read("/proc/cpuinfo") or "").splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), platform.machine())


def unit(ceiling):
    return "GB/s" if ceiling.endswith("_read") else "GFLOP/s"


# --- one process per peer
#   -------------------------------------------------------------------------------


class Worker:
    """The process of a peer, started again after a crash without the cells that it has done and the one that crashed."""

    def __init__(self, peer, options, on_row):
        self.peer, self.options, self.on_row = peer, options, on_row
        self.done, self.versions, self.failures = set(), None, []

    def run(self):
        """True when all cells were done."""
        while len(self.failures) < FAILURES:
            failure, cell = self.attempt()
            if failure is None:
                return True
            self.failures.append({"cell": cell, "reason": failure})
            if cell is None:  # it did not even start
                return False
            print(f"  {cell}: {failure}; going on without it", flush=True)
            self.done.add(cell)
            self.on_row({"name": cell, "supported": False, "reason": failure})
        return False

    def attempt(self):
        """(None, None), or why the process ended and in which cell."""
        arguments = json.dumps(self.options | {"peer": self.peer, "skip": sorted(self.done)})
        command = [sys.executable, HERE / "cpu_worker.py", arguments]
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True)
            try:
                cell, reason = self.listen(process)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            said.seek(0)
            last = next((line.strip() for line in reversed(said.readlines()) if line.strip()), "")
        code = process.returncode
        if reason is None and code == 0:
            return None, None
        ended = f"ended by signal {-code}" if code < 0 else f"ended with status {code}"
        return reason or f"{ended}: {last[:200]}".rstrip(": "), cell

    def listen(self, process):
        """The cell at work when the process ended, and why it was given up, if it was."""
        lines, cell = queue.Queue(), None

        def forward():
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=forward, daemon=True).start()
        while True:
            try:
                line = lines.get(timeout=PATIENCE)
            except queue.Empty:
                return cell, f"no result for {PATIENCE} s"
            if line is None:
                process.wait()
                return cell, None
            cell = self.hear(json.loads(line), cell)

    def hear(self, event, cell):
        if event["event"] == "ready":
            self.versions = event["versions"]
            return cell
        if event["event"] == "begin":
            return event["cell"]
        self.done.add(cell)
        self.on_row(event["row"])
        return None


# --- rows
#   -----------------------------------------------------------------------------------------------


class Table:
    """The rows of all peers, and the cells that come of them."""

    def __init__(self, machine, threads, named=None):
        self.machine, self.all_threads, self.commit = machine, max(threads), named
        self.rows = {}  # by (peer, name)
        self.new = []  # rows of this run

    def add(self, peer, row):
        row = {"peer": peer, "commit": self.commit} | row
        if row.get("error") is not None:
            row["error_share"] = row["error"] / TOLERANCE[row["dtype"]]
        if row.get("ratio") is not None:
            row["tessera_gflops"] = row["flops"] / row["tessera_seconds"] / 1e9
            row["peer_gflops"] = row["flops"] / row["peer_seconds"] / 1e9
        self.rows[peer, row["name"]] = row
        self.new.append(row)
        return row

    def note_peaks(self):
        """The ceilings of this run. They are complete when it ends."""
        for row in self.new:
            row["peak_gflops"] = self.machine.ceiling(row.get("dtype"), row.get("threads") or self.all_threads)

    def cells(self):
        """One per cell: against the fastest peer, with Tessera's medians over the processes."""
        names = list(dict.fromkeys(name for _, name in self.rows))
        found = [self.cell([row for row in self.rows.values() if row["name"] == name]) for name in names]
        derive(found)
        return found

    def cell(self, rows):
        measured = [row for row in rows if row["supported"]]
        cell = {key: value for row in rows for key, value in row.items() if key in CELL_FIELDS}
        compared = [row for row in measured if row.get("ratio") is not None]
        for field in ALONE_FIELDS:
            values = [row[field] for row in measured if row.get(field) is not None]
            if values:
                cell[field] = median(values)
        if compared:
            best = min(compared, key=lambda row: row["ratio"])
            times = [row["tessera_seconds"] for row in compared if row["layout"] == best["layout"]]
            cell["agreement"] = min(times) / max(times)
            cell |= {"ratio": best["ratio"], "best_peer": best["peer"]}
            cell["error_share"] = min(row["error_share"] for row in compared)
            cell["long"] = cell.get("keys", 0) >= 1024
            if cell["threads"] and cell["peak_gflops"]:
                cell["fraction"] = cell["tessera_gflops"] / cell["peak_gflops"]
        cell["peers"] = {row["peer"]: row.get("ratio") if row["supported"] else row["reason"] for row in rows
                         if row["peer"] in PEERS}
        return cell


CELL_FIELDS = ("name", "group", "label", "dtype", "direction", "causal", "threads", "feature", "batch", "heads", "dim",
               "keys", "length", "peak_gflops", "kernel", "flops", "gflops", "gbps", "reading_gbps")
ALONE_FIELDS = ("tessera_seconds", "tessera_gflops", "one_thread_ratio", "workspace_share", "workspace_growth", "growth",
                "causal_cost", "sparse_cost", "bandwidth_share", "error_share")


def median(values):
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def derive(cells):
    """How the rate grows with threads, where they can share the work evenly: four tasks each. Forward splits rows,
    backward heads."""
    single = {(cell["dtype"], cell["direction"], cell["label"]): cell for cell in cells
              if cell.get("group") == "attention" and cell["threads"] == 1}
    for cell in cells:
        if cell.get("group") != "attention" or cell["threads"] <= 1 or "tessera_gflops" not in cell:
            continue
        tasks = cell["batch"] * cell["heads"] * (cell["keys"] // 128 if cell["direction"] == "forward" else 1)
        one = single.get((cell["dtype"], cell["direction"], cell["label"]))
        if one and "tessera_gflops" in one and tasks >= 4 * cell["threads"]:
            cell["scaling"] = cell["tessera_gflops"] / (cell["threads"] * one["tessera_gflops"])


# --- the console, 80 columns
#   ----------------------------------------------------------------------------


def seconds_text(seconds):
    """Three digits and a unit."""
    scale, name = (1, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "us")
    value = seconds * scale
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {name}"


def show_row(row):
    if not row["supported"]:
        print(f"{row['name']:<46} not supported: {row['reason']}"[:79], flush=True)
        return
    if row.get("ratio") is None:
        facts = {"growth": "slowest/fastest", "causal_cost": "causal/full", "sparse_cost": "of dense time",
                 "bandwidth_share": "of a plain read"}
        text = next(f"{row[field]:.3f} {words}" for field, words in facts.items() if field in row)
        print(f"{row['name']:<52} {text}", flush=True)
        return
    times = f"{seconds_text(row['tessera_seconds']):>8} {seconds_text(row['peer_seconds']):>8}"
    print(f"{row['name']:<46} {times} {row['ratio']:6.2f} {row['variant'][:11]}".rstrip(), flush=True)
    if row["error_share"] > 1:
        print(f"  WRONG: differs by {row['error']:.1e}")


SHORTER = (("forward", "fwd"), ("backward", "bwd"), (" threads", " thr"), (" thread", " thr"))


def show_cells(cells):
    print(f"\n{'peer time / Tessera time':<38}{'% peak':>6}" + "".join(f"{title[:8]:>9}" for title in PEERS.values()))
    for cell in cells:
        if not cell["peers"]:
            continue
        name = cell["name"]
        for long, short in SHORTER:
            name = name.replace(long, short)
        share = f"{100 * cell['fraction']:.0f}" if "fraction" in cell else ""
        values = [cell["peers"].get(peer) for peer in PEERS]
        texts = [f"{value:.2f}" if isinstance(value, float) else "-" if value else "" for value in values]
        print(f"{name[:38]:<38}{share:>6}" + "".join(f"{text:>9}" for text in texts))
    print("-: not supported; the file of --out has the reasons")


def show_disturbed(cells):
    """Tessera does the same work in each process, so its times there should agree."""
    disturbed = [cell for cell in cells if cell.get("agreement", 1) < AGREEMENT]
    if disturbed:
        print("\nNOTE: Tessera's time differs between the processes; measure these again:")
    for cell in sorted(disturbed, key=lambda cell: cell["agreement"]):
        print(f"  {cell['name']}: by {100 * (1 / cell['agreement'] - 1):.0f} %")


# --- the command
#   --------------------------------------------------------------------------------------


def parse_shapes(text):
    words = [word.strip() for word in text.split(";")]
    for word in words:
        if word not in SHAPES:
            raise argparse.ArgumentTypeError(f"'{word}': must be one of {'; '.join(SHAPES)}")
    return words


def parse_threads(text):
    counts = set()
    for word in text.split(","):
        if word.strip() != "all" and not (word.strip().isdigit() and 1 <= int(word) <= 4096):
            raise argparse.ArgumentTypeError(f"'{word}': must be a number from 1 to 4096, or all")
        counts.add(usable_cpus() if word.strip() == "all" else int(word))
    return sorted(counts)


def parse_options():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog="Lists are separated by commas, shapes by semicolons."
    )
    add = parser.add_argument
    add("--peers", type=listed(tuple(PEERS)), default=list(PEERS), help=f"of {', '.join(PEERS)} [all]")
    add("--groups", type=listed(GROUPS), default=list(GROUPS), help=f"of {', '.join(GROUPS)} [all]")
    add("--threads", type=parse_threads, default="1,all", help="numbers of threads [1,all]")
    add("--dtypes", type=listed(DTYPES), default=list(DTYPES), help="of fp32, bf16, fp16 (decode only) [all]")
    add("--directions", type=listed(DIRECTIONS), default=list(DIRECTIONS), help="of forward, backward [both]")
    add("--shapes", type=parse_shapes, help=f"of group attention, B,H,N,D of {'; '.join(SHAPES)} [all]")
    add("--quick", action="store_true", help="fewer cells, and 5 rounds instead of 15")
    add("--add", action="store_true", help="keep the rows of --out that this run does not measure")
    add("--without-bf16-instructions", dest="plain", action="store_true", help="all sides as on a CPU that has none")
    add("--library", type=pathlib.Path, default=ROOT / "build/release/lib/libtessera.so", help="libtessera.so")
    add("--command", type=pathlib.Path, default=ROOT / "build/release/bin/tessera", help="the tessera command")
    add("--out", type=pathlib.Path, default=ROOT / "build/peers-cpu.json", help="all rows [build/peers-cpu.json]")
    options = parser.parse_args()
    for name, path in (("--library", options.library), ("--command", options.command)):
        if not path.is_file():
            parser.error(f"{name} '{path}': no such file; build it (make build) or name another")
    if not options.out.parent.is_dir():
        parser.error(f"--out '{options.out}': no such folder")
    if options.plain:  # before any library looks
        os.environ |= {"TESSERA_TARGET": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_ENABLE_INSTRUCTIONS": "AVX512"}
    options.shapes = options.shapes or list(QUICK_SHAPES if options.quick else SHAPES)
    return options


def earlier_rows(options):
    """The rows of --out, for --add."""
    if not options.add or not options.out.exists():
        return {}, {}
    result = json.loads(options.out.read_text())
    return {(row["peer"], row["name"]): {"commit": result["commit"]} | row for row in result["rows"]}, result


def measure(options, machine, table, run):
    """Runs all processes. `run` gets versions and failures by peer."""
    asked = {key: getattr(options, key) for key in ("groups", "dtypes", "directions", "shapes", "threads", "quick")}
    asked |= {"library": str(options.library), "command": str(options.command)}
    peers = [None] if set(options.groups) & {*ALONE, "decode"} else []
    if set(options.groups) - set(ALONE):
        peers += options.peers
    machine.measure()
    for (name, threads), rate in sorted(machine.peaks.items()):
        print(f"ceiling {name}, {threads} threads: {rate:.4g} {unit(name)}")
    for peer in peers:
        title = PEERS.get(peer, "Tessera alone")
        print(f"\n{title}, a process of its own".ljust(47) + "  Tessera     peer  ratio variant" * (peer is not None), flush=True)
        worker = Worker(peer, asked, lambda row, peer=peer: show_row(table.add(peer or "tessera", row)))
        try:
            finished = worker.run()
        finally:
            run["versions"] |= worker.versions or {}
            if worker.failures:
                run["failures"][peer or "tessera"] = worker.failures
        if not finished:
            print(f"{title} was given up: {worker.failures[-1]['reason']}", flush=True)
        machine.measure()


def command_line(arguments):
    """What was measured, without the paths of this machine."""
    kept, paths = ["benchmarks/peers_cpu.py"], ("--out", "--library", "--command")
    for before, word in zip(["", *arguments], arguments):
        if before not in paths and not word.startswith(paths):
            kept.append(word)
    return " ".join(kept)


def report(options, machine, table, run, cells):
    return machine.describe() | {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "command": command_line(sys.argv[1:]),
        "versions": {"python": platform.python_version()} | run["versions"],
        "load": {"before": run["load"], "after": os.getloadavg()},
        "seconds": time.perf_counter() - run["start"],
        "peaks": [{"name": name, "threads": threads, "rate": rate, "unit": unit(name),
                   "smaller_share": machine.drift[name, threads]} for (name, threads), rate in sorted(machine.peaks.items())],
        "failures": run["failures"],
        "rows": list(table.rows.values()),
        "cells": cells,
    }


def interrupt(*_):
    raise KeyboardInterrupt


def main():
    options = parse_options()
    signal.signal(signal.SIGTERM, interrupt)  # keeps the finished rows, as Ctrl-C does
    machine = Machine(options.command, options.threads, options.plain)
    table = Table(machine, options.threads, commit())
    table.rows, earlier = earlier_rows(options)
    run = {"versions": earlier.get("versions", {}), "failures": {}, "load": os.getloadavg(), "start": time.perf_counter()}
    interrupted = False
    try:
        measure(options, machine, table, run)
    except KeyboardInterrupt:
        interrupted = True
        print("\ninterrupted: the finished rows are kept")
    for (name, threads), share in sorted(machine.drift.items()):
        if share < STEADY:
            rate = machine.peaks[name, threads]
            rates = f"{share * rate:.4g} and {rate:.4g} {unit(name)}"
            print(f"NOTE: something disturbed the machine: {name}, {threads} threads: {rates}")
    commits = {row["commit"] for row in table.rows.values()}
    if len(commits) > 1:
        print(f"NOTE: --add put together rows of {len(commits)} commits: {', '.join(map(str, sorted(commits, key=str)))}")
    table.note_peaks()
    cells = table.cells()
    show_cells(cells)
    show_disturbed(cells)
    verdicts = judge_all(BARS, cells, machine.facts())
    unmeasured = sum(verdict["met"] is None for verdict in verdicts)
    verdicts = [verdict for verdict in verdicts if verdict["met"] is not None]
    print(f"\n{unmeasured} bars have no cells in this run" if unmeasured else "")
    code = conclude(report(options, machine, table, run, cells), verdicts, options.out, brief=True)
    print(f"all rows: {options.out}", file=sys.stderr)
    return 130 if interrupted else code


if __name__ == "__main__":
    sys.exit(main())
