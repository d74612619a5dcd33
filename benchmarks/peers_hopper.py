"""The sections of `peers_gpu.py --algorithm flash3`: cuda.hopper against PyTorch's cuDNN backend.

Two protocols, both with 30 ms of calls to warm up, so that the power limit sets the clock as it does in real work, and with
L2 emptied before every launch; medians count. Interleaved: 200 ms of single launches of both sides in turn. Alone: 100 ms of
one side, launch after launch, then of the other; three rounds.
"""

import math
import random
import statistics

import torch
from torch.nn.attention import SDPBackend

import gpu_bars as cells
import hopper_bars
from judging import compare
from peers_gpu import LAZY, RAMPS, Benchmark, Problem, ramp_inputs, relative_errors

FLASH3 = 4  # TSR_FLASH3
WARM_UP_MS, MEASURE_MS, ALONE_ROUNDS = 30, 100, 3
FLUSH_MS = 0.08
FLUSH_BYTES = 2**28


def count_visible(length, window):
    """Pairs of a causal window."""
    return sum(min(row, window) + 1 for row in range(length))


def problem_of(tessera, q, k, v, dtype="bf16"):
    """A problem with tensors (B, H, N, D) of its own, for the forward pass alone."""
    problem = Problem.__new__(Problem)
    problem.tessera, problem.dtype, problem.gradients = tessera, dtype, []
    problem.length, problem.dim = q.shape[2:]
    problem.inputs = [q, k, v]
    problem.out, problem.lse = torch.empty_like(q), torch.empty(q.shape[:3], device="cuda")
    return problem


def random_bf16(*size):
    return torch.randn(size, device="cuda").to(torch.bfloat16)


