"""Tessera against PyTorch's scaled_dot_product_attention on a GPU, and against itself.

Both work on the same tensors in one process; single calls alternate, each after a write of 1 GiB that empties L2,
timed by CUDA events; medians count. Every result of Tessera was NaN before and is compared first, with PyTorch's or
with the formula in fp64, so that a wrong one cannot win. Data are random unless a section says otherwise. TFLOP/s
follow FlashAttention's convention: 4 B H N N D forward, 2.5 times that backward, half with a causal mask.

Each cell is printed when it is measured. At the end come the bars (gpu_bars.py) and, as the last line, one JSON object
with the ratios; --out keeps every cell. Exit codes: 0 every bar is met, 1 some bar is missed (each is printed), 2 wrong
arguments, 77 there is no GPU or no PyTorch for it.

    make peers-gpu                                          # with the PyTorch of python3, or PYTHON=...
    python3 benchmarks/peers_gpu.py --sections forward --head-dims 64
    python3 benchmarks/peers_gpu.py --algorithm flash3      # against cuDNN: peers_hopper.py, with bars of its own
"""

import argparse
import ctypes
import functools
import itertools
import math
import pathlib
import platform
import statistics
import sys
import time

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
except ImportError as error:
    torch, missing = None, f"PyTorch cannot be imported: {error}"

import gpu_bars as cells
import hopper_bars
from judging import DIRECTIONS, ROOT, Sheet, commit, compare, conclude, judge_all, listed
from tessera_capi import Tessera

# Largest difference of a row, as a share of that row or of the median row, whichever is larger.
TOLERANCE = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 1e-2}
MEASURED = ("ratio", "tessera_ms", "tessera_tflops", "cost", "of_bf16", "of_lazy", "of_sm80")

SECONDS = 0.05  # of calls per cell and side
ROUNDS = (3, 9)  # at least, at most
FLUSH_BYTES = 2**30  # L2 is gone after the first 256 MB; the rest lets the host run ahead of the GPU

DROPOUT, SOFTCAP = 0.1, 5.0
SPARSE = {"block": 128, "density": 0.25}
PEAKED_SIGMA, SINK = 12, 40  # of the scaled scores; that of the one key every query sees
# Rises of the scaled scores per 64 keys. The first is beyond what P holds in the type, the second
# beyond fp32's exponent.
RAMPS = {"fp16": (12, 200), "bf16": (45, 200)}
TURING = {"TESSERA_KERNEL": "cuda.flash2_sm75"}
LAZY = {"TESSERA_LAZY_MAXIMUM": "1"}
FLASH2 = 3  # TSR_FLASH2: what is measured unless a section says otherwise, also where another kernel would be chosen

# --- the machine
#   --------------------------------------------------------------------------------------


class Gpu:
    """What nvidia-smi would say, asked through its library (NVML), which can be called while the GPU works."""

    SM_CLOCK = 1

    def __init__(self):
        properties = torch.cuda.get_device_properties(0)
        self.name, self.driver, self.handle = properties.name, None, ctypes.c_void_p()
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        uuid, version = f"GPU-{properties.uuid}".encode(), ctypes.create_string_buffer(80)
        if self.nvml.nvmlInit_v2() != 0 or self.nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(self.handle)) != 0:
            return
        self.nvml.nvmlSystemGetDriverVersion(version, 80)
        self.driver = version.value.decode()

    def clock(self):
        """MHz of the multiprocessors, now; None: unknown."""
        megahertz = ctypes.c_uint()
        if not self.handle or self.nvml.nvmlDeviceGetClockInfo(self.handle, self.SM_CLOCK, ctypes.byref(megahertz)):
            return None
        return megahertz.value


class Pool:
    """The stream-ordered memory pool of the GPU, which calls take their workspace from."""

    USED_HIGH = 8  # CU_MEMPOOL_ATTR_USED_MEM_HIGH

    def __init__(self):
        self.driver, self.pool, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_int()
        self.check(self.driver.cuDeviceGet(ctypes.byref(device), 0))
        self.check(self.driver.cuDeviceGetDefaultMemPool(ctypes.byref(self.pool), device))

    @staticmethod
    def check(status):
        if status != 0:
            raise RuntimeError(f"CUDA's driver: error {status}")

    def taken(self, call):
        """The most bytes that a call held at a time, and what it did not give back."""
        call()  # loads its code
        torch.cuda.synchronize()
        high = ctypes.c_uint64(0)
        self.check(self.driver.cuMemPoolSetAttribute(self.pool, self.USED_HIGH, ctypes.byref(high)))
        free, _ = torch.cuda.mem_get_info()
        call()
        torch.cuda.synchronize()
        self.check(self.driver.cuMemPoolGetAttribute(self.pool, self.USED_HIGH, ctypes.byref(high)))
        return high.value + max(0, free - torch.cuda.mem_get_info()[0])


class Stopwatch:
    def __init__(self, gpu, seconds):
        self.gpu, self.seconds, self.clocks = gpu, seconds, []
        self.flush = compare.CacheFlush("cuda", least=FLUSH_BYTES)

    def medians(self, calls):
        """Milliseconds of each call; they are interleaved."""
        named, clock = dict(enumerate(calls)), compare.EventClock(self.flush)
        slowest = compare.rehearse(named, clock)
        least, most = ROUNDS
        rounds = max(least, min(most, round(self.seconds / slowest)))
        return self.measured(named, clock, rounds)

    def measured(self, named, clock, rounds):
        """The medians of so many rounds."""

        def enough(done, _):
            if done == rounds:
                self.clocks.append(self.gpu.clock())  # while the GPU works
            return done == rounds

        times, _ = compare.interleave(named, clock, enough)
        return [1000 * statistics.median(taken) for taken in times.values()]


# --- cells
#   --------------------------------------------------------------------------------------------


def random_inputs(size):
    return [torch.randn(size, device="cuda") for _ in range(3)]


def peaked_inputs(size):
    """Scores of a large deviation, and one key (the first) that has a large one with every query."""
    q, k, v = random_inputs(size)
    q *= math.sqrt(PEAKED_SIGMA)
    k *= math.sqrt(PEAKED_SIGMA)
    q[..., 0] = 8
    k[..., 0] = 0
    k[:, :, 0] = 0
    k[:, :, 0, 0] = SINK / 8 * math.sqrt(size[-1])
    return q, k, v


def ramp_inputs(rise, downwards):
    """Scores that grow with every 64 keys, from the first to the last or the other way round."""

    def make(size):
        q, k, v = random_inputs(size)
        block = torch.arange(size[2], device="cuda") // 64
        q[..., 0] = rise * math.sqrt(size[-1])
        k[..., 0] = block.flip(0) if downwards else block
        return q, k, v

    return make


class Problem:
    """The tensors of a cell, with calls of both sides on them."""

    def __init__(self, tessera, length, dim, dtype, inputs=random_inputs):
        self.tessera, self.length, self.dim, self.dtype = tessera, length, dim, dtype
        kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
        size = cells.shape(length, dim)
        self.inputs = [tensor.to(kind) for tensor in inputs(size)]
        self.grad_out = torch.randn(size, device="cuda").to(kind)
        self.out, *self.gradients = (torch.empty_like(self.grad_out) for _ in range(4))
        self.lse = torch.empty(size[:3], device="cuda")

    def poison(self):
        compare.poison(self.out, self.lse, *self.gradients)

    def results(self, direction):
        return [self.out] if direction == "forward" else self.gradients

    def ours(self, direction, lend=True, tessera=None, **options):
        """A call of Tessera. PyTorch has its memory from a cache; ours is lent as well."""
        options, tessera = {"algorithm": FLASH2, **options}, tessera or self.tessera
        if direction == "forward":
            call = tessera.forward(*self.inputs, self.out, self.lse, **options)
        else:
            tensors = (*self.inputs, self.out, self.lse, self.grad_out, *self.gradients)
            call = tessera.backward(*tensors, **options)
        if lend and (needed := call.plan()["workspace_bytes"]):
            call.lend(torch.empty(needed, dtype=torch.uint8, device="cuda"))
        return call

    def checked(self, direction, expected, **options):
        """A call and its error: the results of `direction` against what `expected()` returns for them."""
        self.poison()
        call = self.ours("forward", **options)
        call()
        if direction == "backward":
            call = self.ours("backward", **options)
            call()
        return call, difference(self.results(direction), expected())

    def theirs(self, direction, backend, causal=False, dropout=0.0):
        """A call of PyTorch that returns its results."""

        def forward():
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(*leaves, is_causal=causal, dropout_p=dropout)

        leaves = [tensor.detach().requires_grad_(direction == "backward") for tensor in self.inputs]
        if direction == "forward":
            return lambda: [forward()]
        out = forward()
        return lambda: torch.autograd.grad(out, leaves, self.grad_out, retain_graph=True)

    def exact(self, direction, causal=False, bias=None, visible=None, softcap=0.0, slopes=None):
        """The results of the last head by the formula, in fp64."""
        head = (-1, -1)
        q, k, v = (tensor[head].double().requires_grad_(direction == "backward") for tensor in self.inputs)
        scores = q @ k.T / math.sqrt(self.dim)
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if slopes is not None:
            places = torch.arange(self.length, device="cuda")
            scores = scores - slopes[-1].double() * (places[:, None] - places).abs()
        if bias is not None:
            scores = scores + bias[head].double()
        if causal:
            visible = torch.ones_like(scores, dtype=torch.bool).tril()
        if visible is not None:
            scores = scores.masked_fill(~visible, -math.inf)
        out = torch.softmax(scores, dim=-1) @ v
        return [out] if direction == "forward" else torch.autograd.grad(out, (q, k, v), self.grad_out[head].double())


