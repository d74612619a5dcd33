"""Errors: the right class, and a text that names the argument, its value and what is allowed."""

from __future__ import annotations

import inspect

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
    ({"visible": np.ones((4, 3), bool)}, r"visible.shape\[3\] \(key sequence\) is 3; it must be 4, the number of keys"),
    ({"visible": np.ones((4, 4), np.float32)}, "visible.dtype is float32; it must be bool or uint8; .* as bias"),
    ({"visible": np.ones((4, 8), bool)[:, ::2]}, r"visible.strides\[3\] is 2; the last dimension must be contiguous"),
    ({"alibi": np.ones(3, np.float32)}, r"alibi.shape is \(3\); it must be \(2\) or \(1, 2\)"),
    ({"alibi": np.ones(2, np.float64)}, "alibi.dtype is float64; it must be float32"),
    ({"alibi": np.ones(4, np.float32)[::2]}, r"alibi.strides\[-1\] is 2; it must be 1"),
    ({"lengths": np.array([0, 4])}, "lengths_q.dtype is int64; it must be int32"),
    ({"lengths": [0, 3]}, r"lengths.q\[1\] is 3; it must be 4"),
    ({"lengths": ([0, 4], [0, 2, 4])}, "lengths_q has 2 entries and lengths_k 3"),
    ({"dropout": 0.5, "dropout_state": np.zeros(3, np.int64)}, "dropout_state has 3 entries; it must have 2"),
    ({"out": np.ones((1, 4, 2, 7), np.float32)}, "out.shape"),
    ({"out": np.ones((1, 4, 2, 8), np.float64)}, "out"),
    ({"block_mask": tessera.BlockMask.local(64, 64, 1)}, "blocks has q_length 64"),
    ({"origin": (-1, 0, 0, 0)}, "origin.row is -1"),
    ({"origin": (1, 2)}, r"origin is \(1, 2\); it must be four integers"),
    ({"origin": np.array(1)}, r"origin is an array \(ndarray\); it must be four integers"),
    ({"origin": None}, "origin is None; it must be four integers"),
    ({"origin": (0, 0, 0, 2**63)}, "origin.head is 9223372036854775808; it must be from -2.63 to 2.63 - 1"),
    ({"scale": "a"}, "scale is 'a'; it must be a number or None"),
    ({"scale": np.array(0.5)}, r"scale is an array \(ndarray\); it must be a number or None: .* float\(scale\)"),
    ({"softcap": None}, "softcap is None; it must be a number"),
    ({"dropout": [0.5]}, r"dropout is \[0.5\]; it must be a number"),
    ({"seed": -1}, "seed is -1; it must be from 0 to 2.64 - 1"),
    ({"seed": 2**64}, "seed is 18446744073709551616; it must be from 0 to 2.64 - 1"),
    ({"offset": 1.5}, "offset is 1.5; it must be an integer from 0 to 2.64 - 1"),
    ({"threads": "all"}, "threads is 'all'; it must be an integer"),
    ({"threads": 2**40}, "threads is 1099511627776; it must be at most"),
    ({"stream": "a"}, "stream is 'a'; it must be an integer"),
    ({"window": [3]}, r"window is \[3\]; it must be two integers, \(left, right\)"),
    ({"window": 3}, "window is 3; it must be two integers"),
    ({"window": (3.5, 0)}, "left is 3.5; it must be an integer"),
    ({"diagonal": "a"}, "diagonal is 'a'; it must be an integer"),
    ({"align": None}, 'align is "None"; it must be bottom_right or top_left'),
    ({"algorithm": 2}, 'algorithm is "2"; it must be automatic'),
    ({"layout": []}, r"layout is \[\]"),
    ({"causal": np.array([True])}, "causal is an array"),
    ({"block_mask": np.ones((4, 4), bool)}, r"block_mask is an array .*; it must be a BlockMask or None"),
    ({"lengths": [0, "a"]}, r"lengths is \[0, 'a'\]; it must hold int32 numbers"),
    ({"lengths": [0, 2**40]}, "lengths is .*; it must hold int32 numbers"),
    ({"lengths": [0, 4], "max_lengths": 4}, "max_lengths is 4; it must be two integers"),
    ({"lengths": [0, 4], "max_lengths": ("a", 4)}, "max_q is 'a'; it must be an integer"),
    ({"alibi": ["a", "b"]}, r"alibi is \['a', 'b'\]; it must hold float32 numbers"),
])
def test_wrong_arguments(arguments, text):
    with pytest.raises(ValueError, match=text):
        tessera.attention(*qkv(), **arguments)


