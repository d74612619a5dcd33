"""attention and attention_backward over the whole contract, against the oracle."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera

# Largest error against fp64, relative to the largest value, of results and of gradients.
TOLERANCE = {np.float64: (1e-12, 1e-11), np.float32: (3e-6, 2e-5), np.float16: (3e-3, 1e-2)}


def assert_close(actual, expected, tolerance, what):
    actual, expected = np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert actual.shape == expected.shape, what
    finite = np.isfinite(expected)
    assert (np.isfinite(actual) == finite).all(), f"{what}: infinite where the oracle is not, or the other way round"
    scale = max(1.0, np.abs(expected[finite]).max(initial=0))
    error = np.abs(actual[finite] - expected[finite]).max(initial=0) / scale
    assert error <= tolerance, f"{what}: error {error:.3g}, allowed {tolerance:.3g}"


def check(problem, q, k, v, dtype, *, layout="bshd", arguments=None, seed=0):
    """Both directions against the oracle; `arguments` are further ones of the calls."""
    rng = np.random.default_rng(seed)
    order = (0, 2, 1, 3) if layout == "bhsd" else (0, 1, 2, 3)
    arguments = dict(
        left_right(problem), scale=problem.scale, align=problem.align, diagonal=problem.diagonal,
        softcap=problem.softcap, dropout=problem.dropout, seed=problem.seed, offset=problem.offset,
        origin=problem.origin, bias=problem.bias, layout=layout,
        alibi=None if problem.alibi is None else problem.alibi.astype(np.float32), **(arguments or {}))
    if problem.lengths_q is not None:
        arguments["lengths"] = tuple(np.cumsum((0, *lengths), dtype=np.int32)
                                     for lengths in (problem.lengths_q, problem.lengths_k))
    place = lambda x: np.ascontiguousarray(np.transpose(x, order))  # noqa: E731
    out, lse = tessera.attention(place(q), place(k), place(v), return_lse=True, **arguments)
    grad_out = rng.standard_normal((*q.shape[:-1], v.shape[-1])).astype(dtype)
    grad_lse = rng.standard_normal(lse.shape).astype(lse.dtype)
    expected = oracle.attention(problem, q, k, v, grad_out, grad_lse)
    tolerance, grad_tolerance = TOLERANCE[dtype]
    assert out.dtype == dtype and lse.dtype == (np.float64 if dtype == np.float64 else np.float32)
    assert_close(np.transpose(out, order), expected[0], tolerance, "out")
    assert_close(lse, expected[1], tolerance, "lse")
    grads = tessera.attention_backward(place(grad_out), place(q), place(k), place(v), out, lse, grad_lse=grad_lse,
                                       **arguments)
    for name, actual, wanted in zip("qkv", grads, expected[2:5]):
        assert_close(np.transpose(actual, order), wanted, grad_tolerance, f"gradient of {name}")
    if problem.bias is None:
        assert grads.bias is None
    else:
        assert grads.bias.dtype == problem.bias.dtype
        assert_close(grads.bias, expected[5], grad_tolerance, "gradient of bias")


def left_right(problem):
    """The band in the words of `attention`."""
    if problem.left == -1 and problem.right == 0:
        return {"causal": True}
    return {} if problem.left == problem.right == -1 else {"window": (problem.left, problem.right)}


@st.composite
def problems(draw):
    """A random problem: sizes, types and a few features at once."""
    dtype = draw(st.sampled_from([np.float64, np.float64, np.float32, np.float16]))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    heads = kv_heads * group
    packed = draw(st.booleans())
    sizes = st.integers(0, 40)
    fields = {}
    if packed:
        count = draw(st.integers(1, 4))
        fields["lengths_q"] = tuple(draw(st.lists(sizes, min_size=count, max_size=count)))
        fields["lengths_k"] = tuple(draw(st.lists(sizes, min_size=count, max_size=count)))
        batch, nq, nk = 1, sum(fields["lengths_q"]), sum(fields["lengths_k"])
    else:
        batch, nq, nk = draw(st.integers(1, 2)), draw(sizes), draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    entries = len(fields["lengths_q"]) if packed else batch
    fields["left"], fields["right"] = draw(st.sampled_from([(-1, -1), (-1, 0), (3, 0), (7, 2), (0, -1)]))
    fields["align"] = draw(st.sampled_from(["bottom_right", "top_left"]))
    fields["diagonal"] = draw(st.none() | st.integers(-5, 5))
    fields["scale"] = draw(st.none() | st.sampled_from([0.5, -0.3]))
    fields["softcap"] = draw(st.sampled_from([0.0, 0.0, 2.0]))
    if draw(st.booleans()):
        fields |= {"dropout": draw(st.sampled_from([0.1, 0.5])), "seed": draw(st.integers(0, 2**64 - 1)),
                   "offset": draw(st.integers(0, 2**64 - 1))}
    if draw(st.booleans()):
        shape = (heads,) if draw(st.booleans()) else (entries, heads)
        fields["alibi"] = rng.uniform(0, 0.5, shape).astype(np.float32).astype(np.float64)
    if not packed and draw(st.booleans()):
        shape = tuple(draw(st.sampled_from([1, size])) for size in (batch, heads, nq)) + (nk,)
        fields["bias"] = rng.standard_normal(shape).astype(dtype)
    dims = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    make = lambda *shape: rng.standard_normal(shape).astype(dtype)  # noqa: E731
    q, k, v = make(batch, nq, heads, dims[0]), make(batch, nk, kv_heads, dims[0]), make(batch, nk, kv_heads, dims[1])
    return oracle.Problem(**fields), q, k, v, dtype


@given(problems(), st.sampled_from(["bshd", "bhsd"]))
def test_random_problems(problem, layout):
    specification, q, k, v, dtype = problem
    check(specification, q, k, v, dtype, layout=layout)


def random_qkv(dtype=np.float64, batch=2, nq=37, nk=51, heads=4, kv_heads=2, dim=16, v_dim=24, seed=0):
    rng = np.random.default_rng(seed)
    make = lambda *shape: rng.standard_normal(shape).astype(dtype)  # noqa: E731
    return make(batch, nq, heads, dim), make(batch, nk, kv_heads, dim), make(batch, nk, kv_heads, v_dim)


@pytest.mark.parametrize("algorithm", ["automatic", "standard", "flash1", "flash2"])
def test_every_algorithm_gives_the_same(algorithm):
    q, k, v = random_qkv()
    if algorithm == "standard" and "OpenBLAS  no" in tessera.info().build:
        pytest.skip("OpenBLAS is not installed")
    bias = np.random.default_rng(1).standard_normal((1, 4, 37, 51))
    check(oracle.Problem(right=0, softcap=3.0, dropout=0.2, seed=5, bias=bias), q, k, v, np.float64,
          arguments={"algorithm": algorithm})


def test_origin_is_a_shard_of_the_whole():
    q, k, v = random_qkv(nq=48, nk=48, batch=1)
    arguments = dict(causal=True, align="top_left", dropout=0.3, seed=1, offset=2, alibi=[0.1, 0.2, 0.3, 0.4])
    whole = tessera.attention(q, k, v, **arguments)
    shard = tessera.attention(q[:, 20:], k, v, origin=(20, 0, 0, 0), **arguments)
    np.testing.assert_allclose(shard, whole[:, 20:], atol=1e-12)
    check(oracle.Problem(right=0, align="top_left", dropout=0.3, seed=1, origin=(20, 4, 3, 8)), q, k, v, np.float64)


@pytest.mark.parametrize("heads", [1, 4])
def test_block_mask(heads):
    q, k, v = random_qkv(nq=100, nk=70)
    kept = np.random.default_rng(3).random((heads, 7, 3)) < 0.5
    visible = oracle.blocks_to_elements(kept, 100, 70, 16, 32)
    mask = tessera.BlockMask.from_blocks(kept, q_length=100, k_length=70, block_q=16, block_k=32)
    problem = oracle.Problem(right=0, visible=visible if heads > 1 else visible[0])
    check(problem, q, k, v, np.float64, arguments={"block_mask": mask})


def test_alibi_of_the_paper():
    q, k, v = random_qkv()
    np.testing.assert_array_equal(tessera.attention(q, k, v, alibi=True),
                                  tessera.attention(q, k, v, alibi=tessera.alibi_slopes(4)))
    assert tessera.alibi_slopes(8) == [2.0**-i for i in range(1, 9)]


def test_without_a_batch():
    q, k, v = random_qkv(batch=1)
    out, lse = tessera.attention(q[0], k[0], v[0], causal=True, return_lse=True)
    whole, whole_lse = tessera.attention(q, k, v, causal=True, return_lse=True)
    np.testing.assert_array_equal(out, whole[0])
    np.testing.assert_array_equal(lse, whole_lse[0])
    grads = tessera.attention_backward(out, q[0], k[0], v[0], out, lse, causal=True)
    assert [g.shape for g in grads[:3]] == [q[0].shape, k[0].shape, v[0].shape]


def test_strided_inputs_and_outputs():
    """Views into one packed qkv array, reversed sequences, and an output with gaps: nothing is copied."""
    rng = np.random.default_rng(0)
    packed = rng.standard_normal((2, 30, 3, 4, 16))
    q, k, v = (packed[:, ::-1, i] for i in range(3))
    expected, _ = oracle.attention(oracle.Problem(), q, k, v)
    room = np.full((2, 30, 9, 16), np.nan)
    out = tessera.attention(q, k, v, out=room[:, :, ::2][:, :, :4])
    np.testing.assert_allclose(out, expected, atol=1e-12)
    assert np.isnan(room[:, :, 1::2]).all() and np.shares_memory(out, room)
    one_key = np.broadcast_to(k[:, :1], k.shape)  # strides of 0
    np.testing.assert_allclose(tessera.attention(q, one_key, v),
                               oracle.attention(oracle.Problem(), q, one_key, v)[0], atol=1e-12)


def test_outputs_that_are_given():
    q, k, v = random_qkv(np.float32)
    out, lse = np.empty((2, 37, 4, 24), np.float32), np.empty((2, 4, 37), np.float32)
    result = tessera.attention(q, k, v, out=out, lse=lse)
    assert result[0] is out and result[1] is lse


def test_only_requested_gradients():
    q, k, v = random_qkv()
    out, lse = tessera.attention(q, k, v, return_lse=True)
    every = tessera.attention_backward(out, q, k, v, out, lse)
    some = tessera.attention_backward(out, q, k, v, out, lse, gradients=["k"])
    assert some.q is None and some.v is None and some.bias is None
    np.testing.assert_array_equal(some.k, every.k)


def test_dropout_state_in_memory():
    q, k, v = random_qkv()
    for dtype in (np.int64, np.uint64):
        state = np.array([7, 9], dtype=dtype)
        np.testing.assert_array_equal(tessera.attention(q, k, v, dropout=0.4, dropout_state=state),
                                      tessera.attention(q, k, v, dropout=0.4, seed=7, offset=9))


def test_threads_do_not_change_bits():
    q, k, v = random_qkv(np.float32, nq=300, nk=300)
    one = tessera.attention(q, k, v, causal=True, threads=1)
    for threads in (0, 2, 5):
        np.testing.assert_array_equal(tessera.attention(q, k, v, causal=True, threads=threads), one)


def test_rows_that_see_nothing():
    q, k, v = random_qkv(nq=5, nk=3, batch=1)
    out, lse = tessera.attention(q, k, v, causal=True, return_lse=True)
    assert (out[:, :2] == 0).all() and (lse[..., :2] == -np.inf).all() and np.isfinite(lse[..., 2:]).all()
    grads = tessera.attention_backward(np.ones_like(out), q, k, v, out, lse, causal=True)
    assert (grads.q[:, :2] == 0).all() and all(np.isfinite(g).all() for g in grads[:3])
    out, lse = tessera.attention(q, k[:, :0], v[:, :0], return_lse=True)
    assert (out == 0).all() and (lse == -np.inf).all()
