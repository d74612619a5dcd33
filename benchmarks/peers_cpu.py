"""Tessera against PyTorch's scaled_dot_product_attention (flash backend) on the CPU, and against the machine.

Both work on the same buffers with the same number of threads and their calls are interleaved; medians count. Every result
of Tessera is compared with PyTorch's first, so that a wrong one cannot win. Speeds are also shares of what
`tessera peak` measures before and after: of the two measurements the larger one counts, so that a ceiling that
sank in between flatters nobody. GFLOP/s follow FlashAttention's convention: 4 B H N N D forward, half of that for
causal masks, 2.5 times that backward.

Each cell is printed when it is measured. At the end come the bars (cpu_bars.py) and, as the last line, one JSON
object. Exit codes: 0 every bar is met, 1 some bar is missed (each is printed), 2 wrong arguments.

    make peers-cpu                                 # in an environment of its own, with requirements-cpu.txt
    python3 benchmarks/peers_cpu.py --quick        # or with a PyTorch that is there
"""

import argparse
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from cpu_bars import BARS
from judging import DIRECTIONS, ROOT, Sheet, commit, compare, conclude, judge_all, listed
from tessera_capi import BACKWARD, Tessera

# --- cells
#   --------------------------------------------------------------------------------------------

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LAYOUTS = ("bhnd", "bnhd")  # how (B, H, N, D) lies in memory: contiguous, or a transposed (B, N, H, D)
SHAPES = ("1,25,1024,64", "2,12,2048,64", "1,8,4096,128", "1,1,4096,64", "1,32,512,128", "1,8,8192,128")
QUICK = {"shapes": ("1,25,1024,64", "1,1,4096,64", "1,32,512,128"), "layouts": ("bhnd",), "seconds": 0.25}

DECODE = {"heads": 32, "kv_heads": 8, "keys": 32768, "dim": 128}
DECODE_ROUNDS = 3  # of reading bandwidth, decode, reading bandwidth
SPARSE = {"shape": "1,8,4096,64", "block": 128, "density": 0.25}

# Largest difference from PyTorch, as a share of the largest value. bf16: both sides round their
# results to 8 bits, and PyTorch's backward rounds once per block.
TOLERANCE = {"fp32": 1e-4, "bf16": 4e-2}
MEASURED = ("ratio", "fraction", "tessera_seconds", "tessera_gflops", "sparse_cost", "bandwidth_share")

SECONDS = 0.5  # of calls per cell and side
LONG_CALL = 1.0  # seconds; longer calls are measured twice only
STEADY = 0.95  # the ceilings before and after should differ by no more

# --- measuring
#   ----------------------------------------------------------------------------------------


def interleave(calls, seconds, pause=compare.PAUSE):
    """The median time of each call, and what each returned last. The first calls do not count (PyTorch's first backward of
    a process takes half a second more). Of long calls two others do."""
    named, clock = dict(enumerate(calls)), compare.WallClock(lambda: time.sleep(pause))
    slowest = compare.rehearse(named, clock)
    most = 2 if slowest > LONG_CALL else max(3, min(15, round(seconds / slowest)))
    times, results = compare.interleave(named, clock, lambda rounds, _: rounds >= most)
    return [statistics.median(times[index]) for index in named], [results[index] for index in named]


