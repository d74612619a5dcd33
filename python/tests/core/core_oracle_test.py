"""The oracle itself: its random numbers against published ones, its gradients against differences."""

import numpy as np
import oracle
import pytest


def test_philox_known_answers():
    # The test vectors of the Random123 library for philox4x32-7.
    zeros = oracle.philox(np.zeros(4, dtype=np.uint64), np.zeros(2, dtype=np.uint64))
    assert [f"{int(x):08x}" for x in zeros] == ["5f6fb709", "0d893f64", "4f121f81", "4f730a48"]
    ones = oracle.philox(np.full(4, 0xFFFFFFFF, dtype=np.uint64), np.full(2, 0xFFFFFFFF, dtype=np.uint64))
    assert [f"{int(x):08x}" for x in ones] == ["5207ddc2", "45165e59", "4d8ee751", "8c52f662"]


@pytest.mark.parametrize("problem", [
    oracle.Problem(),
    oracle.Problem(right=0, left=2),
    oracle.Problem(softcap=0.7, dropout=0.3, seed=3, offset=5),
    oracle.Problem(lengths_q=(2, 0, 3), lengths_k=(3, 1, 2)),
], ids=["dense", "window", "softcap-dropout", "packed"])
def test_gradients_are_those_of_the_function(problem):
    rng = np.random.default_rng(1)
    batch = 1 if problem.lengths_q else 2
    q = rng.standard_normal((batch, 5, 4, 3))
    k, v = rng.standard_normal((batch, 6, 2, 3)), rng.standard_normal((batch, 6, 2, 2))
    bias = rng.standard_normal((1, 4, 1, 6))
    weight_out, weight_lse = rng.standard_normal((batch, 5, 4, 2)), rng.standard_normal((batch, 4, 5))

    def loss(q, k, v, bias):
        out, lse = oracle.attention(oracle.replace(problem, bias=bias), q, k, v)
        return (out * weight_out).sum() + np.where(np.isfinite(lse), lse * weight_lse, 0).sum()

    inputs = [q, k, v, bias]
    *_, gq, gk, gv, gb = oracle.attention(oracle.replace(problem, bias=bias), q, k, v, weight_out, weight_lse)
    for which, grad in enumerate([gq, gk, gv, gb]):
        for _ in range(6):
            at = tuple(rng.integers(size) for size in inputs[which].shape)
            moved = []
            for step in (1e-5, -1e-5):
                changed = [x.copy() for x in inputs]
                changed[which][at] += step
                moved.append(loss(*changed))
            assert (moved[0] - moved[1]) / 2e-5 == pytest.approx(grad[at], rel=1e-5, abs=1e-7)
