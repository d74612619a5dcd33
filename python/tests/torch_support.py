"""What the tests of tessera.torch share. TESSERA_TEST_DEVICE=cuda runs all of them on a GPU."""

from __future__ import annotations

import os

import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (tools/setup python)")

DEVICE = os.environ.get("TESSERA_TEST_DEVICE", "cpu")
if DEVICE == "cuda" and not torch.cuda.is_available():
    pytest.skip("TESSERA_TEST_DEVICE is cuda, but PyTorch sees no GPU", allow_module_level=True)

CUDA = DEVICE == "cuda"
EXACT = torch.float32 if CUDA else torch.float64  # the widest type of the device
DTYPES = [torch.float32, torch.float16, torch.bfloat16] + ([] if CUDA else [torch.float64])

cpu_only = pytest.mark.skipif(CUDA, reason="needs fp64, which the library has on the CPU only")
cuda_only = pytest.mark.skipif(not CUDA, reason="needs a GPU: TESSERA_TEST_DEVICE=cuda")


def randn(*shape, dtype=EXACT, grad=False):
    return torch.randn(*shape, dtype=dtype, device=DEVICE).requires_grad_(grad)


def as_numpy(tensor):
    return None if tensor is None else tensor.detach().double().cpu().numpy()


def check(name, got, want, dtype, factor=10, floor=0.0):
    """Every element within `factor` roundings of the largest one, or of `floor`, the size of the terms where they may
    cancel. A result of zeros fails unless it should be as good as zero."""
    got, want = as_numpy(got), np.asarray(want)
    assert got.shape == want.shape, f"{name}: shape {got.shape}, should be {want.shape}"
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite], err_msg=name)
    if finite.any():
        error, largest = np.abs(got[finite] - want[finite]).max(), np.abs(want[finite]).max()
        bound = factor * torch.finfo(dtype).eps * max(largest, floor)
        assert error <= bound, f"{name}: error {error:.3g}, allowed {bound:.3g}, largest element {largest:.3g}"


def check_problem(problem, run, q, k, v, bias=None):
    """Output, LSE and all gradients of run(q, k, v, bias) -> (out, lse), tensors (batch, sequence, heads, head_dim),
    against the oracle."""
    inputs = [x for x in (q, k, v, bias) if x is not None]
    out, lse = run(q, k, v, bias)
    grad_out, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    grads = torch.autograd.grad((out, lse), inputs, (grad_out, grad_lse))
    want = oracle.attention(problem, *map(as_numpy, (q, k, v, grad_out, grad_lse)))
    check("out", out, want[0], q.dtype)
    if CUDA and problem.softcap and q.dtype in (torch.float16, torch.bfloat16):
        # Kernels of the half types take the GPU's own tanh, with a relative error of 2^-11, half of fp16's eps.
        check("lse", lse, want[1], torch.float16, 1, floor=problem.softcap)
    else:
        check("lse", lse, want[1], lse.dtype, 40, floor=1.0)  # a maximum and a logarithm, which may cancel
    # Gradients of scores are differences of such terms, and as good as zero where a row sees one key.
    terms = np.einsum("bqhd,bkhd->bhqk", as_numpy(grad_out), as_numpy(v).repeat(q.shape[2] // v.shape[2], 2))
    largest = np.abs(terms).max(initial=0) / (1 - problem.dropout) + as_numpy(grad_lse.abs()).max(initial=0)
    for name, got, expected in zip(("grad_q", "grad_k", "grad_v", "grad_bias"), grads, want[2:]):
        check(name, got, expected, q.dtype, 30, floor=max(0.1, 0.2 * largest))


def plain_attention(q, k, v, *, mask=None, bias=None, scale=None, softcap=0.0):
    """Attention by its definition in torch, on (batch, sequence, heads, head_dim); rows without keys give 0."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores if bias is None else scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def band(queries, keys, left=-1, right=-1, diagonal=None):
    """(queries, keys): what a window around a diagonal, bottom-right by default, lets through."""
    diagonal = keys - queries if diagonal is None else diagonal
    distance = torch.arange(keys, device=DEVICE) - torch.arange(queries, device=DEVICE)[:, None] - diagonal
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen
