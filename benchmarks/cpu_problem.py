"""The tensors of a cell, and Tessera's call on them."""

import functools
import math

import torch

from cpu_cells import CHOSEN, WINDOW
from judging import compare

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LAYOUTS = ("bhnd", "bnhd")  # how (B, H, N, D) lies in memory: contiguous, or a transposed (B, N, H, D)


def laid_out(tensor, layout):
    """The same values as a contiguous (B, H, N, D), or as a view of a contiguous (B, N, H, D)."""
    return tensor.contiguous() if layout == "bhnd" else tensor.transpose(1, 2).contiguous().transpose(1, 2)


class Problem:
    """A cell with its data: the same values in both layouts, and masks in the forms that libraries take."""

    def __init__(self, cell, tessera, cores):
        self.cell, self.tessera, self.cores = cell, tessera, cores
        self.dtype = DTYPES[cell.dtype]
        generator = torch.Generator().manual_seed(0)
        sizes = [(cell.heads, cell.queries)] + [(cell.kv_heads, cell.keys)] * 2 + [(cell.heads, cell.queries)]
        if cell.direction == "forward":
            sizes.pop()
        self.values = [
            torch.randn((cell.batch, heads, length, cell.dim), generator=generator).to(self.dtype)
            for heads, length in sizes
        ]
        self.laid = {}
        self.bias = self.slopes = self.visible = None
        if cell.feature == "bias":
            shape = (1, cell.heads, cell.queries, cell.keys)
            self.bias = torch.randn(shape, generator=generator).to(self.dtype)
        if cell.feature == "alibi":
            self.slopes = torch.tensor([2.0 ** (-8 * (head + 1) / cell.heads) for head in range(cell.heads)])
        if cell.feature == "padding":
            lengths = torch.tensor(cell.padded_lengths())
            self.visible = (torch.arange(cell.keys) < lengths[:, None])[:, None, None, :]

    def tensors(self, layout):
        """q, k, v and, for backward, the gradient of the output."""
        if layout not in self.laid:
            self.laid[layout] = [laid_out(tensor, layout) for tensor in self.values]
        return self.laid[layout]

    def thread_choices(self):
        """What a peer may try: the cell's number of threads, or one and all where the libraries choose."""
        return sorted({1, self.cores}) if self.cell.threads == CHOSEN else [self.cell.threads]

    # --- masks, for peers ---------------------------------------------------------------------------------------------

    def masked(self):
        return self.cell.feature != ""

    @functools.cache
    def boolean(self, causal):
        """True where a query may attend to a key, or None where no such mask says it all."""
        cell = self.cell
        if cell.feature in ("bias", "alibi"):
            return None
        parts = [self.visible, self.window(), self.triangle() if causal and cell.causal else None]
        return functools.reduce(torch.logical_and, [part for part in parts if part is not None])

    @functools.cache
    def additive(self, causal):
        """All that is added to the scores, in the type of the tensors; `causal`: the triangle as well."""
        cell = self.cell
        total = torch.zeros(1, 1, 1, cell.keys)
        if self.bias is not None:
            total = total + self.bias
        if self.slopes is not None:
            distance = (torch.arange(cell.queries)[:, None] - torch.arange(cell.keys)).abs()
            total = total - (self.slopes[:, None, None] * distance)[None]
        for visible in (self.visible, self.window(), self.triangle() if causal and cell.causal else None):
            if visible is not None:
                total = total.masked_fill(~visible, -math.inf)
        return total.to(self.dtype).contiguous()

    def window(self):
        if self.cell.feature != "window":
            return None
        return (torch.arange(self.cell.queries)[:, None] - torch.arange(self.cell.keys) < WINDOW)[None, None]

    def triangle(self):
        return torch.ones(self.cell.queries, self.cell.keys, dtype=torch.bool).tril()[None, None]

    # --- Tessera ------------------------------------------------------------------------------------------------------

    def mask_arguments(self):
        """Masks in Tessera's words."""
        arguments = {}
        if self.bias is not None:
            arguments["bias"] = self.bias
        if self.slopes is not None:
            arguments["alibi_slopes"] = self.slopes.data_ptr()
        if self.visible is not None:
            arguments["visible"] = self.visible
        if self.cell.feature == "window":
            arguments["left"] = WINDOW - 1
        return arguments

    def ours(self, layout, threads=None):
        """Tessera's call in a layout, prepared once."""
        return Ours(self, layout, self.cell.threads if threads is None else threads)


class Ours:
    """A prepared call of Tessera with its results."""

    def __init__(self, problem, layout, threads):
        cell = problem.cell
        q, k, v, *rest = problem.tensors(layout)
        how = {"causal": cell.causal, "threads": threads, **problem.mask_arguments()}
        out = torch.empty_like(q)
        backward = cell.direction == "backward"
        lse = torch.empty(cell.batch, cell.heads, cell.queries) if backward else None
        forward = problem.tessera.forward(q, k, v, out, lse, **how)
        if backward:
            self.outputs = [torch.empty_like(tensor) for tensor in (q, k, v)]
            forward()
            self.call = problem.tessera.backward(q, k, v, out, lse, *rest, *self.outputs, **how)
        else:
            self.outputs, self.call = [out], forward
        self.call.kept = (problem, q, k, v, rest, out, lse, self.outputs)  # a call holds addresses, not tensors
        compare.poison(*self.outputs)

    def plan(self):
        return self.call.plan()


def difference(pairs):
    """The largest difference as a share of the largest value, over pairs of ours and theirs; NaN is infinite."""
    worst = 0.0
    for ours, theirs in pairs:
        share = ((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()).item()
        worst = max(worst, share if math.isfinite(share) else math.inf)
    return worst