def difference(pairs):
    """The largest difference as a share of the largest value, over pairs of ours and theirs; NaN is infinite."""
    worst = 0.0
    for ours, theirs in pairs:
        share = ((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()).item()
        worst = max(worst, share if math.isfinite(share) else math.inf)
    return worst


class Machine:
    """The ceilings, from the `tessera` command beside the library."""

    def __init__(self, command, threads, plain=False):
        self.command, self.threads, self.plain = command, threads, plain
        self.peaks = {}  # (name, threads): the larger measurement
        self.drift = {}  # (name, threads): the smaller one as a share of it
        self.vendor = cpu_vendor()

    def measure(self):
        for peak in self.run(self.threads):
            key = (peak["name"], peak["threads"])
            if peak["median"] is not None:
                pair = (self.peaks.get(key, peak["median"]), peak["median"])
                self.peaks[key], self.drift[key] = max(pair), min(pair) / max(pair)

    def reading(self, threads):
        """GB/s, now; also counts as a measurement of that ceiling, which changes by the minute on shared machines."""
        rate = self.run([threads], "--ceilings", "memory_read", "--repetitions", "5")[0]["median"]
        self.peaks["memory_read", threads] = max(self.peaks["memory_read", threads], rate)
        return rate

    def run(self, threads, *options):
        listed = ",".join(str(count) for count in threads)
        text = subprocess.check_output(
            [self.command, "peak", "--threads", listed, "--json", *options], stderr=subprocess.DEVNULL
        )
        return json.loads(text)["peaks"]

    def ceiling(self, dtype):
        """The name of the fastest arithmetic for a type."""
        names = ("bf16_amx", "bf16_dot", "fp32_fma") if dtype == "bf16" and not self.plain else ("fp32_fma",)
        return next(name for name in names if any(key[0] == name for key in self.peaks))

    def facts(self):
        return {"amd": self.vendor == "AuthenticAMD", "bf16": self.ceiling("bf16")}


def unit(ceiling):
    return "GB/s" if ceiling.endswith("_read") else "GFLOP/s"


def cpu_vendor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), platform.machine())


