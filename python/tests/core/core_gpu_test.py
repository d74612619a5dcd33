"""tessera.attention on a GPU: PyTorch's tensors against the oracle, and the caller's stream."""

from __future__ import annotations

import numpy as np
import pytest
from core_attention_test import problems
from gpu_support import TOLERANCE, check_problem
from hypothesis import given

import tessera

torch = pytest.importorskip("torch", reason="PyTorch is not installed (tools/setup python)")
if not torch.cuda.is_available() or len(tessera.info().devices) < 2:
    pytest.skip("no GPU that both PyTorch and the library can use", allow_module_level=True)


def to_gpu(values, dtype):
    return torch.tensor(np.asarray(values, dtype=np.float64), device="cuda").to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", TOLERANCE)
@given(problem=problems())
def test_random_problems(dtype, problem):
    check_problem(problem, dtype, to_gpu, lambda x: x.double().cpu().numpy())


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
    with pytest.raises(ValueError, match="alibi is on cpu; it must be on cuda:0"):
        tessera.attention(q, q, q, alibi=torch.ones(2))
