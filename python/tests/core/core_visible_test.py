"""The boolean mask `visible`, of NumPy arrays, against the oracle."""

from __future__ import annotations

import numpy as np
import oracle
import pytest

import tessera

BATCH, QUERIES, KEYS, HEADS = 2, 37, 150, 4


def inputs():
    rng = np.random.default_rng(3)
    q = rng.standard_normal((BATCH, QUERIES, HEADS, 8))
    k, v = rng.standard_normal((2, BATCH, KEYS, 2, 8))
    return rng, q, k, v


@pytest.mark.parametrize("shape", [(BATCH, HEADS, QUERIES, KEYS), (HEADS, 1, KEYS), (BATCH, 1, 1, KEYS), (QUERIES, KEYS),
                                   (KEYS,)], ids=str)
@pytest.mark.parametrize("dtype", [bool, np.uint8])
def test_results_and_gradients(shape, dtype):
    rng, q, k, v = inputs()
    seen = rng.random(shape) < 0.6
    seen[..., 60:130] = False
    visible = seen if dtype is bool else (seen * rng.integers(1, 256, shape)).astype(np.uint8)
    bias = rng.standard_normal((HEADS, 1, KEYS))
    grad_out, grad_lse = np.ones_like(q), rng.standard_normal((BATCH, HEADS, QUERIES))
    problem = oracle.Problem(right=40, bias=bias, visible=np.broadcast_to(seen, (BATCH, HEADS, QUERIES, KEYS)))
    want = oracle.attention(problem, q, k, v, grad_out, grad_lse)
    words = dict(window=(-1, 40), bias=bias, visible=visible)
    out, lse = tessera.attention(q, k, v, return_lse=True, **words)
    grads = tessera.attention_backward(grad_out, q, k, v, out, lse, grad_lse=grad_lse, **words)
    for got, expected in zip((out, lse, *grads), want):
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)
    assert not grads.k[:, 60:130].any()


def test_hidden_keys_may_hold_anything():
    _, q, k, v = inputs()
    visible = np.arange(KEYS) < np.array([90, 40])[:, None, None, None]
    want = tessera.attention(q, k, v, visible=visible)
    k[0, 90:], v[1, 40:] = np.nan, np.inf
    np.testing.assert_allclose(tessera.attention(q, k, v, visible=visible), want, rtol=1e-12)
    np.testing.assert_array_equal(tessera.attention(q, k, v, visible=np.zeros(KEYS, bool)), np.zeros_like(q))


def test_a_plan_knows_of_it():
    with_mask = tessera.plan((1, 256, 4, 64), visible=True)
    without = tessera.plan((1, 256, 4, 64), visible=None)
    assert with_mask.workspace_bytes > without.workspace_bytes
    assert with_mask.minimum_bytes == without.minimum_bytes + 256 * 256