class Benchmark:
    def __init__(self, options):
        self.options = options
        self.tessera = Tessera(options.library)
        self.machine = Machine(options.command, options.threads, options.plain)
        self.sheet = Sheet(TOLERANCE, MEASURED)
        self.rows = self.sheet.rows

    def team(self, threads):
        return "one" if threads == 1 else "all" if threads == max(self.options.threads) else "some"

    def run(self):
        self.machine.measure()
        for (name, threads), rate in sorted(self.machine.peaks.items()):
            print(f"ceiling {name}, {threads} threads: {rate:.4g} {unit(name)}")
        options = self.options
        for dtype in options.dtypes:
            for shape in options.shapes:
                for layout in options.layouts:
                    self.attention(dtype, shape, layout)
            if options.extras:
                self.sparse(dtype)
                for layout in options.layouts:
                    self.decode(dtype, layout)
        self.machine.measure()
        for (name, threads), share in sorted(self.machine.drift.items()):
            if share < STEADY:
                rate = self.machine.peaks[name, threads]
                rates = f"{share * rate:.4g} and {rate:.4g} {unit(name)}"
                print(f"NOTE: something disturbed the machine: {name}, {threads} threads, measured {rates}")
        self.derive()

    def attention(self, dtype, shape, layout):
        """All cells on one set of tensors: masks, threads, directions."""
        B, H, N, D = (int(size) for size in shape.split(","))
        q, k, v, grad_out = (random_tensor((B, H, N, D), dtype, layout) for _ in range(4))
        out, grad_q, grad_k, grad_v = (torch.empty_like(q) for _ in range(4))
        lse = torch.empty(B, H, N)
        for causal in (False, True):
            for threads in self.options.threads:
                torch.set_num_threads(threads)
                leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
                with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                    theirs = scaled_dot_product_attention(*leaves, is_causal=causal)
                how = {"causal": causal, "threads": threads}
                gradients = (grad_q, grad_k, grad_v)
                compare.poison(out, lse, *gradients)
                forward = self.tessera.forward(q, k, v, out, lse, **how)
                backward = self.tessera.backward(q, k, v, out, lse, grad_out, *gradients, **how)

                def torch_forward():
                    with torch.inference_mode(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                        return scaled_dot_product_attention(q, k, v, is_causal=causal)

                def torch_backward():
                    return torch.autograd.grad(theirs, leaves, grad_out, retain_graph=True)

                if "forward" not in self.options.directions:
                    forward()  # backward needs its results
                for direction in self.options.directions:
                    if direction == "forward":
                        seconds, (_, expected) = interleave([forward, torch_forward], self.options.seconds)
                        error, plan = difference([(out, expected)]), forward.plan()
                    else:
                        seconds, (_, expected) = interleave([backward, torch_backward], self.options.seconds)
                        error, plan = difference(zip(gradients, expected)), backward.plan()
                    flops = 4 * B * H * N * N * D * (0.5 if causal else 1) * (1 if direction == "forward" else 2.5)
                    row = {"shape": shape, "length": N, "dim": D, "long": N >= 1024}
                    row |= {"dtype": dtype, "direction": direction, "layout": layout, **how, "error": error}
                    self.add_attention(row, plan, flops, *seconds)

    def add_attention(self, row, plan, flops, seconds, torch_seconds):
        threads, shape = row["threads"], [int(size) for size in row["shape"].split(",")]
        B, H, N, D = shape
        mask = "causal" if row["causal"] else "full"
        name = f"{row['dtype']} {row['direction']} {row['shape']} {mask} {row['layout']} {threads} threads"
        peak = self.machine.peaks[self.machine.ceiling(row["dtype"]), threads]
        rate, torch_rate = flops / seconds / 1e9, flops / torch_seconds / 1e9
        row |= {
            "kind": "attention",
            "name": name,
            "team": self.team(threads),
            "kernel": plan["kernel"],
            "flops": flops,
            "minimum_bytes": plan["minimum_bytes"],
            "workspace_bytes": plan["workspace_bytes"],
            "tessera_seconds": seconds,
            "torch_seconds": torch_seconds,
            "tessera_gflops": rate,
            "torch_gflops": torch_rate,
            "ratio": rate / torch_rate,
        }
        if row["direction"] == "forward":
            allowed = 4 * B * H * N + threads * (2**20 + 2 * 4 * N * D)
            row["workspace_share"] = plan["workspace_bytes"] / allowed
        else:
            sizes = [
                self.tessera.workspace_bytes((B, H, length, D), DTYPES[row["dtype"]], BACKWARD, threads)
                for length in (N, 2 * N)
            ]
            row["workspace_growth"] = sizes[1] / sizes[0]
        text = f"{rate:7.1f} GFLOP/s {100 * rate / peak:4.0f}% of peak   torch {torch_rate:7.1f}   "
        self.sheet.add(row, f"{text}x {rate / torch_rate:.2f}   error {row['error']:.0e}")

    def sparse(self, dtype):
        """A quarter of the blocks, drawn evenly over the rows, against all of them."""
        B, H, N, D = (int(size) for size in SPARSE["shape"].split(","))
        blocks = N // SPARSE["block"]
        order = torch.rand(blocks, blocks, generator=torch.Generator().manual_seed(1)).argsort(dim=1)
        kept = order < round(SPARSE["density"] * blocks)
        visible = kept.repeat_interleave(SPARSE["block"], 0).repeat_interleave(SPARSE["block"], 1)
        mask = self.tessera.block_mask(kept.tolist(), N, SPARSE["block"])
        q, k, v, grad_out = (random_tensor((B, H, N, D), dtype, "bhnd") for _ in range(4))
        leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        torch.set_num_threads(max(self.options.threads))
        theirs = scaled_dot_product_attention(*leaves, attn_mask=visible)
        gradients = torch.autograd.grad(theirs, leaves, grad_out)
        out, grad_q, grad_k, grad_v = (torch.empty_like(q) for _ in range(4))
        lse = torch.empty(B, H, N)
        for threads in self.options.threads:
            for direction in self.options.directions:
                # The sparse call comes last in a round, so that its results are those compared
                # below. (Dense backward gets the output of sparse forward, which is the same work.)
                compare.poison(out, lse, grad_q, grad_k, grad_v)
                calls = []
                for block_mask in (None, mask):
                    how = {"threads": threads, "block_mask": block_mask}
                    forward = self.tessera.forward(q, k, v, out, lse, **how)
                    forward()
                    backward = self.tessera.backward(q, k, v, out, lse, grad_out, grad_q, grad_k, grad_v, **how)
                    calls.append(forward if direction == "forward" else backward)
                (dense, sparse), _ = interleave(calls, self.options.seconds)
                pairs = [(out, theirs.detach())]
                if direction == "backward":
                    pairs += zip((grad_q, grad_k, grad_v), gradients)
                name = f"{dtype} {direction} {SPARSE['shape']} block-sparse {threads} threads"
                row = {"kind": "sparse", "name": name, "dtype": dtype, "direction": direction, "threads": threads}
                row |= {"team": self.team(threads), "error": difference(pairs), "sparse_cost": sparse / dense}
                density = f"{100 * SPARSE['density']:.0f} % of the blocks"
                self.sheet.add(row, f"{row['sparse_cost']:7.3f} of the dense time for {density}")
        self.tessera.release(mask)

    def decode(self, dtype, layout):
        """One query per head against a long cache, which is read once: a matter of bandwidth. No pauses, as in the
        reading that it is compared with: each side's calls follow its own, and after 15 ms of sleep a call of 5 ms
        takes a quarter longer."""
        heads, kv_heads, keys, dim = DECODE.values()
        q = random_tensor((1, heads, 1, dim), dtype, layout)
        k, v = (random_tensor((1, kv_heads, keys, dim), dtype, layout) for _ in range(2))
        out, lse = torch.empty_like(q), torch.empty(1, heads, 1)
        cache_bytes = 2 * k.numel() * k.element_size()
        for threads in self.options.threads:
            torch.set_num_threads(threads)
            compare.poison(out)
            ours = self.tessera.forward(q, k, v, out, lse, threads=threads)
            rates, readings = [], [self.machine.reading(threads)]
            for _ in range(DECODE_ROUNDS):
                rates.append(cache_bytes / interleave([ours], self.options.seconds, pause=0)[0][0] / 1e9)
                readings.append(self.machine.reading(threads))
            shares = [rate / (a + b) * 2 for rate, a, b in zip(rates, readings, readings[1:])]
            with torch.inference_mode():
                for _ in range(2):  # it may take seconds, and is no bar
                    seconds, theirs = compare.WallClock().start(lambda: scaled_dot_product_attention(q, k, v, enable_gqa=True))
                torch_rate = cache_bytes / seconds / 1e9
            rate, reading = statistics.median(rates), statistics.median(readings)
            row = {
                "kind": "decode",
                "name": f"{dtype} decode {heads}:{kv_heads} heads, {keys} keys {layout} {threads} threads",
                "dtype": dtype,
                "layout": layout,
                "threads": threads,
                "team": self.team(threads),
                "error": difference([(out, theirs)]),
                "flops": 4 * heads * keys * dim,
                "minimum_bytes": cache_bytes,
                "tessera_gflops": 4 * heads * keys * dim * rate / cache_bytes,
                "tessera_gbps": rate,
                "torch_gbps": torch_rate,
                "reading_gbps": reading,
                "bandwidth_share": statistics.median(shares),
            }
            text = f"{rate:7.1f} GB/s {100 * row['bandwidth_share']:4.0f}% of reading ({reading:.1f})"
            self.sheet.add(row, f"{text}   torch {torch_rate:.1f} (enable_gqa)")

    def derive(self):
        """What compares cells with each other or with the ceilings, now that all are there."""
        cells = {tuple(row[key] for key in KEY): row for row in self.rows if row["kind"] == "attention"}
        for key, row in cells.items():
            if row["tessera_gflops"] is None:
                continue
            *same, causal, threads = key
            row["fraction"] = row["tessera_gflops"] / self.machine.peaks[self.machine.ceiling(row["dtype"]), threads]
            single = cells.get((*same, causal, 1))
            if threads > 1 and single and single["tessera_gflops"] and enough_tasks(row):
                row["scaling"] = row["tessera_gflops"] / (threads * single["tessera_gflops"])
            full = cells.get((*same, False, threads))
            if causal and full and full["tessera_seconds"]:
                row["causal_cost"] = row["tessera_seconds"] / full["tessera_seconds"]


KEY = ("dtype", "direction", "shape", "layout", "causal", "threads")


def enough_tasks(row):
    """Whether the threads can share the work evenly: four tasks each. Forward splits rows, backward heads."""
    B, H, N, _ = (int(size) for size in row["shape"].split(","))
    return B * H * (N // 128 if row["direction"] == "forward" else 1) >= 4 * row["threads"]


def random_tensor(shape, dtype, layout):
    """(B, H, N, D), contiguous or as a view of a contiguous (B, N, H, D)."""
    if layout == "bhnd":
        return torch.randn(shape, dtype=DTYPES[dtype])
    B, H, N, D = shape
    return torch.randn((B, N, H, D), dtype=DTYPES[dtype]).transpose(1, 2)


# --- the command
#   --------------------------------------------------------------------------------------


def parse_shapes(text):
    words = [word.strip() for word in text.split(";")]
    for word in words:
        if word not in SHAPES:
            raise argparse.ArgumentTypeError(f"'{word}': must be one of {'; '.join(SHAPES)}")
    return words


def parse_threads(text):
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    counts = set()
    for word in text.split(","):
        if word.strip() != "all" and not (word.strip().isdigit() and 1 <= int(word) <= 4096):
            raise argparse.ArgumentTypeError(f"'{word}': must be a number from 1 to 4096, or all")
        counts.add(cores if word.strip() == "all" else int(word))
    return sorted(counts)


def parse_options():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog="Lists are separated by commas, shapes by semicolons."
    )
    add = parser.add_argument
    add("--threads", type=parse_threads, default="1,all", help="numbers of threads [1,all]")
    add("--dtypes", type=listed(tuple(DTYPES)), default=list(DTYPES), help="of fp32, bf16 [both]")
    add("--directions", type=listed(DIRECTIONS), default=list(DIRECTIONS), help="of forward, backward [both]")
    add("--layouts", type=listed(LAYOUTS), help="of bhnd, bnhd [both]")
    add("--shapes", type=parse_shapes, help=f"B,H,N,D of {'; '.join(SHAPES)} [all]")
    add("--no-extras", dest="extras", action="store_false", help="leave out decode and block-sparse")
    add("--quick", action="store_true", help="fewer shapes, layouts and repetitions")
    add("--without-bf16-instructions", dest="plain", action="store_true", help="both sides as on a CPU that has none")
    add("--library", type=pathlib.Path, default=ROOT / "build/release/lib/libtessera.so", help="libtessera.so")
    add("--command", type=pathlib.Path, default=ROOT / "build/release/bin/tessera", help="the tessera command")
    add("--out", type=pathlib.Path, help="also write the JSON object to this file")
    options = parser.parse_args()
    for name, path in (("--library", options.library), ("--command", options.command)):
        if not path.is_file():
            parser.error(f"{name} '{path}': no such file; build it (make build) or name another")
    if options.plain:  # before either side looks
        os.environ |= {"TESSERA_TARGET": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_ENABLE_INSTRUCTIONS": "AVX512"}
    options.layouts = options.layouts or list(QUICK["layouts"] if options.quick else LAYOUTS)
    options.shapes = options.shapes or list(QUICK["shapes"] if options.quick else SHAPES)
    options.seconds = QUICK["seconds"] if options.quick else SECONDS
    return options


def report(benchmark, seconds):
    machine = benchmark.machine
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": json.loads(subprocess.check_output([machine.command, "info", "--json"]))["machine"],
        "vendor": machine.vendor,
        "bf16_instructions": not machine.plain,
        "commit": commit(),
        "versions": {
            "tessera": benchmark.tessera.version(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "seconds": seconds,
        "peaks": [
            {
                "name": name,
                "threads": threads,
                "rate": rate,
                "unit": unit(name),
                "smaller_share": machine.drift[name, threads],
            }
            for (name, threads), rate in sorted(machine.peaks.items())
        ],
        "cells": benchmark.rows,
    }


def main():
    options = parse_options()
    torch.manual_seed(0)
    start = time.perf_counter()
    benchmark = Benchmark(options)
    benchmark.run()
    verdicts = judge_all(BARS, benchmark.rows, benchmark.machine.facts())
    return conclude(report(benchmark, time.perf_counter() - start), verdicts, options.out)


if __name__ == "__main__":
    sys.exit(main())
