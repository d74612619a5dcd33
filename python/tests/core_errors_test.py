"""Errors: the right class, and a text that names the argument, its value and what is allowed."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
from tessera import _core


def qkv(*shape, dtype=np.float32):
    return [np.ones(shape or (1, 4, 2, 8), dtype=dtype) for _ in range(3)]


@pytest.mark.parametrize(("arguments", "text"), [
    ({"dropout": 1.5}, r"dropout.probability is 1.5; it must be in \[0, 1\)"),
    ({"softcap": -1.0}, "softcap is -1"),
    ({"scale": float("nan")}, "scale is -?nan"),
    ({"window": (-2, 0)}, "left is -2"),
    ({"align": "middle"}, 'align is "middle"; it must be bottom_right or top_left'),
    ({"algorithm": "flash9"}, 'algorithm is "flash9"; it must be automatic, standard, flash1'),
    ({"layout": "hbsd"}, "layout is 'hbsd'"),
    ({"threads": -1}, "threads is -1"),
    ({"bias": np.ones((3, 3), np.float32)}, "bias"),
    ({"bias": np.ones((4, 4), bool)}, "bias.dtype is bool; it must be float64, float32, float16 or bfloat16"),
    ({"alibi": np.ones(3, np.float32)}, r"alibi.shape is \(3\); it must be \(2\) or \(1, 2\)"),
    ({"alibi": np.ones(2, np.float64)}, "alibi.dtype is float64; it must be float32"),
    ({"lengths": np.array([0, 4])}, "lengths_q.dtype is int64; it must be int32"),
    ({"lengths": [0, 3]}, r"lengths.q\[1\] is 3; it must be 4"),
    ({"lengths": ([0, 4], [0, 2, 4])}, "lengths_q has 2 entries and lengths_k 3"),
    ({"dropout": 0.5, "dropout_state": np.zeros(3, np.int64)}, "dropout_state has 3 entries; it must have 2"),
    ({"out": np.ones((1, 4, 2, 7), np.float32)}, "out.shape"),
    ({"out": np.ones((1, 4, 2, 8), np.float64)}, "out"),
    ({"block_mask": tessera.BlockMask.local(64, 64, 1)}, "blocks is made for q_length 64"),
    ({"origin": (-1, 0, 0, 0)}, "origin.row is -1"),
])
def test_wrong_arguments(arguments, text):
    with pytest.raises(ValueError, match=text):
        tessera.attention(*qkv(), **arguments)


def test_wrong_shapes_and_types():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="dimensions; both must have 4"):
        tessera.attention(q[0, 0], k, v)
    with pytest.raises(ValueError, match="k"):
        tessera.attention(q, k[..., :4], v)
    with pytest.raises(ValueError, match="k.ndim is 2; it must be 4"):
        tessera.attention(q, k[0, 0], v)
    with pytest.raises(ValueError, match=r"k.ndim is 1; it must be 4 \(batch, heads, sequence, head_dim\)"):
        tessera.attention(q, k[0, 0, 0], v, layout="bhsd")
    with pytest.raises(ValueError, match="q.dtype is int32; it must be float64"):
        tessera.attention(*qkv(dtype=np.int32))
    with pytest.raises(TypeError, match="q is of type list"):
        tessera.attention([[1.0]], k, v)
    with pytest.raises(TypeError, match="k is of type int; it must be an array with __dlpack__"):
        tessera.attention(q, 3, v)
    with pytest.raises(ValueError, match="wanted has 'x'"):
        tessera.attention_backward(q, q, k, v, q, q, wanted="x")
    every_third_byte = np.frombuffer(bytes(300), dtype=np.uint8)
    view = np.ndarray((1, 4, 1, 2), np.float32, every_third_byte, strides=(0, 9, 0, 4))
    with pytest.raises(ValueError, match="q.strides.* is 9 bytes"):
        _core.forward(_core.Options(), view, view, view, None, np.empty((1, 4, 1, 2), np.float32), None)


def test_unsupported_says_what_is_missing():
    with pytest.raises(NotImplementedError, match="hopper"):
        tessera.attention(*qkv(), algorithm="hopper")


def test_out_of_memory():
    with pytest.raises((MemoryError, ValueError)) as caught:  # a plan takes none; standard's N x N matrix does
        q = np.broadcast_to(np.float32(1), (1, 1 << 24, 1, 1))
        tessera.attention(q, q, q, algorithm="standard", out=np.empty((1, 1 << 24, 1, 1), np.float32))
    assert "bytes" in str(caught.value)
    assert tessera.attention(*qkv()).shape == (1, 4, 2, 8)  # all is well afterwards


def test_a_gpu_that_is_not_there():
    if any(d["device"].startswith("cuda") for d in tessera.info().devices):
        pytest.skip("this machine has a GPU")
    with pytest.raises(NotImplementedError):
        tessera.plan((1, 64, 1, 64), device="cuda")
    with pytest.raises(ValueError, match='device is "tpu"; it must be cpu, cuda or cuda:N'):
        tessera.plan((1, 64, 1, 64), device="tpu")


def test_a_failed_call_leaves_outputs_alone():
    q, k, v = qkv()
    out = np.full((1, 4, 2, 8), 7, np.float32)
    with pytest.raises(ValueError):
        tessera.attention(q, k, v, out=out, softcap=-1.0)
    assert (out == 7).all()
