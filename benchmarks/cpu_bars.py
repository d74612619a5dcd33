"""What the cells of peers_cpu.py must reach, as a table. `ratio` is against the fastest peer of a cell."""

from cpu_cells import FEATURES, GROWTH_LENGTHS
from judging import DIRECTIONS, Bar

AMX, DOT = {"bf16": "bf16_amx"}, {"bf16": "bf16_dot"}
BEST = "x best peer"


def of(group, **more):
    return {"group": group, **more}


def fractions(dtype, full, causal, machine, directions=DIRECTIONS):
    """Shares of the arithmetic peak from N = 1024 on."""
    return [
        Bar(f"{dtype} {direction} {'causal' if masked else 'full'}, of peak", "fraction", least,
            where=of("attention", dtype=dtype, direction=direction, causal=masked, long=True), machine=machine)
        for direction in directions
        for masked, least in ((False, full), (True, causal))
    ]


def ratios(dtype, direction, full, causal):
    return [
        Bar(f"{dtype} {direction} {'causal' if masked else 'full'}, {BEST}", "ratio", least,
            where=of("attention", dtype=dtype, direction=direction, causal=masked))
        for masked, least in ((False, full), (True, causal))
    ]


BARS = [
    Bar("difference / allowed difference", "error_share", most=1),
    *(bar for direction in DIRECTIONS for bar in ratios("fp32", direction, 1.12, 1.2)),
    *(bar for direction in DIRECTIONS for bar in ratios("bf16", direction, 1.2, 1.2)),
    Bar("all of these, x best peer, mean", "ratio", 1.5, where=of("attention"), mean=True),
    *fractions("fp32", 0.90, 0.86, {"amd": True}),
    *fractions("fp32", 0.80, 0.76, {"amd": False}, ["forward"]),
    *fractions("fp32", 0.78, 0.74, {"amd": False}, ["backward"]),
    *fractions("bf16", 0.88, 0.80, DOT),
    *(Bar(f"{dtype} decode, {BEST}", "ratio", 1.3, where=of("decode", dtype=dtype)) for dtype in ("fp32", "bf16", "fp16")),
    Bar("decode, 32k keys, of a plain read", "bandwidth_share", 0.85),
    *(Bar(f"{dtype} short calls, {BEST}", "ratio", 1.1, where=of("short", dtype=dtype)) for dtype in ("fp32", "bf16")),
    # Never slower than with 1 thread; 3 % are noise.
    Bar("short calls, 1 thread / as chosen", "one_thread_ratio", 0.97),
    *(Bar(f"{label}, {BEST}", "ratio", 1.2, where=of("features", label=label)) for label in FEATURES),
    Bar(f"time per FLOP, N = {GROWTH_LENGTHS[0]} to 32k, max / min", "growth", most=1.10),
    Bar("causal / full time, N = 4096", "causal_cost", most=0.53, where=of("growth", length=4096)),
    Bar("causal / full time, N = 1024", "causal_cost", most=0.56, where=of("growth", length=1024)),
    Bar("rate of all / threads x rate of one", "scaling", least=0.95),
    Bar("block-sparse 25 % / dense time", "sparse_cost", most=0.32),
    # The LSE, and for each thread 1 MiB with K and V of a head.
    Bar("forward workspace / LSE, 1 MiB, K, V", "workspace_share", most=1),
    Bar("backward workspace at 2N / at N", "workspace_growth", most=2.2),
]
