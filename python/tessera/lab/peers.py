"""`peers`: Tessera and every backend of PyTorch's scaled_dot_product_attention on the same tensors, called in turn."""

import math
import random
import time

from tessera.lab.errors import Interrupted
from tessera.lab.memory import is_out_of_memory, meter_of
from tessera.lab.progress import time_text
from tessera.lab.rows import timing_fields

BACKENDS = {"sdpa_flash": "FLASH_ATTENTION", "sdpa_cudnn": "CUDNN_ATTENTION", "sdpa_efficient": "EFFICIENT_ATTENTION",
            "sdpa_math": "MATH"}  # fmt: skip
LIBRARIES = ("tessera", *BACKENDS)

SIZES = {
    "quick": {"seq": "256..1024", "heads": 8, "dim": "64", "batch": 1},
    "default": {"seq": "256..2048", "heads": 8, "dim": "64", "batch": 1},
    "full": {"seq": "512..8192", "heads": 16, "dim": "64,128", "batch": 4},
}
SECONDS = {"quick": 0.25, "default": 1.0, "full": 1.0}  # for each library and point, pauses included
MOST_CALLS, FEWEST_CALLS = 50, 5
PAUSE = 0.015  # seconds between calls on the CPU: OpenMP's threads spin for a while after theirs
LEAST_FLUSH = 32 << 20  # bytes to empty a GPU's cache with; twice the cache where that is more, as in `tessera lab`
SAMPLED_ROWS = 16


class Contest:
    """The libraries at one point: q, k, v, and a call for each that works here."""

    def __init__(self, point, device):
        import torch

        self.point, self.device = point, device
        self.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[point["dtype"]]
        self.causal = point["mask"] == "causal"
        generator = torch.Generator(device).manual_seed(point["seed"])
        shape = (point["batch"], point["q_heads"], point["q_length"], point["qk_dim"])
        make = lambda: torch.randn(shape, device=device, generator=generator).to(self.dtype)  # noqa: E731
        self.q, self.k, self.v, self.grad = make(), make(), make(), make()

    def attention(self, library, q, k, v):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if library == "tessera":
            from tessera.torch import attention

            return attention(q, k, v, causal=self.causal, layout="bhsd")
        with sdpa_kernel(getattr(SDPBackend, BACKENDS[library])):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

    def call_of(self, library):
        """A function that does the work of the point once and returns its result."""
        import torch

        if self.point["direction"] == "forward":
            def forward():
                with torch.no_grad():
                    return self.attention(library, self.q, self.k, self.v)
            return forward  # fmt: skip
        leaves = [tensor.detach().requires_grad_() for tensor in (self.q, self.k, self.v)]
        out = self.attention(library, *leaves)
        return lambda: torch.autograd.grad(out, leaves, self.grad, retain_graph=True)

    def error(self, out):
        """How far some rows of an output are from the exact ones, computed in fp64."""
        import torch

        length = self.point["q_length"]
        rows = torch.linspace(0, length - 1, min(SAMPLED_ROWS, length)).long().to(self.device)
        q, k, v = self.q[:, :, rows].double(), self.k.double(), self.v.double()
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if self.causal:
            hidden = torch.arange(length, device=self.device)[None, :] > rows[:, None]
            scores = scores.masked_fill(hidden, -math.inf)
        exact = scores.softmax(-1) @ v
        apart = out[:, :, rows].double() - exact
        return {
            "sampled_rows": len(rows), "max_error": float(apart.abs().max()),
            "rms_error": float(apart.square().mean().sqrt()), "rms_reference": float(exact.square().mean().sqrt()),
        }  # fmt: skip

    def measure(self, libraries, seconds, proceed):
        """The measured fields of each library's row: {library: fields}."""
        meter = meter_of(self.device)
        rows, calls, memory = {}, {}, {}
        for library in libraries:
            try:
                call = self.call_of(library)
                held = meter.used()
                meter.forget_peak()
                result = call()
                meter.wait()
                memory[library] = None if self.device == "cpu" else meter.peak() - held
                rows[library] = self.error(result) if self.point["direction"] == "forward" else {}
                calls[library] = call
            except Exception as error:
                if not isinstance(error, (RuntimeError, NotImplementedError, MemoryError, ValueError)):
                    raise
                status = "out_of_memory" if is_out_of_memory(error) else "unsupported"
                rows[library] = {"status": status, "reason": str(error).strip().splitlines()[0] or type(error).__name__}
        settle = pause if self.device == "cpu" else CacheFlush(self.device, meter)
        times = interleave(calls, seconds, meter, settle, proceed, self.point["seed"])
        for library, taken in times.items():
            timing = timing_fields(taken)
            flops = self.flops()
            rows[library] |= timing | {
                "status": "ok", "warmup": 1, "flops": flops, "tflops": flops / timing["median_ms"] / 1e9,
                "peak_extra_bytes": memory[library],
            }  # fmt: skip
        return rows

    def flops(self):
        """FlashAttention's convention: 4 for each visible pair and channel, 2.5 times that backward."""
        point = self.point
        pairs = point["batch"] * point["q_heads"] * point["q_length"] ** 2 * (0.5 if self.causal else 1)
        return 4.0 * pairs * point["qk_dim"] * (1 if point["direction"] == "forward" else 2.5)


