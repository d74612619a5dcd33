"""One process of peers_cpu.py: Tessera and one peer, interleaved, so that each ratio is within one process.

It is started by peers_cpu.py with a JSON object as its argument and writes events to its standard output, one JSON
object a line: "ready" with versions, "begin" before a cell, "row" after it. What libraries print goes to standard error.
"""

import ctypes
import importlib.metadata
import json
import os
import signal
import statistics
import sys
import time

import torch

import cpu_alone
from cpu_cells import CHOSEN, TOLERANCE, cells_of
from cpu_peers import LIBRARIES
from cpu_problem import Problem, difference
from judging import compare
from tessera_capi import BACKWARD, Tessera

ROUNDS, QUICK_ROUNDS = 15, 5
BURST = 0.02  # seconds: shorter calls are repeated, so that a sample takes as long
TRIALS = 3  # samples of each variant, to find the fastest
HOPELESS = 2  # times the best: a first call that slow ends a variant's trials


def seconds_of(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def burst(call, count):
    """`count` calls as one, and what the last returned."""

    def run():
        for _ in range(count - 1):
            call()
        return call()

    return run


def calls_for(seconds):
    return max(1, round(BURST / max(seconds, 1e-7)))


class Rejected(Exception):
    """No variant of a peer computed a cell; the text says why."""


class Bench:
    def __init__(self, options):
        self.options = options
        self.rounds = QUICK_ROUNDS if options["quick"] else ROUNDS
        self.cores = max(options["threads"])
        self.tessera = Tessera(options["library"])

    # --- the fastest variant of a peer --------------------------------------------------------------------------------

    def fastest(self, peer, problem, ours):
        """The variant that is fastest and right, and why others were dropped. `ours`: Tessera's calls by layout."""
        best, best_seconds, dropped = None, float("inf"), {}
        for variant in peer.variants(problem):
            try:
                error, seconds = self.trial(peer, problem, ours, variant, best_seconds)
            except Exception as failure:  # a library may fail in any way; the row says how
                dropped[variant.name] = first_line(failure)
                continue
            if error > TOLERANCE[problem.cell.dtype]:
                dropped[variant.name] = f"differs by {error:.1e}"
            elif seconds < best_seconds:
                best, best_seconds, best_error = variant, seconds, error
        if best is None:
            raise Rejected("; ".join(f"{name}: {why}" for name, why in dropped.items()))
        peer.use(best.threads)
        return best, best_error, best_seconds, dropped

    def trial(self, peer, problem, ours, variant, best):
        """The difference of a variant's results from ours, and its seconds a call."""
        peer.use(variant.threads)
        variant.prepare()
        if variant.layout not in ours:
            ours[variant.layout] = problem.ours(variant.layout)
            ours[variant.layout].call()
        first = seconds_of(variant.call)
        error = difference(zip(ours[variant.layout].outputs, variant.results(), strict=True))
        if first > max(0.05, 20 * best):  # first calls compile; only a hopeless one is not tried again
            return error, first
        again = seconds_of(variant.call)
        if again > HOPELESS * best and again > 1e-3:
            return error, again
        count = calls_for(again)
        samples = []
        for _ in range(1 if again > 0.3 else TRIALS):
            variant.refresh()
            time.sleep(compare.PAUSE)
            samples.append(seconds_of(burst(variant.call, count)) / count)
        return error, statistics.median(samples)

    # --- a row --------------------------------------------------------------------------------------------------------

    def compare(self, peer, cell):
        """Tessera and a peer's best variant, interleaved."""
        problem, ours = Problem(cell, self.tessera, self.cores), {}
        variant, error, their_seconds, dropped = self.fastest(peer, problem, ours)
        mine = ours[variant.layout]
        calls = {"tessera": mine.call, "peer": variant.call}
        if cell.threads == CHOSEN:
            calls["one"] = problem.ours(variant.layout, threads=1).call
        mine.call()
        estimates = {name: seconds_of(call) for name, call in calls.items()} | {"peer": their_seconds}
        counts = {name: calls_for(estimate) for name, estimate in estimates.items()}

        def settle():
            variant.refresh()
            time.sleep(compare.PAUSE)

        bursts = {name: burst(call, counts[name]) for name, call in calls.items()}
        clock = compare.WallClock(settle)
        compare.rehearse(bursts, clock)
        times, _ = compare.interleave(bursts, clock, lambda rounds, _: rounds >= self.rounds)
        seconds = {name: statistics.median(taken) / counts[name] for name, taken in times.items()}
        row = cell.facts() | {"supported": True, "variant": variant.name, "layout": variant.layout, "error": error}
        row |= {"peer_threads": variant.threads, "rounds": self.rounds, "calls": counts, "dropped": dropped}
        row |= {"tessera_seconds": seconds["tessera"], "peer_seconds": seconds["peer"]}
        row["ratio"] = seconds["peer"] / seconds["tessera"]
        row["spread"] = spread(times["tessera"])
        if "one" in seconds:
            row["one_thread_ratio"] = seconds["one"] / seconds["tessera"]
        return row | self.plan_facts(cell, mine)

    def plan_facts(self, cell, mine):
        """The kernel and, for the five shapes, how its workspace compares with what is allowed."""
        plan = mine.plan()
        facts = {"kernel": plan["kernel"], "minimum_bytes": plan["minimum_bytes"], "flops": cell.flops()}
        if cell.group != "attention":
            return facts
        shape = cell.batch, cell.heads, cell.queries, cell.dim
        if cell.direction == "forward":
            allowed = 4 * cell.batch * cell.heads * cell.queries
            allowed += cell.threads * (2**20 + 2 * 4 * cell.queries * cell.dim)
            facts["workspace_share"] = plan["workspace_bytes"] / allowed
        else:
            dtype = mine.outputs[0].dtype
            sizes = [self.tessera.workspace_bytes((*shape[:2], length, shape[3]), dtype, BACKWARD, cell.threads)
                     for length in (cell.queries, 2 * cell.queries)]
            facts["workspace_growth"] = sizes[1] / sizes[0]
        return facts


def spread(samples):
    """The half of the samples in the middle, as a share of the median."""
    low, _, high = statistics.quantiles(samples, n=4)
    return (high - low) / statistics.median(samples)


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:160]


def unsupported(cell, reason):
    return cell.facts() | {"supported": False, "reason": reason}


def measure(bench, peer, send, skip):
    for cell in cells_of(bench.options):
        if cell.name in skip:
            continue
        send({"event": "begin", "cell": cell.name})
        reason = peer.unsupported(cell)
        if reason is None:
            try:
                row = bench.compare(peer, cell)
            except Rejected as rejected:
                row = unsupported(cell, str(rejected))
        else:
            row = unsupported(cell, reason)
        send({"event": "row", "row": row})


def die_with_parent():
    """A worker that outlives peers_cpu.py would disturb whatever is measured next."""
    parent_death_signal = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


def main():
    die_with_parent()
    options = json.loads(sys.argv[1])
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def send(event):
        channel.write(json.dumps(event) + "\n")

    torch.set_num_threads(1)  # of peers other than PyTorch's; those set their own
    bench = Bench(options)
    versions = {"tessera": bench.tessera.version()}
    if options["peer"] is None:
        send({"event": "ready", "versions": versions | {"torch": torch.__version__}})
        cpu_alone.measure(bench, send, set(options["skip"]))
        return
    peer = LIBRARIES[options["peer"]]()
    peer.setup()
    versions |= {name: importlib.metadata.version(name) for name in peer.packages}
    send({"event": "ready", "versions": versions})
    measure(bench, peer, send, set(options["skip"]))


if __name__ == "__main__":
    main()
