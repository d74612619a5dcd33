"""tessera.attention on a GPU: PyTorch's tensors against the oracle, and the caller's stream."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from core_attention_test import assert_close, left_right, problems
from hypothesis import given

import tessera

torch = pytest.importorskip("torch", reason="PyTorch is not installed (tools/setup python)")
if not torch.cuda.is_available() or len(tessera.info().devices) < 2:
    pytest.skip("no GPU that both PyTorch and the library can use", allow_module_level=True)

TOLERANCE = {torch.float32: (2e-5, 1e-4), torch.float16: (3e-3, 1e-2), torch.bfloat16: (2e-2, 6e-2)}


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@given(problem=problems())
def test_random_problems(dtype, problem):
    p, q, k, v, _ = problem
    to_gpu = lambda x: torch.tensor(np.asarray(x, dtype=np.float64), device="cuda").to(dtype)  # noqa: E731
    q, k, v = (to_gpu(x) for x in (q, k, v))
    arguments = dict(left_right(p), scale=p.scale, align=p.align, diagonal=p.diagonal, softcap=p.softcap,
                     dropout=p.dropout, seed=p.seed, offset=p.offset, bias=None if p.bias is None else to_gpu(p.bias),
                     alibi=None if p.alibi is None else torch.tensor(p.alibi, dtype=torch.float32, device="cuda"))
    if p.bias is not None:
        p = oracle.replace(p, bias=arguments["bias"].double().cpu().numpy())
    if p.lengths_q is not None:
        arguments["lengths"] = tuple(torch.tensor(np.cumsum((0, *x)), dtype=torch.int32, device="cuda")
                                     for x in (p.lengths_q, p.lengths_k))
        arguments["max_lengths"] = max(p.lengths_q), max(p.lengths_k)
    out, lse = tessera.attention(q, k, v, return_lse=True, **arguments)
    grad_out = torch.randn_like(out)
    grads = tessera.attention_backward(grad_out, q, k, v, out, lse, deterministic=True, **arguments)
    back = lambda x: x.double().cpu().numpy()  # noqa: E731
    expected = oracle.attention(p, back(q), back(k), back(v), back(grad_out))
    tolerance, grad_tolerance = TOLERANCE[dtype]
    assert_close(back(out), expected[0], tolerance, "out")
    assert_close(back(lse), expected[1], tolerance, "lse")
    for name, actual, wanted in zip(("q", "k", "v", "bias"), grads, expected[2:]):
        if wanted is not None:
            assert_close(back(actual), wanted, grad_tolerance, f"gradient of {name}")


def test_the_current_stream_is_honoured():
    """Work before the call on a stream of one's own is seen, and work after it sees the result, without a wait."""
    stream = torch.cuda.Stream()
    q, k, v = (torch.randn(2, 512, 8, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    expected = tessera.attention(q * 2, k, v)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        doubled = q * 2
        out = tessera.attention(doubled, k, v)
        copy = out.clone()
    stream.synchronize()
    torch.testing.assert_close(copy, expected, atol=0, rtol=0)


def test_arrays_on_two_devices_are_refused():
    q = torch.randn(1, 4, 2, 8, device="cuda", dtype=torch.float16)
    with pytest.raises(ValueError):
        tessera.attention(q, q.cpu(), q)
    with pytest.raises(ValueError, match="alibi lies on cpu; it must be on cuda:0"):
        tessera.attention(q, q, q, alibi=torch.ones(2))


def test_cupy():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    q = cupy.random.standard_normal((1, 32, 2, 16)).astype(cupy.float32)
    with cupy.cuda.Stream():
        out = tessera.attention(q, q, q, causal=True)
        assert isinstance(out, cupy.ndarray)
        host = cupy.asnumpy(q)
        np.testing.assert_allclose(cupy.asnumpy(out), tessera.attention(host, host, host, causal=True), atol=1e-5)