def difference(ours, theirs):
    """The largest difference of a row as a share of the row, or of the median row where that is larger; infinite
    for NaN. Where `theirs` is one head alone, it is the last."""
    worst = 0.0
    for mine, right in zip(ours, theirs):
        mine, right = (mine[-1, -1] if right.dim() == 2 else mine).float(), right.float()
        sizes = right.norm(dim=-1)
        share = ((mine - right).norm(dim=-1) / sizes.clamp(min=sizes.median().item())).max().item()
        worst = max(worst, share if math.isfinite(share) else math.inf)
    return worst


def relative_errors(results, exact):
    return [((mine[-1, -1] - right).norm() / right.norm()).item() for mine, right in zip(results, exact)]


class Benchmark:
    def __init__(self, options):
        self.options = options
        self.gpu = Gpu()
        self.tessera = Tessera(options.library)
        self.variant = functools.cache(functools.partial(Tessera, options.library))  # with environment variables
        self.stopwatch = Stopwatch(self.gpu, options.seconds)
        self.sheet = Sheet(TOLERANCE, MEASURED)
        self.seconds = {}  # of each section

    def run(self):
        for section in self.options.sections:
            self.section, begin, count = section, time.perf_counter(), len(self.stopwatch.clocks)
            getattr(self, section)()
            self.seconds[section] = time.perf_counter() - begin
            clocks = [clock for clock in self.stopwatch.clocks[count:] if clock]
            between = f"SM clock {min(clocks)} to {max(clocks)} MHz" if clocks else "SM clock unknown"
            print(f"# {section}: {self.seconds[section]:.1f} s, {between}", flush=True)
        cells.derive(self.sheet.rows)

    def add(self, problem, direction, text, what="", **fields):
        """A row; `text` is a format over its fields. `what` tells cells of a section apart."""
        mask = "causal" if fields.get("causal") else "full"
        kind = [self.section] if self.section == problem.dtype else [self.section, problem.dtype]
        name = f"{' '.join(kind)} D{problem.dim} N{problem.length} {mask}"
        if self.section not in DIRECTIONS:
            name += f" {direction}"
        row = {"section": self.section, "name": f"{name} {what}".rstrip(), "dtype": problem.dtype}
        row |= {"direction": direction, "dim": problem.dim, "length": problem.length, "causal": False, **fields}
        if "tessera_ms" in row:
            row["sm_mhz"] = self.stopwatch.clocks[-1]
        self.sheet.add(row, text.format(**row))

    def each(self, *lists):
        """Combinations of head_dims and whatever follows."""
        return itertools.product(self.options.head_dims, *lists)

    # --- against PyTorch ---

    RATIO = "{tessera_tflops:6.1f} TFLOP/s   torch {torch_tflops:6.1f}   x {ratio:.3f}   error {error:.0e}"

    def add_ratio(self, problem, direction, causal, ours, theirs, text=RATIO, **fields):
        """A row of two times in ms."""
        work = cells.flops(problem.length, direction, causal) / 1e9
        fields |= {"causal": causal, "tessera_ms": ours, "torch_ms": theirs, "ratio": theirs / ours}
        self.add(problem, direction, text, tessera_tflops=work / ours, torch_tflops=work / theirs, **fields)

    def forward(self):
        for dim, length, causal in self.each(self.options.lengths, (False, True)):
            self.flash_attention("forward", dim, length, causal)

    def backward(self):
        for dim, length, causal in self.each(self.options.lengths, (False, True)):
            self.flash_attention("backward", dim, length, causal)

    def flash_attention(self, direction, dim, length, causal, inputs=random_inputs):
        """All types of a cell, measured together."""
        problems, calls, facts = [], [], []
        for dtype in self.options.dtypes:
            problem = Problem(self.tessera, length, dim, dtype, inputs)
            theirs = problem.theirs(direction, SDPBackend.FLASH_ATTENTION, causal)
            ours, error = problem.checked(direction, theirs, causal=causal)
            fact = {"error": error, "kernel": ours.plan()["kernel"]}
            if direction == "forward" and causal:  # the first row sees one key
                fact["one_key_differences"] = (problem.out[:, :, 0] != problem.inputs[2][:, :, 0]).sum().item()
            problems.append(problem)
            calls += [ours, theirs]
            facts.append(fact)
        times = self.stopwatch.medians(calls)
        of = dict(zip(self.options.dtypes, times[::2]))
        for problem, fact, ours, theirs in zip(problems, facts, times[::2], times[1::2]):
            if direction == "forward" and problem.dtype == "fp16" and "bf16" in of:
                fact["of_bf16"] = of["bf16"] / ours
            self.add_ratio(problem, direction, causal, ours, theirs, **fact)

    def peaked(self):
        for dim, length, causal in self.each(cells.SOME_LENGTHS, (False, True)):
            self.flash_attention("forward", dim, length, causal, peaked_inputs)

    def fp32(self):
        for dim, length, causal, direction in self.each(self.options.lengths, (False, True), DIRECTIONS):
            problem = Problem(self.tessera, length, dim, "fp32")
            theirs = problem.theirs(direction, SDPBackend.EFFICIENT_ATTENTION, causal)
            ours, error = problem.checked(direction, theirs, causal=causal)
            exact = problem.exact(direction, causal)
            errors = [relative_errors(results, exact) for results in (problem.results(direction), theirs())]
            ratio = max(mine / other for mine, other in zip(*errors))
            del exact
            times = self.stopwatch.medians([ours, theirs])
            text = self.RATIO + " ({error_ratio:.2f} of theirs)"
            self.add_ratio(problem, direction, causal, *times, text, error=error, error_ratio=ratio)

    # --- against itself ---

    def speculation(self):
        for dim, dtype, downwards in self.each(self.options.dtypes, (False, True)):
            for rise in RAMPS[dtype]:
                problem = Problem(self.tessera, 8192, dim, dtype, ramp_inputs(rise, downwards))
                theirs = problem.theirs("forward", SDPBackend.FLASH_ATTENTION)
                ours, error = problem.checked("forward", theirs)
                times = self.stopwatch.medians([ours, problem.ours("forward", tessera=self.variant(**LAZY))])
                what = f"{'falling' if downwards else 'rising'} by {rise}"
                text = "{of_lazy:.3f} of the lazy speed   error {error:.0e}"
                self.add(problem, "forward", text, what, error=error, of_lazy=times[1] / times[0], tessera_ms=times[0])

    def sm75(self):
        for dim, length, causal, direction in self.each(cells.SOME_LENGTHS, (False, True), DIRECTIONS):
            problem = Problem(self.variant(**TURING), length, dim, "fp16")
            theirs = problem.theirs(direction, SDPBackend.FLASH_ATTENTION, causal)
            turing, error = problem.checked(direction, theirs, causal=causal)
            ampere = problem.ours(direction, tessera=self.tessera, causal=causal)
            times = self.stopwatch.medians([turing, ampere])
            text = "{of_sm80:.3f} of the speed of sm_80   error {error:.0e}"
            fields = {"error": error, "of_sm80": times[1] / times[0], "tessera_ms": times[0], "causal": causal}
            self.add(problem, direction, text, **fields)

    def add_cost(self, problem, direction, call, plain, error, what, **fields):
        """A row of what an option costs."""
        times = self.stopwatch.medians([call, plain])
        text = "{cost:.3f} of the plain time   error {error:.0e}"
        fields |= {"error": error, "cost": times[0] / times[1], "tessera_ms": times[0]}
        self.add(problem, direction, text, what, **fields)

    def features(self):
        for dim, direction in self.each(DIRECTIONS):
            problem = Problem(self.tessera, cells.FEATURE_LENGTH, dim, self.options.dtypes[0])
            batch, heads, length, _ = cells.shape(cells.FEATURE_LENGTH, dim)
            slopes = 2 ** (-8 * torch.arange(1, heads + 1, device="cuda") / heads)
            bias = torch.randn(1, heads, length, length, device="cuda", dtype=problem.out.dtype)
            options = {
                "softcap": ({"softcap": SOFTCAP}, {"softcap": SOFTCAP}),
                "alibi": ({"alibi_slopes": slopes.data_ptr()}, {"slopes": slopes}),
                "bias": ({"bias": bias}, {"bias": bias}),
            }
            plain, _ = problem.checked(direction, problem.theirs(direction, SDPBackend.FLASH_ATTENTION))
            undropped = [result.clone() for result in problem.results(direction)]
            for name, (ours, exact) in options.items():
                call, error = problem.checked(direction, lambda: problem.exact(direction, **exact), **ours)
                self.add_cost(problem, direction, call, plain, error, name, feature=name)
            self.dropout(problem, direction, undropped)

    def dropout(self, problem, direction, undropped):
        """The random bits differ from PyTorch's, so what dropout changes is compared: its size, of each result."""

        def changes(results):
            return [((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in zip(results, undropped)]

        theirs = problem.theirs(direction, SDPBackend.FLASH_ATTENTION, dropout=DROPOUT)
        ours, _ = problem.checked(direction, lambda: [], dropout_probability=DROPOUT, dropout_seed=1)
        pairs = zip(changes(problem.results(direction)), changes(theirs()))
        error = max(abs(mine / other - 1) if math.isfinite(mine) else math.inf for mine, other in pairs)
        times = self.stopwatch.medians([ours, theirs])
        self.add_ratio(problem, direction, False, *times, what="dropout", feature="dropout", error=error)

    def sparse(self):
        length = cells.SPARSE_LENGTH
        blocks = length // SPARSE["block"]
        order = torch.rand(blocks, blocks, generator=torch.Generator().manual_seed(1)).argsort(dim=1)
        kept = order < round(SPARSE["density"] * blocks)
        visible = kept.cuda().repeat_interleave(SPARSE["block"], 0).repeat_interleave(SPARSE["block"], 1)
        mask = self.tessera.block_mask(kept.tolist(), length, SPARSE["block"])
        for dim, direction in self.each(DIRECTIONS):
            problem = Problem(self.tessera, length, dim, self.options.dtypes[0])
            dense = problem.ours(direction)  # backward gets the output of sparse forward, which is the same work
            expected = problem.exact(direction, visible=visible)
            call, error = problem.checked(direction, lambda: expected, block_mask=mask)
            self.add_cost(problem, direction, call, dense, error, "25 % of the blocks")
        torch.cuda.synchronize()
        self.tessera.release(mask)

    def deterministic(self):
        for dim, length, causal in self.each(cells.SOME_LENGTHS, (False, True)):
            problem = Problem(self.tessera, length, dim, self.options.dtypes[0])
            theirs = problem.theirs("backward", SDPBackend.FLASH_ATTENTION, causal)
            call, error = problem.checked("backward", theirs, causal=causal, deterministic=1)
            plain = problem.ours("backward", causal=causal)
            self.add_cost(problem, "backward", call, plain, error, "", causal=causal)

    def memory(self):
        pool = Pool()
        for dim, direction in self.each(DIRECTIONS):
            problem = Problem(self.tessera, 8192, dim, self.options.dtypes[0])
            theirs = problem.theirs(direction, SDPBackend.FLASH_ATTENTION)
            _, error = problem.checked(direction, theirs)
            call = problem.ours(direction, lend=False)
            taken, declared = pool.taken(call), call.plan()["workspace_bytes"]
            rows = problem.lse.numel()
            fields = {"extra_bytes": taken, "of_plan": taken / declared if declared else float(taken > 0)}
            if direction == "backward":
                fields["of_sums"] = taken / (rows * (4 * dim + 4))
            text = f"{taken / 2**20:.1f} MiB, {taken / rows:.0f} bytes per row; {declared / 2**20:.1f} MiB declared"
            self.add(problem, direction, text, error=error, **fields)


# --- the command
#   --------------------------------------------------------------------------------------


def parse_options():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        epilog="Lists are separated by commas. Sections: "
        + "; ".join(f"{name}: {text}" for name, text in cells.SECTIONS.items())
        + ". With --algorithm flash3: "
        + "; ".join(f"{name}: {text}" for name, text in hopper_bars.SECTIONS.items()),
    )
    add = parser.add_argument
    add("--algorithm", choices=("flash2", "flash3"), default="flash2", help="what is measured [flash2]")
    add("--sections", help="what to measure [all of the algorithm's]")
    add("--dtypes", type=listed(cells.DTYPES), default=list(cells.DTYPES), help="of bf16, fp16 [both]")
    add("--head-dims", type=listed(cells.HEAD_DIMS, int), default=list(cells.HEAD_DIMS), help="of 64, 128, 256 [all]")
    add("--lengths", type=listed(cells.LENGTHS, int), help="for forward, backward, fp32 [512 to 16384]")
    add("--seconds", type=float, help=f"of calls per cell and side [{SECONDS}]")
    add("--quick", action="store_true", help="fewer lengths and repetitions")
    add("--library", type=pathlib.Path, default=ROOT / "build/release/lib/libtessera.so", help="libtessera.so")
    add("--out", type=pathlib.Path, help="also write the JSON object, with every cell, to this file")
    options = parser.parse_args()
    sections = tuple(hopper_bars.SECTIONS if options.algorithm == "flash3" else cells.SECTIONS)
    try:
        options.sections = listed(sections)(options.sections) if options.sections else list(sections)
    except argparse.ArgumentTypeError as error:
        parser.error(f"--sections {error}")
    if not options.library.is_file():
        parser.error(f"--library '{options.library}': no such file; build it (make build) or name another")
    if options.seconds is not None and not 0 < options.seconds <= 60:
        parser.error(f"--seconds {options.seconds}: must be above 0 and at most 60")
    options.lengths = options.lengths or list(cells.QUICK["lengths"] if options.quick else cells.LENGTHS)
    options.seconds = options.seconds or (cells.QUICK["seconds"] if options.quick else SECONDS)
    return options


def obstacle():
    """Why nothing can be measured; empty: nothing is in the way."""
    if torch is None:
        return missing
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no GPU"
    return ""


def report(benchmark, seconds):
    gpu, clocks = benchmark.gpu, [clock for clock in benchmark.stopwatch.clocks if clock]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": gpu.name,
        "driver": gpu.driver,
        "sm_mhz": {"least": min(clocks), "median": statistics.median(clocks), "most": max(clocks)} if clocks else None,
        "commit": commit(),
        "versions": {
            "tessera": benchmark.tessera.version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
        },
        "seconds": {**benchmark.seconds, "all": seconds},
        "cells": benchmark.sheet.rows,
    }


def main():
    options = parse_options()
    if reason := obstacle():
        print(f"SKIP: {reason}")
        return 77
    torch.manual_seed(0)
    start = time.perf_counter()
    if options.algorithm == "flash3":
        from peers_hopper import HopperBenchmark

        benchmark, bars = HopperBenchmark(options), hopper_bars.BARS
    else:
        benchmark, bars = Benchmark(options), cells.BARS
    benchmark.run()
    verdicts = judge_all(bars, benchmark.sheet.rows, {})
    return conclude(report(benchmark, time.perf_counter() - start), verdicts, options.out, brief=True)


if __name__ == "__main__":
    sys.exit(main())