def pause():
    """Brings a CPU to rest before a call."""
    time.sleep(PAUSE)


class CacheFlush:
    """Empties a GPU's L2 cache before a call: what the call before it left there, dirty lines to be written back among it,
    is not the next one's to pay for. Twice the cache is written: what it replaces need not be what was used least
    recently."""

    def __init__(self, device, meter):
        import torch

        cache = torch.cuda.get_device_properties(device).L2_cache_size
        self.memory = torch.empty(max(2 * cache, LEAST_FLUSH), dtype=torch.uint8, device=device)
        self.meter = meter

    def __call__(self):
        self.memory.zero_()
        self.meter.wait()


def interleave(calls, seconds, meter, settle, proceed, seed=0):
    """Seconds of every call of each library, {library: [seconds]}.

    They are called in rounds, so that what slows the machine slows all of them. Each round has an order of its own: a
    call may suffer from the one before it, by heat or by memory, so no library may always follow the same one. Orders
    are random and the same for the same seed. No library follows itself, and in the long run each follows every other
    equally often. `settle` comes before each call and is not timed.
    """

    def timed(call):
        settle()
        start = time.perf_counter()
        call()
        meter.wait()
        return time.perf_counter() - start

    times = {library: [] for library in calls}
    draw = random.Random(seed)
    order = []
    begin = time.perf_counter()
    while calls:
        proceed()
        order = next_order(list(calls), order, draw)
        for library in order:
            times[library].append(timed(calls[library]))
        done = len(times[order[0]])
        if done >= MOST_CALLS or (done >= FEWEST_CALLS and time.perf_counter() - begin >= seconds * len(calls)):
            break
    return times


def next_order(libraries, before, draw):
    """A random order of the libraries that does not begin with the one that the round before ended with."""
    while True:
        order = draw.sample(libraries, len(libraries))
        if not before or len(order) == 1 or order[0] != before[-1]:
            return order


def points_of(options):
    """The fields of every point."""
    return [
        {
            "direction": direction, "dtype": options.dtype, "batch": options.batch, "q_length": sequence,
            "k_length": sequence, "q_heads": options.heads, "kv_heads": options.heads, "qk_dim": dim, "v_dim": dim,
            "embedding": options.heads * dim, "mask": mask, "seed": options.seed,
        }
        for dim in options.dim
        for direction in options.direction
        for mask in options.mask
        for sequence in options.seq
    ]  # fmt: skip


def run(options, results, progress, interrupt, device):
    """Measures the points of which a row is missing. Returns (rows measured, rows that failed)."""
    points = points_of(options)
    measured = 0

    def proceed():
        if interrupt.asked:
            raise Interrupted

    for index, point in enumerate(points):
        missing = [name for name in LIBRARIES if results.find(point | {"algorithm": name}) is None]
        if not missing:
            continue
        what = f"{point['direction']}, {point['mask']}, sequence {point['q_length']}, head dimension {point['qk_dim']}"
        progress.show(f"peers {what}", index / len(points))
        proceed()
        # All of them, also those whose row is there: a contest has every side.
        rows = Contest(point, device).measure(LIBRARIES, SECONDS[options.scale], proceed)
        for name in missing:
            results.write(point | {"algorithm": name} | rows[name])
            measured += 1
        progress.say(f"peers: {what}: {', '.join(outcome_text(name, rows[name]) for name in LIBRARIES)}")
    return measured, 0


def outcome_text(name, row):
    return f"{name} {time_text(row['median_ms']) if row['status'] == 'ok' else row['status'].replace('_', ' ')}"
