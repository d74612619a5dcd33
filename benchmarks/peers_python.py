"""What tessera.torch costs beside PyTorch's attention where there is little to compute, and beside the C interface where
there is much.

Sixteen tokens, eager mode, one thread by default: forward only, forward with a graph recorded, forward and backward. The two
sides are called in turn, a few calls at a time; the median of many rounds counts, and the lowest tenth is printed
beside it, since on a busy machine that is what was not interrupted. Results are compared first.

With --library, the shared library of a build, long sequences follow: tessera.torch.attention and the C functions of
that library on the same tensors, forward and backward, in turn. The median of the rounds' ratios counts.

The last line is one JSON object. Exit codes: 0 the bars (forward at most 1.5 times PyTorch's on the CPU, at most 15 us more on
a GPU; long sequences within 3 % of the C interface) are met, 1 one is missed, 2 wrong arguments.

    python benchmarks/peers_python.py                    # with the package and PyTorch installed
    python benchmarks/peers_python.py --device cuda --dtype bfloat16 --library build/release/lib/libtessera.so
"""

import argparse
import itertools
import json
import platform
import random
import statistics
import sys
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

import tessera
import tessera.torch
from tessera_capi import Tessera

CALLS = 5  # per side and round
RATIO, MICROSECONDS = 1.5, 15.0  # the bar, on the CPU and on a GPU
LONG_RATIO = 1.03  # the bar beside the C interface
LONG_CALLS = 3  # per side and round, after one that keeps the device busy while they are queued
SIDES = {"torch": scaled_dot_product_attention, "tessera": tessera.torch.scaled_dot_product_attention,
         "tessera.attention": lambda q, k, v: tessera.torch.attention(q, k, v, layout="bhsd")}