class HopperBenchmark(Benchmark):
    def checked(self, problem, theirs, **options):
        """A call by the Hopper kernel and what is known of it."""
        call, error = problem.checked("forward", theirs, algorithm=FLASH3, **options)
        return call, {"error": error, "kernel": call.plan()["kernel"]}

    def repeated(self, calls):
        """Median milliseconds of each call; they are interleaved."""
        named = dict(enumerate(calls))
        clock = compare.EventClock(lambda: self.stopwatch.flush.memory[:FLUSH_BYTES].zero_())
        started = [clock.start(call)[0] for call in calls]
        each = sum(1000 * seconds + FLUSH_MS for seconds in clock.read(started))
        for _ in range(max(1, int(WARM_UP_MS / each))):
            for call in calls:
                clock.start(call)
        rounds = max(3, int(MEASURE_MS * len(calls) / each / (2 if self.options.quick else 1)))
        return self.stopwatch.measured(named, clock, rounds)

    def alone(self, calls):
        """Milliseconds of each call; one after the other has the GPU for itself."""
        rounds = [[self.repeated([call])[0] for call in calls] for _ in range(1 if self.options.quick else ALONE_ROUNDS)]
        return [statistics.median(column) for column in zip(*rounds)]

    def cells(self):
        for dim, length, causal in self.each(self.options.lengths, (False, True)):
            problem = Problem(self.tessera, length, dim, "bf16")
            theirs = problem.theirs("forward", SDPBackend.CUDNN_ATTENTION, causal)
            call, facts = self.checked(problem, theirs, causal=causal)
            exact = problem.exact("forward", causal)
            (mine,), (other,) = (relative_errors(results, exact) for results in (problem.results("forward"), theirs()))
            del exact
            facts |= {"error_ratio": mine / other, "elsewhere": int(facts["kernel"] != "cuda.hopper")}
            if causal:  # the first row sees one key
                facts["one_key_differences"] = (problem.out[:, :, 0] != problem.inputs[2][:, :, 0]).sum().item()
            times = {"interleaved": self.repeated([call, theirs]), "alone": self.alone([call, theirs])}
            for protocol, (ours, cudnn) in times.items():
                ratio = cudnn / ours
                share = ratio / hopper_bars.flash_attention_3(protocol, dim, causal, length)
                text = (
                    "{protocol:<11} {tessera_tflops:6.1f} TFLOP/s   cuDNN {torch_tflops:6.1f}   x {ratio:.3f}"
                    "   FA3's ratio x {of_flash_attention_3:.3f}   error {error_ratio:.2f} of cuDNN's"
                )
                self.add_ratio(
                    problem, "forward", causal, ours, cudnn, text, protocol=protocol, of_flash_attention_3=share, **facts
                )

    def types(self):
        for dim, length, causal in self.each(hopper_bars.SOME_LENGTHS, (False, True)):
            calls, facts = [], {}
            for dtype in ("bf16", "fp16"):
                problem = Problem(self.tessera, length, dim, dtype)
                theirs = problem.theirs("forward", SDPBackend.CUDNN_ATTENTION, causal)
                call, facts = self.checked(problem, theirs, causal=causal)
                calls += [call, theirs]
            times = self.repeated(calls)
            text = "{of_bf16:.3f} of bf16's speed   cuDNN {cudnn_of_bf16:.3f}"
            fields = {"of_bf16": times[0] / times[2], "cudnn_of_bf16": times[1] / times[3], "tessera_ms": times[2]}
            self.add(problem, "forward", text, causal=causal, **fields, **facts)

    def heads(self):
        for causal in (False, True):
            q, k, v = (random_bf16(4, 32, 4096, 128) for _ in range(3))
            many = problem_of(self.tessera, q, k, v)
            plain, _ = self.checked(many, many.theirs("forward", SDPBackend.CUDNN_ATTENTION, causal), causal=causal)
            for kv_heads in (8, 1):
                few = problem_of(self.tessera, q, k[:, :kv_heads].contiguous(), v[:, :kv_heads].contiguous())
                repeated = [x.repeat_interleave(32 // kv_heads, dim=1) for x in few.inputs[1:]]
                theirs = problem_of(self.tessera, q, *repeated).theirs("forward", SDPBackend.CUDNN_ATTENTION, causal)
                call, facts = self.checked(few, theirs, causal=causal)
                times = self.repeated([call, plain])
                fields = {"causal": causal, "of_many_heads": times[1] / times[0], "tessera_ms": times[0], **facts}
                self.add(few, "forward", "{of_many_heads:.3f} of the speed of 32:32", f"32:{kv_heads}", **fields)

    def window(self):
        length, width = 16384, 1024
        for dim in self.options.head_dims:
            problem = Problem(self.tessera, length, dim, "bf16")
            full = problem.ours("forward", algorithm=FLASH3)
            problem.poison()
            call = problem.ours("forward", algorithm=FLASH3, causal=True)
            call.attention.left = width
            call()
            places = torch.arange(length, device="cuda")
            distance = places[:, None] - places
            exact = problem.exact("forward", visible=(distance >= 0) & (distance <= width))
            error = relative_errors(problem.results("forward"), exact)[0]
            del exact, distance
            times = self.repeated([call, full])
            suggested = times[1] * count_visible(length, width) / length**2
            fields = {"of_work": times[0] / suggested, "tessera_ms": times[0], "error": error}
            self.add(problem, "forward", "{of_work:.3f} of the time its work suggests   error {error:.0e}", **fields)

    def varlen(self):
        generator = random.Random(0)
        for dim, causal in self.each((False, True)):
            heads, lengths = cells.WIDTH // dim, []
            while sum(lengths) < cells.TOKENS - 128:
                lengths.append(min(generator.choice((128, 300, 512, 777, 1024, 2048, 4096)), cells.TOKENS - sum(lengths)))
            total = sum(lengths)
            problem = Problem(self.tessera, 4096, dim, "bf16")
            dense = problem.ours("forward", algorithm=FLASH3, causal=causal)
            packed = problem_of(self.tessera, *(random_bf16(1, heads, total, dim) for _ in range(3)))
            packed.poison()
            ends = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
            options = {"lengths_q": ends.data_ptr(), "lengths_k": ends.data_ptr(), "lengths_count": len(lengths)}
            options |= {"lengths_max_q": max(lengths), "lengths_max_k": max(lengths)}
            call = packed.ours("forward", algorithm=FLASH3, causal=causal, **options)
            call()
            error, begin = 0.0, 0
            for count in lengths:
                q, k, v = (x[0, -1, begin : begin + count].double() for x in packed.inputs)
                scores = q @ k.T / math.sqrt(dim)
                if causal:
                    scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -math.inf)
                right = torch.softmax(scores, dim=-1) @ v
                error = max(error, ((packed.out[0, -1, begin : begin + count] - right).norm() / right.norm()).item())
                begin += count
            times = self.repeated([call, dense])
            work = sum(count**2 for count in lengths) / (cells.TOKENS * 4096)
            fields = {"of_dense": times[1] * work / times[0], "tessera_ms": times[0], "error": error, "causal": causal}
            self.add(problem, "forward", "{of_dense:.3f} of the dense rate   error {error:.0e}", **fields)

    def dims(self):
        for length in hopper_bars.SOME_LENGTHS:
            wide = Problem(self.tessera, length, 128, "bf16")
            full = wide.ours("forward", algorithm=FLASH3)
            for dim in (72, 96, 120):
                size = (cells.TOKENS // length, 16, length, dim)
                problem = problem_of(self.tessera, *(random_bf16(*size) for _ in range(3)))
                theirs = problem.theirs("forward", SDPBackend.CUDNN_ATTENTION)
                call, facts = self.checked(problem, theirs)
                times = self.repeated([call, full])
                fields = {"of_128": times[0] / times[1], "tessera_ms": times[0], **facts}
                self.add(problem, "forward", "{of_128:.3f} of the time of head_dim 128", **fields)

    def backward(self):
        for dim, length, causal in self.each(self.options.lengths, (False, True)):
            if dim not in hopper_bars.BACKWARD_DIMS:
                continue
            problem = Problem(self.tessera, length, dim, "bf16")
            theirs = problem.theirs("backward", SDPBackend.CUDNN_ATTENTION, causal)
            call, error = problem.checked("backward", theirs, algorithm=FLASH3, causal=causal)
            flash2 = problem.ours("backward", causal=causal)
            ours, cudnn, other = self.repeated([call, theirs, flash2])
            text = (
                "{tessera_tflops:6.1f} TFLOP/s   cuDNN {torch_tflops:6.1f}   x {ratio:.3f}   cuda.flash2 x {of_flash2:.3f}"
                "   error {error:.0e}"
            )
            facts = {"error": error, "kernel": call.plan()["kernel"], "of_flash2": other / ours}
            self.add_ratio(problem, "backward", causal, ours, cudnn, text, **facts)

    def speculation(self):
        for dim, dtype, downwards in self.each(("bf16", "fp16"), (False, True)):
            for rise in RAMPS[dtype]:
                problem = Problem(self.tessera, 8192, dim, dtype, ramp_inputs(rise, downwards))
                theirs = problem.theirs("forward", SDPBackend.CUDNN_ATTENTION)
                call, facts = self.checked(problem, theirs)
                lazy = problem.ours("forward", tessera=self.variant(**LAZY), algorithm=FLASH3)
                times = self.repeated([call, lazy])
                what = f"{'falling' if downwards else 'rising'} by {rise}"
                fields = {"of_lazy": times[1] / times[0], "tessera_ms": times[0], **facts}
                self.add(problem, "forward", "{of_lazy:.3f} of the lazy speed   error {error:.0e}", what, **fields)
