"""The cells of peers_gpu.py and what they must reach, as tables."""

from judging import DIRECTIONS, Bar

# --- cells
#   --------------------------------------------------------------------------------------------

TOKENS, WIDTH = 16384, 2048  # batch * length, heads * head_dim
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
HEAD_DIMS = (64, 128, 256)
DTYPES = ("bf16", "fp16")  # fp32 is a section of its own
SOME_LENGTHS = (1024, 8192)  # where a section compares Tessera with itself
FEATURE_LENGTH = 4096
CAUSAL_LENGTH = SPARSE_LENGTH = 8192
QUICK = {"lengths": SOME_LENGTHS, "seconds": 0.02}

SECTIONS = {
    "forward": "against FlashAttention-2, both 16-bit types side by side",
    "backward": "against FlashAttention-2",
    "peaked": "fp16 against bf16 where few keys have all the weight",
    "speculation": "inputs that raise the maximum in every block of keys",
    "fp32": "against PyTorch's memory-efficient kernels, speed and error",
    "sm75": "the path for Turing against that for Ampere",
    "features": "softcap, ALiBi and bias against plain attention, dropout against FlashAttention-2",
    "sparse": "a quarter of the blocks against all of them",
    "deterministic": "the reproducible backward pass against the other",
    "memory": "what calls take besides their tensors",
}


def shape(length, dim):
    """(batch, heads, length, head_dim) of a cell."""
    return TOKENS // length, WIDTH // dim, length, dim


def flops(length, direction, causal):
    """By FlashAttention's convention: 4 B H N N D forward, 2.5 times that backward, half with a causal mask."""
    return 4 * TOKENS * length * WIDTH * (1 if direction == "forward" else 2.5) * (0.5 if causal else 1)


# --- bars
#   ---------------------------------------------------------------------------------------------


def each_direction(text, value, section, **bounds):
    """The same bar for both; bounds that differ are pairs."""
    return [
        Bar(
            f"{direction}, {text}",
            value,
            where={"section": section, "direction": direction},
            **{key: bound[index] if isinstance(bound, tuple) else bound for key, bound in bounds.items()},
        )
        for index, direction in enumerate(DIRECTIONS)
    ]


def feature(name, most):
    return [
        Bar(f"{direction} with {name} / plain time", "cost", most=most, where={"feature": name, "direction": direction})
        for direction in DIRECTIONS
    ]


def against_flash_attention(direction, mean, each):
    where = {"section": direction}
    return [
        Bar(f"{direction}, x FlashAttention-2, geometric mean", "ratio", mean, where=where, mean=True),
        Bar(f"{direction}, x FlashAttention-2, every cell", "ratio", each, where=where),
    ]


BARS = [
    Bar("result, difference as a share of what is allowed", "error_share", most=1),
    *against_flash_attention("forward", 1.17, 1.0),
    *against_flash_attention("backward", 1.15, 0.98),
    Bar("forward fp16, x bf16, random data", "of_bf16", 0.95, where={"section": "forward"}),
    Bar("forward fp16, x bf16, peaked data", "of_bf16", 0.9, where={"section": "peaked"}),
    Bar("worst inputs for speculation, x the lazy form", "of_lazy", 0.7),
    Bar("rows that see one key, values of others in them", "one_key_differences", most=0),
    *each_direction("fp32, x PyTorch's EFFICIENT_ATTENTION", "ratio", "fp32", least=1.5),
    *each_direction("fp32, error / that of EFFICIENT_ATTENTION", "error_ratio", "fp32", most=1.5),
    *each_direction("path for sm_75, x that for sm_80", "of_sm80", "sm75", least=(0.68, 0.6)),
    *(
        Bar(
            f"{direction}, causal / full time, N = {CAUSAL_LENGTH}",
            "causal_cost",
            most=0.56,
            where={"section": direction, "length": CAUSAL_LENGTH},
        )
        for direction in DIRECTIONS
    ),
    *each_direction("block-sparse 25 % / dense time", "cost", "sparse", most=0.30),
    *(
        Bar(f"{direction} with dropout, x FlashAttention-2", "ratio", 1.0, where={"feature": "dropout", "direction": direction})
        for direction in DIRECTIONS
    ),
    *feature("softcap", 1.5),
    *feature("alibi", 1.5),
    *feature("bias", 1.8),
    Bar("deterministic / other backward time", "cost", most=1.25, where={"section": "deterministic"}),
    Bar("memory a call takes / what its plan declares", "of_plan", most=1),
    Bar("forward, bytes besides the tensors and the LSE", "extra_bytes", most=0, where={"direction": "forward"}),
    # Beside delta stands the LSE in units of log2: 4 bytes per row, less than 2 % of dQ's sums.
    Bar("backward, bytes / (fp32 dQ + delta)", "of_sums", most=1.02, where={"direction": "backward"}),
]


def derive(rows):
    """What compares cells with each other, now that all are there."""
    key = ("section", "dtype", "direction", "dim", "length")
    cells = {(*(row[name] for name in key), row["causal"]): row for row in rows if row["section"] in DIRECTIONS}
    for (*same, causal), row in cells.items():
        full = cells.get((*same, False))
        if causal and full and row["tessera_ms"] and full["tessera_ms"]:
            row["causal_cost"] = row["tessera_ms"] / full["tessera_ms"]
