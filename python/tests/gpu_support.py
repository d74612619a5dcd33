"""A random problem on a GPU against the oracle, for any array library that has arrays there."""

from __future__ import annotations

import numpy as np
import oracle
from core_attention_test import assert_close, left_right

import tessera

TOLERANCE = {"float32": (2e-5, 1e-4), "float16": (3e-3, 1e-2), "bfloat16": (2e-2, 6e-2)}  # of results, of gradients


def check_problem(problem, dtype, to_gpu, to_host):
    """Both directions of a problem of core_attention_test.problems().

    `to_gpu(values, dtype)` makes an array of NumPy's values on the GPU, the type by its name; `to_host` brings one back
    as fp64.
    """
    p, q, k, v, _ = problem
    q, k, v = (to_gpu(x, dtype) for x in (q, k, v))
    arguments = dict(left_right(p), scale=p.scale, align=p.align, diagonal=p.diagonal, softcap=p.softcap,
                     dropout=p.dropout, seed=p.seed, offset=p.offset,
                     bias=None if p.bias is None else to_gpu(p.bias, dtype),
                     alibi=None if p.alibi is None else to_gpu(p.alibi, "float32"))
    if p.bias is not None:
        p = oracle.replace(p, bias=to_host(arguments["bias"]))
    if p.lengths_q is not None:
        arguments["lengths"] = tuple(to_gpu(np.cumsum((0, *x)), "int32") for x in (p.lengths_q, p.lengths_k))
        arguments["max_lengths"] = max(p.lengths_q), max(p.lengths_k)
    out, lse = tessera.attention(q, k, v, return_lse=True, **arguments)
    grad_out = to_gpu(np.random.default_rng(0).standard_normal(out.shape), dtype)
    grads = tessera.attention_backward(grad_out, q, k, v, out, lse, deterministic=True, **arguments)
    expected = oracle.attention(p, *map(to_host, (q, k, v, grad_out)))
    tolerance, grad_tolerance = TOLERANCE[dtype]
    assert_close(to_host(out), expected[0], tolerance, "out")
    assert_close(to_host(lse), expected[1], tolerance, "lse")
    for name, actual, wanted in zip(("q", "k", "v", "bias"), grads, expected[2:]):
        if wanted is not None:
            assert_close(to_host(actual), wanted, grad_tolerance, f"gradient of {name}")
