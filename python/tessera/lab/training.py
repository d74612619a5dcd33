"""`training`: transformers over sequence x width x depth with each attention, under a memory budget.

Each model is trained on random vectors for a few steps in its own process. Models that do not fit become out-of-memory
rows. Attentions start from the same parameters and the same data, so that their outputs and losses can be compared.
"""

import time
from dataclasses import dataclass, replace

from tessera.lab import worker
from tessera.lab.errors import Interrupted, UsageError
from tessera.lab.machine import available_memory
from tessera.lab.memory import meter_of
from tessera.lab.progress import bytes_text, time_text
from tessera.lab.rows import timing_fields

ATTENTIONS = ("standard", "flash", "sdpa")
OPTIMIZERS = ("none", "adamw")
DIRECTIONS = {"none": "forward + backward", "adamw": "forward + backward + optimiser"}
HEAD_DIM = 64

# The budgets make standard attention run out of memory within the grid. `full` is the study's grid
# on an L4, whose 24 GB leave 22 GiB for a program.
SIZES = {
    "quick": {"seq": "256..1024", "width": "128", "depth": "2", "memory_budget": "64MiB"},
    "default": {"seq": "512..4096", "width": "128,256", "depth": "2,4", "memory_budget": "1GiB"},
    "full": {"seq": "2048..16384", "width": "1024..4096", "depth": "4,8,16,24", "memory_budget": "22GiB"},
}
# On a CPU the study's lengths and widths are divided by this, and its memory, which both take up, by its square.
CPU_FACTOR = 8
STUDY = {
    1: SIZES["full"],
    CPU_FACTOR: {"seq": "256..2048", "width": "128..512", "depth": "4,8,16,24", "memory_budget": "352MiB"},
}

MEASURE_SECONDS = {"quick": 0.5, "default": 2.0, "full": 2.0, "study": 2.0}
MOST_STEPS, FEWEST_STEPS = 20, 3
LONG_STEP = 10.0  # seconds; two steps of this length are enough
SAMPLES = 32  # numbers of an output that are compared
AGREEMENT = {"fp32": 1e-3, "bf16": 5e-2, "fp16": 1e-2}  # how far outputs and losses may be apart; outputs are near 1


@dataclass(frozen=True)
class Problem:
    """One model and how it is trained."""

    attention: str
    sequence: int
    width: int
    depth: int
    batch: int
    dtype: str
    optimizer: str
    causal: bool
    budget: int
    seed: int
    heads: int = 0  # 0: as many as have HEAD_DIM channels

    @property
    def head_dim(self):
        return self.width // self.heads if self.heads else HEAD_DIM

    def __str__(self):
        heads = f", {self.heads} heads" if self.heads else ""
        return f"{self.attention}, sequence {self.sequence}, width {self.width}{heads}, {self.depth} layers"

    def fields(self):
        """The fields of its row that are known before it is measured."""
        heads = self.width // self.head_dim
        return {
            "algorithm": self.attention, "direction": DIRECTIONS[self.optimizer], "dtype": self.dtype,
            "batch": self.batch, "q_length": self.sequence, "k_length": self.sequence, "q_heads": heads,
            "kv_heads": heads, "qk_dim": self.head_dim, "v_dim": self.head_dim, "embedding": self.width, "depth": self.depth,
            "mask": "causal" if self.causal else "full", "optimizer": self.optimizer, "seed": self.seed,
            "memory_budget_bytes": self.budget, "flops": self.flops(),
        }  # fmt: skip

    def flops(self):
        """Of a step. Forward: 2 for each weight and token, 4 for each visible pair and channel; backward: twice that."""
        tokens = self.batch * self.sequence
        pairs = tokens * self.sequence * (0.5 if self.causal else 1)
        return 3.0 * self.depth * (2 * 12 * self.width**2 * tokens + 4 * pairs * self.width)


class Training:
    """The model of a problem and what it is trained on: random vectors."""

    def __init__(self, problem, device):
        import torch

        from tessera.lab.model import Transformer

        self.problem, self.device = problem, device
        with torch.device(device):
            self.model = Transformer(problem.attention, problem.width, problem.depth, head_dim=problem.head_dim, causal=problem.causal)
        self.optimizer = torch.optim.AdamW(self.model.parameters()) if problem.optimizer == "adamw" else None
        shape = (problem.batch, problem.sequence, problem.width)
        self.x, self.target = (torch.randn(shape, device=device) for _ in range(2))

    def step(self):
        """Forward, backward and optimizer. Gradients stay until the next step, as in most training loops."""
        from tessera.lab.model import autocast

        self.model.zero_grad()
        with autocast(self.device, self.problem.dtype):
            loss = (self.model(self.x) - self.target).square().mean()
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()

    def sample(self):
        """The loss before training, and some numbers of the output as text: the same for every exact attention."""
        import torch

        from tessera.lab.model import autocast

        with torch.no_grad(), autocast(self.device, self.problem.dtype):
            out = self.model(self.x)
            loss = (out - self.target).square().mean()
        flat = out.flatten().float()
        places = torch.linspace(0, flat.numel() - 1, SAMPLES).long().to(flat.device)
        return float(loss), " ".join(f"{value:.6g}" for value in flat[places].tolist())

    def parameters(self):
        from tessera.lab.model import count_parameters

        return count_parameters(self.model)


