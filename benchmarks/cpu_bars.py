"""What the cells of peers_cpu.py must reach, as a table."""

from judging import DIRECTIONS, Bar


def attention(dtype, direction, **more):
    return {"kind": "attention", "dtype": dtype, "direction": direction, **more}


def fractions(dtype, direction, full, machine, **more):
    """A share of the arithmetic peak from N = 1024 on; causal masks may lose 0.04 at the diagonal."""
    return [
        Bar(
            f"{dtype} {direction} {'causal' if causal else 'full'}{' D' + str(more['dim']) if more else ''}, of peak",
            "fraction",
            least=round(full - 0.04 * causal, 2),
            where=attention(dtype, direction, causal=causal, long=True, **more),
            machine=machine,
        )
        for causal in (False, True)
    ]


def mean_ratio(dtype, direction, least, machine=None, **more):
    text = f"{dtype} {direction}, x PyTorch, geometric mean{''.join(f', {v} threads' for v in more.values())}"
    return Bar(text, "ratio", least, where=attention(dtype, direction, **more), machine=machine or {}, mean=True)


AMX, DOT, NEITHER = {"bf16": "bf16_amx"}, {"bf16": "bf16_dot"}, {"bf16": "fp32_fma"}

BARS = [
    Bar("result, difference from PyTorch as a share of what is allowed", "error_share", most=1),
    *fractions("fp32", "forward", 0.88, {"amd": True}),
    *fractions("fp32", "forward", 0.80, {"amd": False}),
    *fractions("fp32", "backward", 0.88, {"amd": True}),
    *fractions("fp32", "backward", 0.78, {"amd": False}),
    *(mean_ratio("fp32", direction, 1.5) for direction in DIRECTIONS),
    *(
        Bar(f"fp32 {direction}, x PyTorch, every cell", "ratio", 1.2, where=attention("fp32", direction))
        for direction in DIRECTIONS
    ),
    Bar(
        "fp32 backward of one head, x PyTorch, all threads",
        "ratio",
        least=1.5,
        where=attention("fp32", "backward", shape="1,1,4096,64", team="all"),
    ),
    *fractions("bf16", "forward", 0.80, DOT, dim=64),
    *fractions("bf16", "forward", 0.86, DOT, dim=128),
    *fractions("bf16", "backward", 0.85, DOT),
    mean_ratio("bf16", "forward", 2.8, DOT),
    mean_ratio("bf16", "backward", 2.2, DOT),
    *(mean_ratio("bf16", "forward", 1.2, AMX, team=team) for team in ("one", "all")),
    *(mean_ratio("bf16", "backward", 3.0, AMX, team=team) for team in ("one", "all")),
    *(mean_ratio("bf16", direction, 1.3, NEITHER) for direction in DIRECTIONS),
    Bar("rate of all threads / (threads x rate of one)", "scaling", least=0.95),
    Bar("causal / full time, N = 4096", "causal_cost", most=0.55, where={"length": 4096}),
    Bar("block-sparse 25 % / dense time", "sparse_cost", most=0.32),
    Bar("decode, of reading bandwidth, one thread", "bandwidth_share", 0.70, where={"team": "one"}),
    Bar("decode, of reading bandwidth, all threads", "bandwidth_share", 0.85, where={"team": "all"}),
    Bar("forward workspace / (LSE + per thread 1 MiB and K, V of a head)", "workspace_share", most=1),
    Bar("backward workspace at 2N / at N", "workspace_growth", most=2.2),
]