def call_of(function, kind, heads, dim, device, dtype):
    """A function without arguments that does the work once, and returns what it computed."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, 16, dim, device=device, dtype=dtype) for _ in range(3))
    if kind == "forward":
        return lambda: function(q, k, v)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    if kind == "forward, recorded":
        return lambda: function(*leaves)
    grad = torch.randn_like(q)
    return lambda: torch.autograd.grad(function(*leaves), leaves, grad)


def rounds_of(calls, rounds, device):
    """Microseconds per call: a list for each side, measured in turn, each round in a random order: none always follows the
    same one."""
    times = {side: [] for side in calls}
    draw = random.Random(0)
    for _ in range(rounds):
        for side, call in draw.sample(list(calls.items()), len(calls)):
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[side].append((time.perf_counter() - start) / CALLS * 1e6)
    return times


def check(calls, dtype):
    """Both sides compute the same."""
    def flat(result):
        return torch.cat([x.detach().float().flatten() for x in (result if isinstance(result, tuple) else (result,))])

    want = flat(calls["torch"]())
    allowed = (1e-2 if dtype == torch.float32 else 5e-2) * want.abs().max().item()  # gradients of bf16 carry roundings
    for side, call in calls.items():
        error = (flat(call()) - want).abs().max().item()
        if not error <= allowed:
            sys.exit(f"{side}: differs from PyTorch by {error}")


def long_calls(library, length, dim, causal, direction, arguments):
    """{side: a function that does the work once and returns what it computed} for the C interface and tessera.torch."""
    torch.manual_seed(0)
    shape = (max(1, arguments.tokens // length), arguments.long_heads, length, dim)
    q, k, v, grad = (torch.randn(shape, device=arguments.device, dtype=getattr(torch, arguments.dtype)) for _ in range(4))
    out, lse = torch.empty_like(q), torch.empty(shape[:3], device=q.device, dtype=torch.float32)
    stream = torch.cuda.current_stream() if q.is_cuda else None
    options = {"causal": causal, "stream": stream, "threads": 0 if q.is_cuda else arguments.threads}
    forward = library.forward(q, k, v, out, lse, **options)
    if direction == "forward":
        def from_c():
            forward()
            return (out,)

        def from_torch():
            with torch.no_grad():
                return (tessera.torch.attention(q, k, v, causal=causal, layout="bhsd"),)
    else:
        forward()
        grads = tuple(torch.empty_like(x) for x in (q, k, v))
        backward = library.backward(q, k, v, out, lse, grad, *grads, **options)
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        result = tessera.torch.attention(*leaves, causal=causal, layout="bhsd")

        def from_c():
            backward()
            return grads

        def from_torch():
            return torch.autograd.grad(result, leaves, grad, retain_graph=True)
    from_c.tensors = q, k, v, out, lse, grad  # the C interface has their addresses only: they live as long as the call
    return {"C": from_c, "tessera.torch": from_torch}


def long_time(call, device):
    """Milliseconds of LONG_CALLS calls: of a GPU between events, while the next call is queued before the last has ended."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(LONG_CALLS):
            call()
        return (time.perf_counter() - start) * 1e3
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    begin.record()
    for _ in range(LONG_CALLS):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def compare_long(arguments):
    """The rows of the long sequences, printed as they are measured."""
    library = Tessera(arguments.library)
    rows = []
    print(f"{'beside the C interface':22}{'length':>8}{'dim':>5}{'mask':>8}{'C':>12}{'tessera.torch':>16}{'ratio':>8}")
    for length in arguments.lengths:
        for dim, causal, direction in itertools.product(arguments.long_dims, (False, True), ("forward", "backward")):
            calls = long_calls(library, length, dim, causal, direction, arguments)
            for want, got in zip(calls["C"](), calls["tessera.torch"]()):
                error, largest = (got - want).abs().max().item(), want.abs().max().item()
                if not error <= 2e-2 * largest:  # gradients of a GPU are summed in any order
                    sys.exit(f"{direction}, length {length}: differs from the C interface by {error}, largest {largest}")
            times = {side: [] for side in calls}
            for index in range(arguments.long_rounds + 2):
                for side in (calls if index % 2 else reversed(calls)):
                    taken = long_time(calls[side], arguments.device) / LONG_CALLS
                    if index >= 2:
                        times[side].append(taken)
            ratio = statistics.median(ours / c for ours, c in zip(times["tessera.torch"], times["C"]))
            median = {side: statistics.median(values) for side, values in times.items()}
            rows.append({"direction": direction, "length": length, "dim": dim, "causal": causal, "median_ms": median,
                         "ratio": ratio})
            print(f"{direction:22}{length:8}{dim:5}{'causal' if causal else 'full':>8}{median['C']:9.3f} ms"
                  f"{median['tessera.torch']:13.3f} ms{ratio:8.3f}", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description="Call overhead of tessera.torch beside PyTorch's attention.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--heads", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch and, following it, of the library")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--library", help="libtessera.so of the same build: compares long sequences, too")
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192, 16384], help="of long sequences")
    parser.add_argument("--tokens", type=int, default=16384, help="in a batch of long sequences")
    parser.add_argument("--long-heads", type=int, default=16)
    parser.add_argument("--long-dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--long-rounds", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    rows, missed = [], []
    print(f"{'':20}{'heads':>6}  " + "".join(f"{side:>22}" for side in SIDES) + f"{'ratio':>8}{'lowest':>8}")
    for heads in arguments.heads:
        for kind in ("forward", "forward, recorded", "forward + backward"):
            dtype = getattr(torch, arguments.dtype)
            calls = {side: call_of(function, kind, heads, arguments.dim, arguments.device, dtype)
                     for side, function in SIDES.items()}
            check(calls, dtype)
            rounds_of(calls, 50, arguments.device)
            times = rounds_of(calls, arguments.rounds, arguments.device)
            median = {side: statistics.median(values) for side, values in times.items()}
            lowest = {side: statistics.quantiles(values, n=10)[0] for side, values in times.items()}
            row = {"kind": kind, "heads": heads, "median_us": median, "lowest_tenth_us": lowest,
                   "ratio": median["tessera"] / median["torch"], "lowest_ratio": lowest["tessera"] / lowest["torch"]}
            rows.append(row)
            print(f"{kind:20}{heads:6}  " + "".join(f"{median[s]:12.1f} ({lowest[s]:5.1f}) us" for s in SIDES)
                  + f"{row['ratio']:8.2f}{row['lowest_ratio']:8.2f}", flush=True)
            slow = (median["tessera"] - median["torch"] > MICROSECONDS if arguments.device == "cuda"
                    else row["ratio"] > RATIO)
            if kind == "forward" and slow:
                missed.append(heads)
    bar = f"at most {MICROSECONDS} us more" if arguments.device == "cuda" else f"at most {RATIO} times PyTorch's"
    print(f"bar: forward {bar}: {'MISSED for ' + str(missed) + ' heads' if missed else 'met'}")
    long_rows = compare_long(arguments) if arguments.library else []
    slow = [row for row in long_rows if row["ratio"] > LONG_RATIO]
    if long_rows:
        print(f"bar: within {LONG_RATIO} of the C interface: {f'MISSED by {len(slow)} of {len(long_rows)}' if slow else 'met'}")
    print(json.dumps({"tessera": tessera.__version__, "torch": torch.__version__, "machine": platform.processor() or
                      platform.machine(), **vars(arguments), "rows": rows, "long_rows": long_rows}))
    return 1 if missed or slow else 0


if __name__ == "__main__":
    sys.exit(main())