def measure(_link, problem, device, seconds):
    """The task of the process: trains the model of a problem and returns the measured fields of its row."""
    import torch

    torch.manual_seed(problem.seed)
    # A small model first, so that threads and libraries are loaded before memory is counted.
    Training(replace(problem, sequence=64, width=HEAD_DIM, depth=1, heads=1), device).step()
    torch.manual_seed(problem.seed)  # again: attentions may have drawn different numbers
    meter = meter_of(device)
    meter.limit(problem.budget)
    trained = Training(problem, device)
    held = meter.used()
    loss, outputs = trained.sample()

    def timed_step():
        start = time.perf_counter()
        trained.step()
        meter.wait()
        return time.perf_counter() - start

    first = timed_step()
    meter.forget_peak()
    # Long steps need no warm-up: the first one counts.
    times = [first] if first > LONG_STEP else []
    while len(times) < (2 if first > LONG_STEP else FEWEST_STEPS) or (sum(times) < seconds and len(times) < MOST_STEPS):
        times.append(timed_step())
    timing = timing_fields(times)
    return timing | {
        "train_loss": loss, "sampled_outputs": outputs,
        "warmup": 0 if first > LONG_STEP else 1,
        "tflops": problem.flops() / (timing["median_ms"] / 1e3) / 1e12,
        "parameters": trained.parameters(), "threads": torch.get_num_threads() if device == "cpu" else None,
        "peak_bytes": meter.peak(), "memory_used_bytes": meter.used(), "peak_extra_bytes": max(0, meter.peak() - held),
        "tensor_bytes": held,
    }  # fmt: skip


def check(options):
    """Raises UsageError for impossible sizes, or a budget larger than the device's memory."""
    for width in options.width:
        if not options.heads and width % HEAD_DIM:
            raise UsageError(f"--width '{width}': must be a multiple of {HEAD_DIM}, the head dimension")
        for heads in options.heads:
            if width % heads or width // heads > 256:
                raise UsageError(f"--heads '{heads}': must divide --width {width} into heads of at most 256 channels")
    room = available_memory(options.device)
    if options.memory_budget > room:
        raise UsageError(
            f"--memory-budget '{bytes_text(options.memory_budget)}': {options.device} has {bytes_text(room)} left"
        )


def problems_of(options):
    """The problems of a sweep: smallest models first, all attentions of a model in a row."""
    return [
        Problem(attention, sequence, width, depth, options.batch, options.dtype, options.optimizer, options.causal,
              options.memory_budget, options.seed, heads)
        for depth in options.depth
        for width in options.width
        for heads in options.heads or [0]
        for sequence in options.seq
        for attention in options.attention
    ]  # fmt: skip


def agreement(fields, standard):
    """Adds how far outputs and loss are from those of standard attention on the same problem, and the verdict."""
    ours, theirs = ([float(word) for word in row["sampled_outputs"].split()] for row in (fields, standard))
    apart = [abs(a - b) for a, b in zip(ours, theirs, strict=True)] + [abs(fields["train_loss"] - standard["train_loss"])]
    fields["atol"] = AGREEMENT[fields["dtype"]]
    fields["compared_with"], fields["max_difference"] = "standard", max(apart)
    # A NaN compares with nothing, so it differs.
    fields["verdict"] = "agrees" if all(value <= fields["atol"] for value in apart) else "differs"


def compare(fields, standard):
    """Adds the comparison with the row of standard attention at the same problem: savings, and whether they agree."""
    if standard is None or standard["status"] != "ok" or fields["status"] != "ok" or fields["algorithm"] == "standard":
        return
    agreement(fields, standard)
    fields["speedup_over_standard"] = standard["median_ms"] / fields["median_ms"]
    fields["time_saved_percent"] = 100 * (1 - fields["median_ms"] / standard["median_ms"])
    fields["memory_saved_percent"] = 100 * (1 - fields["peak_bytes"] / standard["peak_bytes"])


def outcome_text(row):
    """ "12.3 ms, peak 105 MiB, saves 41 % of the time, saves 60 % of the memory"."""
    if row["status"] != "ok":
        return f"{row['status'].replace('_', ' ')}: {row['reason']}"
    text = f"{time_text(row['median_ms'])}, peak {bytes_text(row['peak_bytes'])}"
    if row["time_saved_percent"] is not None:
        time_saved, memory_saved = row["time_saved_percent"], row["memory_saved_percent"]
        duration = f"saves {time_saved:.0f} % of the time" if time_saved >= 0 else f"takes {1 - time_saved / 100:.2f} times as long"
        memory = f"saves {memory_saved:.0f} % of the memory" if memory_saved >= 0 else f"needs {-memory_saved:.0f} % more memory"
        text += f", {duration}, {memory}, {row['verdict']} with standard"
    return text


def run(options, results, progress, interrupt, device):
    """Measures what the results do not have yet. Returns (rows measured, rows that failed)."""
    problems = problems_of(options)
    seconds = MEASURE_SECONDS[options.scale]
    measured = failed = 0
    for index, problem in enumerate(problems):
        if interrupt.asked:
            raise Interrupted
        fields = problem.fields()
        if results.find(fields) is not None:
            continue
        progress.show(f"training {problem}", index / len(problems))
        arguments = {"problem": problem, "device": device, "seconds": seconds}
        outcome = worker.run(measure, arguments, interrupt)
        fields |= {"status": outcome.status, "reason": outcome.reason or None} | (outcome.value or {})
        compare(fields, results.find(fields | {"algorithm": "standard"}))
        row = results.write(fields)
        measured += 1
        failed += outcome.status == "failed"
        progress.say(f"training: {problem}: {outcome_text(row)}")
    return measured, failed
