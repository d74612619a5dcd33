"""Arrays of every library come in without a copy and go out in the library of q."""

from __future__ import annotations

import array
import gc
import sys

import numpy as np
import pytest

import tessera
from tessera import _core


def random_qkv(dtype=np.float32):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 9, 3, 8)).astype(dtype) for _ in range(3)]


class OnlyDlpack:
    """An array of some library: DLPack and nothing else. `versions`: whether it knows DLPack 1.x."""

    def __init__(self, values, versions=True):
        self.values, self.versions = values, versions
        self.dtype, self.shape = values.dtype, values.shape
        self.exports = 0

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __dlpack__(self, **arguments):
        self.exports += 1
        if not self.versions and "max_version" in arguments:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.values.__dlpack__(**arguments)


@pytest.mark.parametrize("versions", [True, False])
def test_dlpack_of_any_library(versions):
    q, k, v = random_qkv()
    out = np.empty_like(q)
    wrapped = [OnlyDlpack(x, versions) for x in (q, k, v, out)]
    _core.forward(_core.Options(right=0), *wrapped[:3], None, wrapped[3], None)
    np.testing.assert_array_equal(out, tessera.attention(q, k, v, causal=True))
    assert all(x.exports for x in wrapped)


def test_read_only_inputs_and_outputs():
    q, k, v = random_qkv()
    expected = tessera.attention(q, k, v)
    for x in (q, k, v):
        x.flags.writeable = False
    np.testing.assert_array_equal(tessera.attention(q, k, v), expected)
    wrapped = [OnlyDlpack(x) for x in (q, k, v)]
    out = np.empty_like(q)
    _core.forward(_core.Options(), *wrapped, None, out, None)
    np.testing.assert_array_equal(out, expected)
    for bad in (q, OnlyDlpack(q)):
        with pytest.raises(ValueError, match="out .*read"):
            _core.forward(_core.Options(), q, k, v, None, bad, None)


def test_buffers_of_python():
    """array.array and memoryview speak the buffer protocol."""
    values = memoryview(array.array("d", [1, 2, 3, 4])).cast("B").cast("d", (2, 1, 2))
    out = np.empty((2, 1, 2))
    _core.forward(_core.Options(), values, values, values, None, out, None)
    np.testing.assert_allclose(out, tessera.attention(*[np.asarray(values)] * 3))


def test_memory_is_given_back():
    import gc
    import weakref

    q, k, v = random_qkv()
    expected = tessera.attention(q, k, v)
    watched = weakref.ref(q)
    for _ in range(3):
        tessera.attention(q, OnlyDlpack(k), v)
        with pytest.raises(ValueError):
            tessera.attention(q, k[:, :3], v)
    del q
    gc.collect()
    assert watched() is None
    assert expected.shape == (2, 9, 3, 8)


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_torch(torch, name):
    dtype = getattr(torch, name)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 9, 8).to(dtype) for _ in range(3))
    out, lse = tessera.attention(q, k, v, causal=True, align="top_left", layout="bhsd", return_lse=True)
    assert out.dtype == dtype and out.shape == q.shape
    assert lse.dtype == (torch.float64 if name == "float64" else torch.float32)
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    tolerance = {"float64": 1e-12, "float32": 3e-6, "float16": 3e-3, "bfloat16": 3e-2}[name]
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=0)
    grads = tessera.attention_backward(torch.ones_like(out), q, k, v, out, lse, causal=True, align="top_left",
                                       layout="bhsd")
    assert grads.q.dtype == dtype and isinstance(grads.q, torch.Tensor)


def test_torch_gradients_are_not_lost_silently(torch):
    q = torch.randn(1, 3, 2, 8, requires_grad=True)
    with pytest.raises(ValueError, match="tessera.torch.attention"):
        tessera.attention(q, q, q)
    with torch.no_grad():
        inside = tessera.attention(q, q, q)
    torch.testing.assert_close(inside, tessera.attention(*[q.detach()] * 3))
    out = torch.empty(1, 3, 2, 8)
    _core.forward(_core.Options(), q, q, q, None, out, None)  # the extension reads it as if detached
    torch.testing.assert_close(out, inside)


def test_torch_without_the_exchange_table(torch):
    """Older versions of PyTorch: __dlpack__ alone, which refuses tensors that require a gradient."""

    class Old:
        def __init__(self, values):
            self.values, self.requires_grad = values, values.requires_grad

        def detach(self):
            return Old(self.values.detach())

        def __dlpack_device__(self):
            return self.values.__dlpack_device__()

        def __dlpack__(self, stream=None):
            assert not self.requires_grad
            return self.values.__dlpack__()

    q = torch.randn(1, 4, 2, 8, requires_grad=True)
    out = torch.empty(1, 4, 2, 8)
    _core.forward(_core.Options(), *[Old(q)] * 3, None, Old(out), None)
    torch.testing.assert_close(out, tessera.attention(*[q.detach()] * 3))


