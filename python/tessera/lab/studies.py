"""`studies`: PyTorch's attention at the points of a run of `tessera lab`, in rows that join its curves.

pytorch  the studies' baseline, which fuses nothing: matmul, mask, softmax, dropout, matmul
sdpa     scaled_dot_product_attention, with the backend that PyTorch chooses

Each point has a process of its own: what runs out of memory there ends one point and not the run.
"""

import json
import math
import pathlib
import re
import time

from tessera.lab import compare, machine, worker
from tessera.lab.errors import Interrupted, UsageError
from tessera.lab.exact import sampled_error
from tessera.lab.memory import is_out_of_memory, meter_of
from tessera.lab.progress import time_text
from tessera.lab.rows import RUN_FIELDS, TABLE, parse_row, timing_fields

METHODS = ("pytorch", "sdpa")
STAGES = ("matmul QK^T", "mask", "softmax", "dropout", "matmul PV")  # as `tessera lab steps` names them
ONE_KERNEL = "one kernel"
SECONDS = 0.25  # for each method and point, pauses included
MOST_CALLS, FEWEST_CALLS = 50, 5
SHARED_FIELDS = (*RUN_FIELDS, "scale", "study_factor")  # equal in all rows of a run
# What `tessera lab` asks; the other fields of a question are of training.
POINT_FIELDS = tuple(
    field["name"] for field in TABLE
    if field["role"] == "key" and "lab" in field.get("programs", ["lab"]) and field["name"] not in ("algorithm", "stage")
)  # fmt: skip
TYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def read_run(path):
    """The rows of a directory that `tessera lab` wrote. Raises UsageError where there are none."""
    file = pathlib.Path(path) / "results.jsonl"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"RUN '{path}': cannot be read: {error.strerror}; name a directory that tessera lab wrote") from None
    rows = [parse_row(line, f"{file}, line {number}") for number, line in enumerate(lines, 1) if line]
    if not rows:
        raise UsageError(f"RUN '{path}': has no rows")
    missing = [name for name in (*SHARED_FIELDS, *POINT_FIELDS) if name not in rows[0]]
    if missing:
        raise UsageError(f"RUN '{path}': its rows have no field '{missing[0]}', so it is of another version; measure it again")
    return rows


def shared_of(rows, here):
    """What all rows of a run share. Raises UsageError for a run of another machine."""
    first = rows[0]
    if first["machine"] != here:
        raise UsageError(f"RUN: was measured on {first['machine']}; this is {here}")
    return {name: first[name] for name in SHARED_FIELDS}


def problem_of(row):
    """Why PyTorch cannot be asked the same as a row; empty: it can."""
    if row["mask"] not in ("full", "causal"):
        return "mask"
    if row["bias"] or row["alibi"] or row["softcap"] or row["requested_block_k"] or row.get("level"):
        return "option"
    return ""


def points_of(rows):
    """The points of a run, none twice: (fields of the point, its nominal FLOPs, whether its steps are timed)."""
    points = {}
    for row in rows:
        if problem_of(row):
            continue
        fields = {name: row[name] for name in POINT_FIELDS}
        flops = None if row["stage"] in STAGES else row["flops"]
        known = points.setdefault(json.dumps(fields), [fields, None, False])
        known[1] = known[1] or flops
        known[2] = known[2] or row["stage"] is not None
    return [tuple(point) for point in points.values()]


def threads_of(settings, usable):
    """The threads that a run was given by its options, or all."""
    given = re.search(r"--threads (\d+)", settings)
    return int(given[1]) if given and given[1] != "0" else usable


def unfused_steps(q, k, v, causal, dropout):
    """Standard attention as a list of (stage, function), each of which works on what the one before left."""
    import torch

    state = {}
    lengths = q.shape[2], k.shape[2]
    hidden = torch.ones(lengths, dtype=torch.bool, device=q.device).triu(1 + lengths[1] - lengths[0]) if causal else None

    def scores():
        state["s"] = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)

    def mask():
        state["masked"] = state["s"] if hidden is None else state["s"].masked_fill(hidden, -math.inf)

    def softmax():
        state["p"] = state["masked"].softmax(-1)

    def drop():
        state["dropped"] = torch.nn.functional.dropout(state["p"], dropout) if dropout else state["p"]

    def output():
        state["out"] = state["dropped"] @ v

    return state, list(zip(STAGES, (scores, mask, softmax, drop, output)))


