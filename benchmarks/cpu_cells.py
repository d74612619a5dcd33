"""What peers_cpu.py measures, as a table of cells. No PyTorch.

A cell is one problem with one number of threads. Every peer and Tessera compute it; a row is what one peer made of it.
"""

from dataclasses import dataclass

SHAPES = ("1,25,1024,64", "2,12,2048,64", "1,8,4096,128", "1,1,4096,64", "1,32,512,128")  # B,H,N,D
QUICK_SHAPES = ("1,25,1024,64", "1,32,512,128")
PEERS = {"pytorch": "PyTorch", "zentorch": "zentorch", "openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}
GROUPS = ("attention", "decode", "short", "features", "growth", "sparse")
ALONE = ("growth", "sparse")  # groups that compare Tessera with itself
CHOSEN = 0  # threads: as many as the library chooses

# Largest difference between ours and theirs, as a share of the largest value. Both sides round results to 8 bits in
# bf16, and PyTorch's backward rounds once per block.
TOLERANCE = {"fp32": 1e-4, "bf16": 4e-2, "fp16": 1e-2}

DECODE = {"heads": 32, "kv_heads": 8, "dim": 128}
DECODE_KEYS = (2048, 8192, 32768)
SHORT_LENGTHS = (16, 32, 64, 128)
SHORT = {"heads": 12, "dim": 64}
WINDOW = 512
FEATURES = {  # B, H, key/value heads, N, D, causal, feature
    f"window {WINDOW}": (1, 8, 8, 4096, 64, True, "window"),
    "GQA 32:8 full": (1, 32, 8, 1024, 128, False, ""),
    "GQA 32:8 causal": (1, 32, 8, 1024, 128, True, ""),
    "float bias": (1, 12, 12, 2048, 64, False, "bias"),
    "boolean padding": (8, 12, 12, 512, 64, False, "padding"),
    "ALiBi causal": (1, 12, 12, 2048, 64, True, "alibi"),
}
GROWTH_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
GROWTH_TOKENS, GROWTH_DIM = 32768, 64  # heads x length is one number, so each length has enough tasks
CAUSAL_LENGTHS = (1024, 4096)
SPARSE = {"shape": (1, 8, 4096, 64), "block": 128, "density": 0.25}


@dataclass(frozen=True)
class Cell:
    """One problem. `feature`: "", "window", "bias", "padding" or "alibi"; `label` names the problem within its group."""

    group: str
    label: str
    dtype: str
    direction: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    causal: bool
    threads: int
    feature: str = ""

    @property
    def name(self):
        """Unique among all cells."""
        words = {"decode": "decode", "short": "short"}.get(self.group, self.direction)
        count = "chosen" if self.threads == CHOSEN else f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.dtype} {words} {self.label}, {count}"

    def padded_lengths(self):
        """The visible keys of each batch entry: evenly spread up to all of them."""
        return [self.keys * (index + 1) // self.batch for index in range(self.batch)]

    def visible_pairs(self):
        """Query-key pairs of one head over the batch. Causal counts half, FlashAttention's convention."""
        if self.feature == "window":
            return self.batch * sum(min(row + 1, WINDOW) for row in range(self.queries))
        if self.feature == "padding":
            return self.queries * sum(self.padded_lengths())
        return self.batch * self.queries * self.keys * (0.5 if self.causal else 1)

    def flops(self):
        return 4 * self.heads * self.dim * self.visible_pairs() * (2.5 if self.direction == "backward" else 1)

    def facts(self):
        """The fields that a row and the bars need."""
        named = ("group", "label", "dtype", "direction", "causal", "threads", "feature", "batch", "heads", "dim", "keys")
        return {"name": self.name} | {name: getattr(self, name) for name in named}


def masks(causal):
    return "causal" if causal else "full"


def attention_cells(options):
    for dtype in (word for word in options["dtypes"] if word != "fp16"):
        for direction in options["directions"]:
            for shape in options["shapes"]:
                B, H, N, D = (int(size) for size in shape.split(","))
                for causal in (False, True):
                    for threads in options["threads"]:
                        label = f"{shape} {masks(causal)}"
                        yield Cell("attention", label, dtype, direction, B, H, H, N, N, D, causal, threads)


def decode_cells(options):
    heads, kv_heads, dim = DECODE.values()
    for dtype in options["dtypes"]:
        for keys in DECODE_KEYS[:: 2 if options["quick"] else 1]:
            for threads in options["threads"]:
                yield Cell("decode", f"{keys} keys", dtype, "forward", 1, heads, kv_heads, 1, keys, dim, False, threads)


def short_cells(options):
    for dtype in (word for word in options["dtypes"] if word != "fp16"):
        for length in SHORT_LENGTHS[:: 3 if options["quick"] else 1]:
            for causal in (False, True):
                sizes = (1, SHORT["heads"], SHORT["heads"], length, length, SHORT["dim"])
                yield Cell("short", f"N={length} {masks(causal)}", dtype, "forward", *sizes, causal, CHOSEN)


def feature_cells(options):
    for dtype in (word for word in options["dtypes"] if word != "fp16"):
        for label, (B, H, kv_heads, N, D, causal, feature) in FEATURES.items():
            for threads in options["threads"]:
                yield Cell("features", label, dtype, "forward", B, H, kv_heads, N, N, D, causal, threads, feature)


MAKERS = {"attention": attention_cells, "decode": decode_cells, "short": short_cells, "features": feature_cells}


def cells_of(options):
    """All cells with peers that the options ask for: {"groups", "dtypes", "directions", "shapes", "threads", "quick"}."""
    return [cell for group in options["groups"] if group in MAKERS for cell in MAKERS[group](options)]
