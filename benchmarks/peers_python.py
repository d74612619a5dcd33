"""What a call of tessera.torch costs beside PyTorch's scaled_dot_product_attention where there is little to compute.

Sixteen tokens, eager mode, one thread by default: forward only, forward with a graph recorded, forward and backward. The two
sides are called in turn, a few calls at a time; the median of many rounds counts, and the lowest tenth is printed
beside it, since on a busy machine that is what was not interrupted. Results are compared first. The last line is one JSON
object. Exit codes: 0 the bar (forward at most 1.5 times PyTorch's on the CPU, at most 15 us more on a GPU) is met,
1 it is missed, 2 wrong arguments.

    python benchmarks/peers_python.py                    # with the package and PyTorch installed
    python benchmarks/peers_python.py --device cuda
"""

import argparse
import json
import platform
import statistics
import sys
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

import tessera
import tessera.torch

CALLS = 5  # per side and round
RATIO, MICROSECONDS = 1.5, 15.0  # the bar, on the CPU and on a GPU
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
    """Microseconds per call: a list for each side, measured in turn."""
    times = {side: [] for side in calls}
    for _ in range(rounds):
        for side, call in calls.items():
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[side].append((time.perf_counter() - start) / CALLS * 1e6)
    return times


def check(calls):
    """Both sides compute the same."""
    def flat(result):
        return torch.cat([x.detach().float().flatten() for x in (result if isinstance(result, tuple) else (result,))])

    want = flat(calls["torch"]())
    for side, call in calls.items():
        error = (flat(call()) - want).abs().max().item()
        if error > 1e-2 * want.abs().max().item():
            sys.exit(f"{side}: differs from PyTorch by {error}")


def main():
    parser = argparse.ArgumentParser(description="Call overhead of tessera.torch beside PyTorch's attention.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--heads", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch and, following it, of the library")
    parser.add_argument("--rounds", type=int, default=2000)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    rows, missed = [], []
    print(f"{'':20}{'heads':>6}  " + "".join(f"{side:>22}" for side in SIDES) + f"{'ratio':>8}{'lowest':>8}")
    for heads in arguments.heads:
        for kind in ("forward", "forward, recorded", "forward + backward"):
            calls = {side: call_of(function, kind, heads, arguments.dim, arguments.device,
                                   getattr(torch, arguments.dtype)) for side, function in SIDES.items()}
            check(calls)
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
    print(json.dumps({"tessera": tessera.__version__, "torch": torch.__version__, "machine": platform.processor() or
                      platform.machine(), **vars(arguments), "rows": rows}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