class Point:
    """The tensors of one point and a call for each method."""

    def __init__(self, fields, device):
        import torch

        self.fields, self.device = fields, device
        self.causal, self.dropout = fields["mask"] == "causal", fields["dropout"]
        self.direction = fields["direction"]
        dtype = getattr(torch, TYPES[fields["dtype"]])
        generator = torch.Generator(device).manual_seed(fields["seed"])

        def make(heads, length, dim):
            return torch.randn((fields["batch"], heads, length, dim), device=device, generator=generator).to(dtype)

        self.q = make(fields["q_heads"], fields["q_length"], fields["qk_dim"])
        self.k = make(fields["kv_heads"], fields["k_length"], fields["qk_dim"])
        self.v = make(fields["kv_heads"], fields["k_length"], fields["v_dim"])
        self.grad = make(fields["q_heads"], fields["q_length"], fields["v_dim"]) if self.direction != "forward" else None

    def attention(self, method, q, k, v):
        import torch

        if method == "sdpa":
            square = q.shape[2] == k.shape[2]
            if self.causal and not square:
                raise NotImplementedError("sdpa aligns a causal mask at the first key; this problem at the last")
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=self.causal, dropout_p=self.dropout, enable_gqa=q.shape[1] != k.shape[1]
            )
        group = q.shape[1] // k.shape[1]
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        state, steps = unfused_steps(q, k, v, self.causal, self.dropout)
        for _, step in steps:
            step()
        return state["out"]

    def calls(self, method):
        """Calls by stage: {None: the whole attention}."""
        import torch

        if self.direction == "forward":
            return {None: lambda: self.whole(method)}
        leaves = [tensor.requires_grad_() for tensor in (self.q, self.k, self.v)]
        if self.direction == "backward":
            out = self.attention(method, *leaves)
            return {None: lambda: torch.autograd.grad(out, leaves, self.grad, retain_graph=True)}
        return {None: lambda: torch.autograd.grad(self.attention(method, *leaves), leaves, self.grad)}

    def whole(self, method):
        import torch

        with torch.no_grad():
            return self.attention(method, self.q, self.k, self.v)

    def steps(self):
        """The calls of the steps of unfused attention, after each has run once."""
        group = self.q.shape[1] // self.k.shape[1]
        k, v = (tensor.repeat_interleave(group, 1) if group > 1 else tensor for tensor in (self.k, self.v))
        _, steps = unfused_steps(self.q, k, v, self.causal, self.dropout)
        for _, step in steps:
            step()
        return dict(steps)

    def result_bytes(self):
        """The memory of what a call returns, which rows count as tensors."""
        out = self.q.shape[0] * self.q.shape[1] * self.q.shape[2] * self.v.shape[3] * self.q.element_size()
        grads = sum(tensor.numel() * tensor.element_size() for tensor in (self.q, self.k, self.v))
        return {"forward": out, "backward": grads}.get(self.direction, grads)

    def tensor_bytes(self):
        """Q, K, V, the output and, backward, the gradients; as `tessera lab` counts, which adds the LSE."""
        inputs = sum(tensor.numel() * tensor.element_size() for tensor in (self.q, self.k, self.v))
        out = self.q.numel() // self.q.shape[3] * self.v.shape[3] * self.q.element_size()
        return inputs + out if self.direction == "forward" else 2 * (inputs + out)


def executed_flops(fields):
    """What unfused attention executes: every pair, and backward no product twice, because P is kept."""
    pairs = fields["batch"] * fields["q_heads"] * fields["q_length"] * fields["k_length"]
    both = 2.0 * pairs * (fields["qk_dim"] + fields["v_dim"])
    forward, backward = both + 6 * pairs, 2 * both + 3 * pairs
    return {"forward": forward, "backward": backward}.get(fields["direction"], forward + backward)


def rehearse(point, method, meter):
    """One call that is not measured: ({stage: call}, what the row knows from it)."""
    held = meter.used()
    meter.forget_peak()
    calls = point.calls(method)
    result = calls[None]()
    meter.wait()
    extra = max(0, meter.peak() - held - point.result_bytes())
    row = {"peak_extra_bytes": extra, "peak_bytes": point.tensor_bytes() + extra, "tensor_bytes": point.tensor_bytes()}
    if point.direction == "forward" and not point.dropout:
        group = point.q.shape[1] // point.k.shape[1]
        k, v = point.k.repeat_interleave(group, 1), point.v.repeat_interleave(group, 1)
        row |= sampled_error(point.q, k, v, result, point.causal)
    return calls, row


