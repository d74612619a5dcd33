"""Calls of several methods, compared: results that were poisoned first, a settled machine, interleaved calls, one clock.

`python -m tessera.lab peers` and benchmarks/peers_*.py share this file. The benchmarks load it without the package
(benchmarks/judging.py), so it imports nothing of the package, and PyTorch only on a GPU.
"""

import math
import random
import time

PAUSE = 0.015  # seconds between calls on the CPU: OpenMP's threads spin for a while after theirs
LEAST_FLUSH = 32 << 20  # bytes to empty a GPU's cache with; twice the cache where that is more, as in `tessera lab`


def poison(*tensors):
    """So that results which were never written are seen."""
    for tensor in tensors:
        tensor.fill_(math.nan)


def pause():
    """Brings a CPU to rest before a call."""
    time.sleep(PAUSE)


class CacheFlush:
    """Empties a GPU's L2 cache before a call: what the call before it left there, dirty lines to be written back among it,
    is not the next one's to pay for. Twice the cache is written, or `least` bytes: what it replaces need not be what was
    used least recently. With a meter it waits until that is done."""

    def __init__(self, device, meter=None, least=LEAST_FLUSH):
        import torch

        cache = torch.cuda.get_device_properties(device).L2_cache_size
        self.memory = torch.empty(max(2 * cache, least), dtype=torch.uint8, device=device)
        self.meter = meter

    def __call__(self):
        self.memory.zero_()
        if self.meter is not None:
            self.meter.wait()


class WallClock:
    """Times a call until it returns and `wait` does. `settle` comes before it and is not timed."""

    def __init__(self, settle=lambda: None, wait=lambda: None):
        self.settle, self.wait = settle, wait

    def start(self, call):
        """Makes a call: what `read` turns into seconds, and what the call returned."""
        self.settle()
        begin = time.perf_counter()
        result = call()
        self.wait()
        return time.perf_counter() - begin, result

    def read(self, started):
        return started


class EventClock:
    """Times calls on a GPU between two events. Calls are queued, so that the GPU does not wait for the host; `settle` is
    queued before each. Their results are dropped."""

    def __init__(self, settle):
        import torch

        self.cuda, self.settle = torch.cuda, settle

    def start(self, call):
        begin, end = (self.cuda.Event(enable_timing=True) for _ in range(2))
        self.settle()
        begin.record()
        call()
        end.record()
        return (begin, end), None

    def read(self, started):
        self.cuda.synchronize()
        return [begin.elapsed_time(end) / 1000 for begin, end in started]


def rehearse(calls, clock):
    """The seconds of the slowest of the first calls, which are not measured: each call {name: call} once."""
    return max(clock.read([clock.start(call)[0]])[0] for call in calls.values())


def interleave(calls, clock, enough, seed=0):
    """Seconds of every call of each method, {name: [seconds]}, and what each returned last, {name: result}.

    They are called in rounds, so that what slows the machine slows all of them, and each round in an order of its own: a
    call may suffer from the one before it, by heat or by memory, so no method may always follow the same one. Orders are
    random, the same for the same seed, and no method follows itself: each follows every other equally often in the long
    run. `enough(rounds, seconds)` says after each round whether it was the last.
    """
    started, results = {name: [] for name in calls}, {}
    draw = random.Random(seed)
    order = []
    begin = time.perf_counter()
    while calls:
        order = next_order(list(calls), order, draw)
        for name in order:
            taken, results[name] = clock.start(calls[name])
            started[name].append(taken)
        if enough(len(started[order[0]]), time.perf_counter() - begin):
            break
    return {name: clock.read(taken) for name, taken in started.items()}, results


def next_order(names, before, draw):
    """A random order that does not begin with the name that the round before ended with."""
    while True:
        order = draw.sample(names, len(names))
        if not before or len(order) == 1 or order[0] != before[-1]:
            return order