@pytest.mark.parametrize("arguments", [
    {"window": [3, 0]}, {"window": np.array([3, 0])}, {"window": (np.int64(3), np.int32(0))}, {"origin": [0, 1, 0, 1]},
    {"scale": np.float32(0.5)}, {"scale": 1}, {"diagonal": np.int64(1)}, {"seed": np.uint64(2**64 - 1), "dropout": 0.5},
], ids=str)
def test_arguments_of_other_kinds(arguments):
    """What stands for a number or a pair does, every time, and as its Python form does."""
    plain = {name: tuple(map(int, value)) if name in ("window", "origin") else value.item() if hasattr(value, "item")
             else value for name, value in arguments.items()}
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 9, 2, 8))
    for _ in range(2):
        np.testing.assert_array_equal(tessera.attention(q, k, v, **arguments), tessera.attention(q, k, v, **plain))


def test_an_argument_that_changes_is_read_again():
    class Number:
        def __init__(self, value):
            self.value = value

        def __float__(self):
            return self.value

    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 9, 2, 8))
    scale, window = Number(0.5), [3, 0]
    for scale.value, window[0] in ((0.5, 3), (2.0, 1)):
        np.testing.assert_array_equal(tessera.attention(q, k, v, scale=scale, window=window),
                                      tessera.attention(q, k, v, scale=scale.value, window=tuple(window)))


@pytest.mark.parametrize("one", [[np.int32(0), np.int32(9)], (np.int64(0), 9), [np.array(0), np.array(9)], [0, 9],
                                 np.array([0, 9], np.int32)], ids=str)
def test_two_numbers_are_the_lengths_of_one_sequence(one):
    q, k, v = np.random.default_rng(0).standard_normal((3, 9, 2, 8))
    np.testing.assert_array_equal(tessera.attention(q, k, v, lengths=one), tessera.attention(q, k, v))


@pytest.mark.parametrize("rank", [0, 1, 2, 5])
@pytest.mark.parametrize("words", [{}, {"alibi": True}, {"layout": "bhsd"}], ids=str)
def test_wrong_ranks(rank, words):
    x = np.ones((2,) * rank, np.float32)
    with pytest.raises(ValueError, match="^q has|^q.ndim"):
        tessera.attention(x, x, x, **words)
    with pytest.raises(ValueError, match="^q has|^q.ndim"):
        tessera.attention_backward(x, x, x, x, x, x, **words)


@pytest.mark.parametrize("arguments, text", [
    ({"threads": "all"}, "threads is 'all'; it must be an integer"),
    ({"device": 3}, "device is 3; it must be a string"),
    ({"dtype": "fp8"}, 'dtype is "fp8"; it must be fp64, fp32, fp16 or bf16'),
    ({"direction": None}, "direction is None; it must be a string"),
    ({"packed": np.array([1, 2])}, "packed is an array"),
    ({"q": (1, "a", 2, 8)}, "q_length is 'a'; it must be an integer"),
    ({"q": 7}, "q is 7; it must be an array or a shape"),
])
def test_wrong_plans(arguments, text):
    with pytest.raises(ValueError, match=text):
        tessera.plan(arguments.pop("q", (1, 4, 2, 8)), **arguments)


def test_types_are_called_by_their_names():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    for dtype, name in ((ml_dtypes.float8_e4m3fn, "float8_e4m3fn"), (ml_dtypes.float8_e5m2, "float8_e5m2"),
                        (np.dtype(">f4"), ">f4"), (np.complex64, "complex64"), ("datetime64[s]", "datetime64"),
                        (np.longdouble, "float128|longdouble")):
        with pytest.raises(ValueError, match=f"q.dtype is ({name}).*; it must be float64, float32, float16 or bfloat16"):
            tessera.attention(*(np.zeros((1, 4, 2, 8)).astype(dtype),) * 3)


