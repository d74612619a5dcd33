"""tessera.attention on CuPy's arrays: against the oracle, without copies, on CuPy's current stream."""

from __future__ import annotations

import numpy as np
import pytest
from core_attention_test import problems
from gpu_support import check_problem
from hypothesis import given

import tessera

cupy = pytest.importorskip("cupy", reason="CuPy is not installed (pip install cupy-cuda13x)", exc_type=ImportError)


def obstacle():
    """Why no test can run here; empty: they can."""
    try:
        gpus = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy finds no GPU: {error}"
    if gpus == 0 or len(tessera.info().devices) < 2:
        return "no GPU that both CuPy and the library can use"
    return ""


if reason := obstacle():
    pytest.skip(reason, allow_module_level=True)


def randn(*shape, dtype=np.float16, seed=0):
    return cupy.asarray(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def attention_on_the_host(q, k, v, **arguments):
    """The same problem in fp64 by the library's CPU kernels, which have their own tests against the oracle."""
    return tessera.attention(*(cupy.asnumpy(x).astype(np.float64) for x in (q, k, v)), **arguments)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@given(problem=problems())
def test_random_problems(dtype, problem):
    check_problem(problem, dtype, lambda values, to: cupy.asarray(np.asarray(values, dtype=np.float64)).astype(to),
                  lambda x: cupy.asnumpy(x).astype(np.float64))


def test_results_are_cupys():
    q = randn(2, 9, 4, 16)
    out, lse = tessera.attention(q, q, q, causal=True, return_lse=True)
    grads = tessera.attention_backward(out, q, q, q, out, lse, causal=True)
    for x in (out, lse, grads.q, grads.k, grads.v):
        assert isinstance(x, cupy.ndarray) and x.device == q.device
    assert (out.dtype, out.shape) == (np.float16, q.shape)
    assert (lse.dtype, lse.shape) == (np.float32, (2, 4, 9))


def test_views_and_given_results_are_used_in_place():
    """Strided inputs are read and strided results written where they lie; what lies between stays as it was."""
    packed = randn(2, 40, 3, 4, 32)
    q, k, v = packed[:, :, 0], packed[:, :, 1], packed[:, :, 2]
    whole = cupy.full((2, 40, 8, 32), 7, dtype=np.float16)
    out = whole[:, :, ::2]
    lse = cupy.empty((2, 4, 40), dtype=np.float32)
    returned, _ = tessera.attention(q, k, v, causal=True, out=out, lse=lse)
    assert returned is out
    want, want_lse = attention_on_the_host(q, k, v, causal=True, return_lse=True)
    np.testing.assert_allclose(cupy.asnumpy(out), want, atol=3e-3)
    np.testing.assert_allclose(cupy.asnumpy(lse), want_lse, atol=1e-3)
    assert (whole[:, :, 1::2] == 7).all()


def test_lists_become_arrays_beside_q():
    q = randn(10, 2, 16, dtype=np.float32)
    arguments = dict(lengths=[0, 3, 10], max_lengths=(7, 7), alibi=[0.5, 0.25])
    np.testing.assert_allclose(cupy.asnumpy(tessera.attention(q, q, q, **arguments)),
                               attention_on_the_host(q, q, q, **arguments), atol=2e-5)


SPIN = cupy.RawKernel("""
extern "C" __global__ void spin(long long cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {}
}""", "spin")


@pytest.mark.parametrize("non_blocking", [False, True])
def test_the_current_stream_is_honoured(non_blocking):
    """Work before the call on a stream of one's own is seen, and work after it sees the result, without a wait."""
    q, k, v = (randn(2, 512, 8, 64, seed=i) for i in range(3))
    expected = tessera.attention(q * 2, k, v)
    scaled = cupy.zeros_like(q)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=non_blocking)
    with stream:
        # The first round gets what waits for the GPU: code that is loaded, memory for this stream. It leaves another
        # result in that memory.
        for factor, cycles in ((3, 0), (2, 400_000_000)):
            stream.synchronize()
            SPIN((1,), (1,), (np.int64(cycles),))
            cupy.multiply(q, factor, out=scaled)
            out = tessera.attention(scaled, k, v)
            copy = out.copy()
            done = stream.done
    assert not done, "the stream has nothing left to wait for: the test would prove nothing"
    stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(copy), cupy.asnumpy(expected))


def test_a_named_stream_is_used():
    q = randn(1, 64, 2, 32)
    expected = tessera.attention(q, q, q)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    out = tessera.attention(q, q, q, stream=stream.ptr)
    stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(out), cupy.asnumpy(expected))


def test_arrays_of_other_places_and_types_are_refused():
    q = randn(1, 4, 2, 8)
    with pytest.raises(ValueError):
        tessera.attention(q, cupy.asnumpy(q), q)
    with pytest.raises(ValueError, match="q.dtype is int32; it must be float64, float32, float16 or bfloat16"):
        tessera.attention(*[q.astype(np.int32)] * 3)


def test_arrays_of_pytorch_and_cupy_share_a_call():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (tools/setup python)")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    q, k = randn(1, 32, 2, 16), randn(1, 32, 2, 16, seed=1)
    cupy.cuda.Device().synchronize()
    expected = tessera.attention(q, k, k)
    cupy.cuda.Device().synchronize()
    out = tessera.attention(torch.from_dlpack(q), k, k)
    assert isinstance(out, torch.Tensor)
    np.testing.assert_array_equal(out.cpu().numpy(), cupy.asnumpy(expected))
