"""What peers_cpu.py measures of Tessera alone: growth with the length, causal against full, block-sparse, and decode
against a plain read of memory. Calls that are compared are interleaved."""

import json
import statistics
import subprocess
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

from cpu_cells import CAUSAL_LENGTHS, DECODE_KEYS, GROWTH_DIM, GROWTH_LENGTHS, GROWTH_TOKENS, SPARSE, Cell, decode_cells
from cpu_problem import DTYPES, Problem, difference
from judging import compare

READINGS = 5  # of memory, with decode between them


def plural(threads):
    return f"{threads} thread{'s' if threads > 1 else ''}"


def measure(bench, send, skip):
    options = bench.options
    series = []
    for dtype in (word for word in options["dtypes"] if word != "fp16"):
        for direction in options["directions"]:
            for threads in options["threads"]:
                case = (dtype, direction, threads)
                if "growth" in options["groups"]:
                    series.append((f"{dtype} {direction} growth, {plural(threads)}", growth, case))
                    series += [(f"{dtype} {direction} causal/full N={length}, {plural(threads)}", causal_cost, (*case, length))
                               for length in CAUSAL_LENGTHS]
                if "sparse" in options["groups"]:
                    series.append((f"{dtype} {direction} block-sparse, {plural(threads)}", sparse, case))
    if "decode" in options["groups"]:
        series += [(f"{cell.name}, of a plain read", reading_share, (cell,))
                   for cell in decode_cells(options) if cell.keys == DECODE_KEYS[-1]]
    for name, function, case in series:
        if name not in skip:
            send({"event": "begin", "cell": name})
            send({"event": "row", "row": {"name": name, "supported": True} | function(bench, *case)})


def interleaved(bench, calls, pause=compare.PAUSE):
    """Median seconds of each call {key: call}."""
    clock = compare.WallClock(lambda: time.sleep(pause))
    compare.rehearse(calls, clock)
    times, _ = compare.interleave(calls, clock, lambda rounds, _: rounds >= bench.rounds)
    return {key: statistics.median(taken) for key, taken in times.items()}


def cell_of(dtype, direction, threads, heads, length, dim, causal=False):
    return Cell("growth", "", dtype, direction, 1, heads, heads, length, length, dim, causal, threads)


def growth(bench, dtype, direction, threads):
    """Seconds per FLOP by length, and the slowest as a multiple of the fastest."""
    lengths = GROWTH_LENGTHS[: 4 if bench.options["quick"] else None]
    cells = {length: cell_of(dtype, direction, threads, GROWTH_TOKENS // length, length, GROWTH_DIM) for length in lengths}
    problems = {length: Problem(cell, bench.tessera, bench.cores) for length, cell in cells.items()}
    seconds = interleaved(bench, {length: problem.ours("bhnd").call for length, problem in problems.items()})
    rates = {length: cells[length].flops() / seconds[length] / 1e9 for length in lengths}
    row = {"group": "growth", "dtype": dtype, "direction": direction, "threads": threads, "gflops": rates}
    return row | {"growth": max(rates.values()) / min(rates.values())}


def causal_cost(bench, dtype, direction, threads, length):
    """The time of a causal call as a share of the full one."""
    problems = {causal: Problem(cell_of(dtype, direction, threads, 16384 // length, length, GROWTH_DIM, causal),
                                bench.tessera, bench.cores) for causal in (False, True)}
    seconds = interleaved(bench, {causal: problem.ours("bhnd").call for causal, problem in problems.items()})
    row = {"group": "growth", "dtype": dtype, "direction": direction, "threads": threads, "length": length}
    return row | {"causal_cost": seconds[True] / seconds[False]}


def reading_rate(bench, threads):
    """GB/s of a plain read, now: memory changes by the minute on shared machines."""
    command = [bench.options["command"], "peak", "--threads", str(threads), "--json"]
    command += ["--ceilings", "memory_read", "--repetitions", "5"]
    return json.loads(subprocess.check_output(command, stderr=subprocess.DEVNULL))["peaks"][0]["median"]


def reading_share(bench, cell):
    """Bytes of the cache per second of decode, as a share of a plain read before and after. No pauses, as in the read:
    after 15 ms of sleep a call of 5 ms takes a quarter longer."""
    problem = Problem(cell, bench.tessera, bench.cores)
    ours, cache = problem.ours("bhnd"), 2 * problem.values[1].nbytes
    shares, rates, before = [], [], reading_rate(bench, cell.threads)
    for _ in range(READINGS):
        rates.append(cache / interleaved(bench, {"ours": ours.call}, pause=0)["ours"] / 1e9)
        after = reading_rate(bench, cell.threads)
        shares.append(2 * rates[-1] / (before + after))
        before = after
    row = cell.facts() | {"name": f"{cell.name}, of a plain read", "group": "reading", "gbps": statistics.median(rates)}
    return row | {"reading_gbps": after, "bandwidth_share": statistics.median(shares)}


def sparse(bench, dtype, direction, threads):
    """A quarter of the blocks, drawn evenly over the rows, against all of them; compared with PyTorch and a mask."""
    (B, H, N, D), block = SPARSE["shape"], SPARSE["block"]
    order = torch.rand(N // block, N // block, generator=torch.Generator().manual_seed(1)).argsort(dim=1)
    kept = order < round(SPARSE["density"] * (N // block))
    visible = kept.repeat_interleave(block, 0).repeat_interleave(block, 1)
    mask = bench.tessera.block_mask(kept.tolist(), N, block)
    q, k, v, grad_out = (torch.randn(B, H, N, D).to(DTYPES[dtype]) for _ in range(4))
    torch.set_num_threads(bench.cores)
    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    theirs = scaled_dot_product_attention(*leaves, attn_mask=visible)
    gradients = torch.autograd.grad(theirs, leaves, grad_out) if direction == "backward" else ()
    torch.set_num_threads(1)
    out, *grads = (torch.empty_like(q) for _ in range(4))
    lse, calls = torch.empty(B, H, N), {}
    for name, block_mask in (("dense", None), ("sparse", mask)):
        how = {"threads": threads, "block_mask": block_mask}
        forward = bench.tessera.forward(q, k, v, out, lse, **how)
        backward = bench.tessera.backward(q, k, v, out, lse, grad_out, *grads, **how)
        forward()  # dense backward gets the output of sparse forward, which is the same work
        calls[name] = forward if direction == "forward" else backward
    seconds = interleaved(bench, calls)
    compare.poison(*grads) if direction == "backward" else compare.poison(out)
    calls["sparse"]()
    pairs = zip(grads, gradients) if direction == "backward" else [(out, theirs.detach())]
    row = {"group": "sparse", "dtype": dtype, "direction": direction, "threads": threads, "error": difference(pairs)}
    bench.tessera.release(mask)
    return row | {"sparse_cost": seconds["sparse"] / seconds["dense"]}