def test_what_jax_traces_is_told_what_to_do():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    x = jax.numpy.ones((1, 4, 2, 8))
    for call, name in ((lambda x: tessera.attention(x, x, x), "q"), (lambda x: tessera.attention(*qkv()[:1], x, x), "k")):
        with pytest.raises(TypeError, match=f"{name} is of type .*Tracer; inside jax.jit.*jax.pure_callback"):
            jax.jit(call)(x)


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
    with pytest.raises(ValueError, match="gradients has 'x'; it may have q, k, v, bias"):
        tessera.attention_backward(q, q, k, v, q, q, gradients="x")
    every_third_byte = np.frombuffer(bytes(300), dtype=np.uint8)
    view = np.ndarray((1, 4, 1, 2), np.float32, every_third_byte, strides=(0, 9, 0, 4))
    with pytest.raises(ValueError, match="q.strides.* is 9 bytes"):
        _core.forward(_core.Options(), view, view, view, None, np.empty((1, 4, 1, 2), np.float32), None)


def test_unsupported_says_what_is_missing():
    with pytest.raises(NotImplementedError, match="flash3"):
        tessera.attention(*qkv(), algorithm="flash3")


def test_the_old_name_of_flash3_is_refused_with_the_new_one():
    with pytest.raises(ValueError, match='^algorithm "hopper" is now called "flash3"$'):
        tessera.attention(*qkv(), algorithm="hopper")
    with pytest.raises(ValueError, match='^algorithm "hopper" is now called "flash3"$'):
        tessera.plan((1, 64, 2, 16), algorithm="hopper")


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


@pytest.mark.parametrize("heads, text", [
    ("a", "heads is 'a'; it must be an integer"), (None, "heads is None; it must be an integer"),
    (2.0, "heads is 2.0; it must be an integer"), (2**63, "heads is 9223372036854775808; it must be from"),
    (0, "heads is 0"),
])
def test_wrong_slopes(heads, text):
    with pytest.raises(ValueError, match=text):
        tessera.alibi_slopes(heads)


def test_the_extension_checks_every_argument_itself():
    """A parameter of any other type would be refused with the raw signature, which names neither argument nor value."""
    functions = [getattr(tessera.BlockMask, name) for name in dir(tessera.BlockMask) if not name.startswith("_")]
    functions = [tessera.alibi_slopes, *(f for f in functions if callable(f))]
    assert len(functions) > 10
    for function in functions:
        for signature, *_ in function.__nb_signature__:
            parameters = signature.partition("(")[2].rpartition(") ->")[0].split(", ")
            typed = [p for p in parameters if p and p not in ("self", "*") and ": object | None" not in p]
            assert not typed, f"{function.__name__}: {typed}"


def wrong_words(function):
    return [name for name, p in inspect.signature(function).parameters.items() if p.kind is not p.VAR_KEYWORD]


@pytest.mark.parametrize("function, name", [
    (function, name) for function in (tessera.attention, tessera.attention_backward, tessera.plan)
    for name in wrong_words(function)], ids=lambda value: getattr(value, "__name__", value))
def test_no_argument_shows_the_signature_of_the_extension(function, name):
    q = np.ones((1, 4, 2, 8), np.float32)
    words = dict.fromkeys(("q", "k", "v"), q)
    if function is tessera.attention_backward:
        words.update(grad_out=q, out=q, lse=np.ones((1, 2, 4), np.float32))
    if name in ("offset", "seed"):
        words["dropout"] = 0.5
    if name == "max_lengths":
        words["lengths"] = np.array([0, 4], np.int32)
    for value in (object(), "a", b"a", 1.5, (1,), {}, lambda: 0):
        try:
            function(**{**words, name: value})
        except Exception as error:
            assert "incompatible function arguments" not in str(error) and "nanobind" not in str(error), (value, error)
            assert isinstance(error, (TypeError, ValueError, NotImplementedError)), (value, repr(error))