def test_torch_expanded_and_transposed(torch):
    q = torch.randn(2, 9, 4, 8).transpose(1, 2)
    k = torch.randn(2, 1, 9, 8).expand(2, 4, 9, 8)
    out = tessera.attention(q, k, k, layout="bhsd")
    torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, k, k))


def test_jax_on_the_cpu():
    jax = pytest.importorskip("jax", reason="JAX is not installed (tools/setup python)")
    with jax.default_device(jax.devices("cpu")[0]):  # also where JAX finds a GPU
        for dtype in (jax.numpy.float32, jax.numpy.bfloat16):
            q, k, v = (jax.random.normal(jax.random.key(i), (2, 9, 3, 8)).astype(dtype) for i in range(3))
            out, lse = tessera.attention(q, k, v, causal=True, return_lse=True)
            assert isinstance(out, jax.Array) and isinstance(lse, jax.Array) and out.dtype == dtype
            expected = tessera.attention(*(np.asarray(x, dtype=np.float64) for x in (q, k, v)), causal=True)
            np.testing.assert_allclose(np.asarray(out, dtype=np.float64), expected,
                                       atol=1e-5 if dtype == jax.numpy.float32 else 3e-2)
            grads = tessera.attention_backward(out, q, k, v, out, lse, causal=True)
            assert isinstance(grads.k, jax.Array) and grads.k.shape == k.shape
        with pytest.raises(ValueError, match="cannot be written"):
            tessera.attention(q, k, v, out=q)


def test_numpy_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed (tools/setup python)")
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in random_qkv())
    out = tessera.attention(q, k, v)
    assert out.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(out.astype(np.float64), tessera.attention(*(x.astype(np.float64) for x in (q, k, v))),
                               atol=3e-2)


class Cuda:
    """Says that it lies on a GPU, and remembers which stream it was asked for."""

    def __init__(self, values):
        self.values, self.streams = values, []

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream=None, max_version=None):
        self.streams.append(stream)
        return self.values.__dlpack__(max_version=max_version)


@pytest.mark.parametrize(("stream", "expected"), [(None, 1), (1234, -1)])
def test_the_stream_that_other_libraries_are_told(stream, expected):
    """The default stream when the caller says none; no wait (-1) when the caller's own stream orders the work."""
    q, k, v = (Cuda(x) for x in random_qkv())
    out = np.empty((2, 9, 3, 8), np.float32)
    _core.forward(_core.Options(), q, k, v, None, out, None, stream=stream)
    assert q.streams == k.streams == v.streams == [expected]


@pytest.mark.parametrize("strides", [(0, 0, 0, 0), (3, 5, 7, 9)])
@pytest.mark.parametrize("queries, keys", [(0, 3), (2, 0), (0, 0)])
def test_strides_of_arrays_without_elements_mean_nothing(queries, keys, strides):
    def make(length):
        values = np.ones((1, length, 2, 4), dtype=np.float32)
        return values if length else np.lib.stride_tricks.as_strided(values, values.shape, strides)

    q, k = make(queries), make(keys)
    out, lse = tessera.attention(q, k, k, return_lse=True)
    grads = tessera.attention_backward(q, q, k, k, out, lse)
    assert out.shape == grads.q.shape == q.shape and grads.k.shape == grads.v.shape == k.shape
    for x in (out, *grads[:3]):
        assert (x == 0).all()


# --- references ------------------------------------------------------------------------------------------------------


def strided_by_bytes(memory):
    return np.ndarray((1, 4, 1, 8), np.float32, memory, strides=(160, 40, 40, 5))


@pytest.mark.parametrize("array", [
    strided_by_bytes(bytearray(200)), np.zeros((1, 4, 1, 8), ">f4"), np.zeros((1, 4, 1, 8), np.complex64),
    np.zeros((1, 4, 1, 8), "datetime64[s]"), np.zeros((1, 4, 1, 8), np.int32), np.full((1, 4, 1, 8), None),
    np.zeros((1, 4, 1, 9), np.float32), np.zeros((1,) * 9, np.float32)],
    ids=["stride", "byte order", "complex", "date", "int", "object", "shape", "rank"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_refused_array_is_let_go(array, place):
    q = np.zeros((1, 4, 1, 8), np.float32)
    arguments = [q, q, q]
    arguments[place] = array
    before = sys.getrefcount(array)
    for _ in range(10):
        with pytest.raises((ValueError, TypeError)):
            tessera.attention(*arguments)
    assert sys.getrefcount(array) == before


def test_refused_memory_can_be_resized():
    memory = bytearray(200)
    with pytest.raises(ValueError, match="strides"):
        tessera.attention(strided_by_bytes(memory), *(np.zeros((1, 4, 1, 8), np.float32),) * 2)
    gc.collect()
    memory.extend(b"more")  # BufferError while anybody has a view of it