def measure(_link, fields, flops, staged, methods, device, threads):
    """The task of a process: {(method, stage): fields of its row}."""
    import torch

    torch.manual_seed(fields["seed"])
    if device == "cpu":
        torch.set_num_threads(threads)
    small = fields | {"batch": 1, "q_heads": 1, "kv_heads": 1, "q_length": 64, "k_length": 64}
    for method in methods:
        Point(small, device).calls(method)[None]()  # so that libraries are loaded before memory is counted
    meter = meter_of(device)
    if fields["memory_budget_bytes"]:
        meter.limit(fields["memory_budget_bytes"])
    rows, calls = {}, {}
    point = Point(fields, device)
    for method in sorted(methods, reverse=True):  # sdpa first: backward, what pytorch keeps stays in memory
        try:
            whole, row = rehearse(point, method, meter)
            row |= {"threads": threads if device == "cpu" else None, "warmup": 1}
            stages = {None: whole[None]} if not staged else point.steps() if method == "pytorch" else {ONE_KERNEL: whole[None]}
            for stage, call in stages.items():
                calls[method, stage] = call
                rows[method, stage] = dict(row)
                if stage in STAGES:
                    continue
                rows[method, stage] |= {"flops": flops, "executed_flops": executed_flops(fields) if method == "pytorch" else None}
        except Exception as error:
            if not isinstance(error, (RuntimeError, NotImplementedError, MemoryError, ValueError)):
                raise
            status = "out_of_memory" if is_out_of_memory(error) else "unsupported"
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            rows[method, ONE_KERNEL if staged and method == "sdpa" else None] = {"status": status, "reason": reason}
    for name, (seconds, host) in time_calls(calls, device, meter).items():
        timing = timing_fields(seconds)
        nominal = rows[name].get("flops")
        rows[name] |= timing | {
            "status": "ok", "host_ms": sorted(host)[len(host) // 2] * 1e3,
            "tflops": nominal / timing["median_ms"] / 1e9 if nominal else None,
        }  # fmt: skip
    return rows


def time_calls(calls, device, meter):
    """Seconds of every call, on the device and on the host: {name: ([seconds], [seconds])}."""
    host = {name: [] for name in calls}

    def watched(name):
        def call():
            begin = time.perf_counter()
            calls[name]()
            host[name].append(time.perf_counter() - begin)

        return call

    def enough(rounds, taken):
        return rounds >= MOST_CALLS or (rounds >= FEWEST_CALLS and taken >= SECONDS * len(calls))

    on_cpu = device == "cpu"
    clock = compare.WallClock(compare.pause, meter.wait) if on_cpu else compare.EventClock(compare.CacheFlush(device))
    times, _ = compare.interleave({name: watched(name) for name in calls}, clock, enough)
    return {name: (times[name], host[name]) for name in calls}


def stages_of(method, staged):
    return [None] if not staged else list(STAGES) if method == "pytorch" else [ONE_KERNEL]


def run(options, results, progress, interrupt, device):
    """Measures the points of which a row is missing. Returns (rows measured, rows that failed)."""
    points = points_of(options.rows)
    threads = threads_of(results.stamp["settings"], results.stamp["usable_cpus"] or 1)
    measured = failed = 0
    for index, (fields, flops, staged) in enumerate(points):
        names = [(method, stage) for method in options.methods for stage in stages_of(method, staged)]
        missing = [name for name in names if results.find(fields | {"algorithm": name[0], "stage": name[1]}) is None]
        if not missing:
            continue
        what = f"{fields['experiment']}: {fields['direction']}, {fields['mask']}, batch {fields['batch']}, sequence {fields['q_length']}"
        progress.show(f"studies {what}", index / len(points))
        if interrupt.asked:
            raise Interrupted
        methods = [method for method in options.methods if any(name[0] == method for name in missing)]
        arguments = {"fields": fields, "flops": flops, "staged": staged, "methods": methods, "device": device, "threads": threads}
        outcome = worker.run(measure, arguments, interrupt)
        rows = outcome.value or {}
        said = []
        for method, stage in missing:
            row = rows.get((method, stage)) or rows.get((method, None)) or {"status": outcome.status, "reason": outcome.reason}
            row = results.write(fields | row | {"algorithm": method, "stage": stage})
            measured += 1
            failed += row["status"] == "failed"
            name = method if stage is None else f"{method} {stage}"
            said.append(f"{name} {time_text(row['median_ms']) if row['status'] == 'ok' else row['status'].replace('_', ' ')}")
        progress.say(f"{what}: {', '.join(said)}")
    return measured, failed


def stamp_of(rows, device):
    """The fields that all rows share: those of the run, and PyTorch's."""
    import torch

    return shared_of(rows, machine.machine_text()) | {"libraries": f"PyTorch {torch.__version__}", "torch": torch.__version__}
