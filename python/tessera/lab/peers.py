"""`peers`: Tessera and every backend of PyTorch's scaled_dot_product_attention on the same tensors, interleaved."""

from tessera.lab import compare
from tessera.lab.errors import Interrupted
from tessera.lab.exact import sampled_error
from tessera.lab.memory import is_out_of_memory, meter_of
from tessera.lab.progress import time_text
from tessera.lab.rows import timing_fields

BACKENDS = {"sdpa_flash": "FLASH_ATTENTION", "sdpa_cudnn": "CUDNN_ATTENTION", "sdpa_efficient": "EFFICIENT_ATTENTION",
            "sdpa_math": "MATH"}  # fmt: skip
METHODS = ("tessera", *BACKENDS)

SIZES = {
    "quick": {"seq": "256..1024", "heads": 8, "dim": "64", "batch": 1},
    "default": {"seq": "256..2048", "heads": 8, "dim": "64", "batch": 1},
    "full": {"seq": "512..8192", "heads": 16, "dim": "64,128", "batch": 4},
}
SECONDS = {"quick": 0.25, "default": 1.0, "full": 1.0}  # for each method and problem, pauses included
MOST_CALLS, FEWEST_CALLS = 50, 5


class Problem:
    """One problem of the run: its fields, its tensors, and a call for each method that works here."""

    def __init__(self, fields, device):
        import torch

        self.fields, self.device = fields, device
        self.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[fields["dtype"]]
        self.causal = fields["mask"] == "causal"
        generator = torch.Generator(device).manual_seed(fields["seed"])
        shape = (fields["batch"], fields["q_heads"], fields["q_length"], fields["qk_dim"])
        make = lambda: torch.randn(shape, device=device, generator=generator).to(self.dtype)  # noqa: E731
        self.q, self.k, self.v, self.grad = make(), make(), make(), make()

    def attention(self, method, q, k, v):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if method == "tessera":
            from tessera.torch import attention

            return attention(q, k, v, causal=self.causal, layout="bhsd")
        with sdpa_kernel(getattr(SDPBackend, BACKENDS[method])):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

    def call_of(self, method):
        """A function that computes the problem once and returns its result."""
        import torch

        if self.fields["direction"] == "forward":
            def forward():
                with torch.no_grad():
                    return self.attention(method, self.q, self.k, self.v)
            return forward  # fmt: skip
        leaves = [tensor.detach().requires_grad_() for tensor in (self.q, self.k, self.v)]
        out = self.attention(method, *leaves)
        return lambda: torch.autograd.grad(out, leaves, self.grad, retain_graph=True)

    def measure(self, methods, seconds, proceed):
        """What each method's row measured: {method: fields}."""
        meter = meter_of(self.device)
        rows, calls, memory = {}, {}, {}
        for method in methods:
            try:
                call = self.call_of(method)
                held = meter.used()
                meter.forget_peak()
                result = call()
                meter.wait()
                memory[method] = None if self.device == "cpu" else meter.peak() - held
                forward = self.fields["direction"] == "forward"
                rows[method] = sampled_error(self.q, self.k, self.v, result, self.causal) if forward else {}
                calls[method] = call
            except Exception as error:
                if not isinstance(error, (RuntimeError, NotImplementedError, MemoryError, ValueError)):
                    raise
                status = "out_of_memory" if is_out_of_memory(error) else "unsupported"
                rows[method] = {"status": status, "reason": str(error).strip().splitlines()[0] or type(error).__name__}
        settle = compare.pause if self.device == "cpu" else compare.CacheFlush(self.device, meter)
        times = interleave(calls, seconds, meter, settle, proceed, self.fields["seed"])
        for method, taken in times.items():
            timing = timing_fields(taken)
            flops = self.flops()
            rows[method] |= timing | {
                "status": "ok", "warmup": 1, "flops": flops, "tflops": flops / timing["median_ms"] / 1e9,
                "peak_extra_bytes": memory[method],
            }  # fmt: skip
        return rows

    def flops(self):
        """FlashAttention's convention: 4 for each visible pair and channel, 2.5 times that backward."""
        fields = self.fields
        pairs = fields["batch"] * fields["q_heads"] * fields["q_length"] ** 2 * (0.5 if self.causal else 1)
        return 4.0 * pairs * fields["qk_dim"] * (1 if fields["direction"] == "forward" else 2.5)


def interleave(calls, seconds, meter, settle, proceed, seed=0):
    """Seconds of every call of each method, {method: [seconds]}: as many rounds as fit into `seconds` for each."""

    def enough(rounds, taken):
        if rounds >= MOST_CALLS or (rounds >= FEWEST_CALLS and taken >= seconds * len(calls)):
            return True
        proceed()
        return False

    proceed()
    times, _ = compare.interleave(calls, compare.WallClock(settle, meter.wait), enough, seed)
    return times


def problems_of(options):
    """The fields of every problem."""
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
    """Measures the problems of which a row is missing. Returns (rows measured, rows that failed)."""
    problems = problems_of(options)
    measured = 0

    def proceed():
        if interrupt.asked:
            raise Interrupted

    for index, fields in enumerate(problems):
        missing = [name for name in METHODS if results.find(fields | {"algorithm": name}) is None]
        if not missing:
            continue
        what = f"{fields['direction']}, {fields['mask']}, sequence {fields['q_length']}, head dimension {fields['qk_dim']}"
        progress.show(f"peers {what}", index / len(problems))
        proceed()
        # All of them, also those whose row is there: methods are compared on the same problem.
        rows = Problem(fields, device).measure(METHODS, SECONDS[options.scale], proceed)
        for name in missing:
            results.write(fields | {"algorithm": name} | rows[name])
            measured += 1
        progress.say(f"peers: {what}: {', '.join(outcome_text(name, rows[name]) for name in METHODS)}")
    return measured, 0


def outcome_text(name, row):
    return f"{name} {time_text(row['median_ms']) if row['status'] == 'ok' else row['status'].replace('_', ' ')}"
