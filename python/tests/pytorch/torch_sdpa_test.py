"""tessera.torch.scaled_dot_product_attention against PyTorch's."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_support import DEVICE, EXACT, as_numpy, check, randn, torch

from tessera.torch import scaled_dot_product_attention

functional = torch.nn.functional
ORIGINAL = functional.scaled_dot_product_attention


def compare(query, key, value, attn_mask=None, **words):
    """Values and gradients of ours and of PyTorch's exact path."""
    inputs = [x for x in (query, key, value, attn_mask) if x is not None and x.requires_grad]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = ORIGINAL(query, key, value, attn_mask, **words)
    got = scaled_dot_product_attention(query, key, value, attn_mask, **words)
    assert got.shape == want.shape and got.dtype == want.dtype
    check("out", got, as_numpy(want), EXACT, 200)
    grad = torch.randn_like(want)
    for name, a, b in zip("qkvm", torch.autograd.grad(got, inputs, grad), torch.autograd.grad(want, inputs, grad)):
        check(f"gradient {name}", a, as_numpy(b), EXACT, 200, floor=1.0)


@st.composite
def cases(draw):
    torch.manual_seed(draw(st.integers(0, 2**32 - 1)))
    rank = draw(st.integers(2, 5))
    batch = tuple(draw(st.integers(1, 3)) for _ in range(max(rank - 3, 0)))
    queries, keys, dim = draw(st.integers(1, 20)), draw(st.integers(1, 20)), draw(st.integers(1, 24))
    heads = draw(st.sampled_from((1, 2, 4)))
    gqa = rank > 2 and draw(st.booleans())
    kv_heads = draw(st.sampled_from([h for h in (1, 2, 4) if heads % h == 0])) if gqa else heads

    def leading(h):
        """Leading dimensions; without GQA any of them may be left to broadcasting."""
        sizes = (*batch, h) if rank > 2 else ()
        if gqa:
            return sizes
        sizes = tuple(draw(st.sampled_from((size, size, 1))) for size in sizes)
        return sizes[draw(st.integers(0, max(rank - 3, 0))) if draw(st.booleans()) else 0:]

    tensors = [randn(*leading(h), n, d, grad=True) for h, n, d in (
        (heads, queries, dim), (kv_heads, keys, dim), (kv_heads, keys, draw(st.sampled_from((dim, 5)))))]
    words = {"is_causal": draw(st.booleans()), "scale": draw(st.sampled_from((None, 0.4))), "enable_gqa": gqa}
    mask = None
    if not words["is_causal"] and draw(st.booleans()):
        # PyTorch broadcasts a mask to the scores, which know nothing of the value's dimensions.
        lead = tensors[0].shape[:-2] if gqa else torch.broadcast_shapes(*(x.shape[:-2] for x in tensors[:2]))
        full = tuple(draw(st.sampled_from((size, 1))) for size in (*lead, queries, keys))
        full = full[draw(st.integers(0, len(full) - 2)):]
        if draw(st.booleans()):
            mask = torch.rand(full, device=DEVICE) > 0.4
        else:
            mask = randn(*full, grad=draw(st.booleans()))
    return tensors, mask, words


@given(cases())
def test_means_what_pytorch_means(case):
    tensors, mask, words = case
    compare(*tensors, mask, **words)


def test_masks_that_hide_whole_rows():
    mask = torch.rand(2, 1, 9, 9, device=DEVICE) > 0.5
    mask[0, :, 3] = False
    compare(*(randn(2, 4, 9, 8, grad=True) for _ in range(3)), mask)
    out = scaled_dot_product_attention(*(randn(2, 4, 9, 8) for _ in range(3)), mask)
    assert not out[0, :, 3].any() and out[1, :, 3].any()


def test_causal_beside_a_mask():
    x = randn(2, 4, 9, 8)
    mask = torch.rand(9, 9, device=DEVICE) > 0.3
    both = mask & torch.ones(9, 9, dtype=torch.bool, device=DEVICE).tril()
    want = scaled_dot_product_attention(x, x, x, both)
    check("out", scaled_dot_product_attention(x, x, x, mask, is_causal=True), as_numpy(want), EXACT)


def test_expanded_masks_stay_small(monkeypatch):
    from tessera.torch import _sdpa

    shapes = []
    inner = _sdpa.attend

    def spy(q, k, v, bias, options, call, *rest):
        shapes.append((call["visible"] if bias is None else bias).shape)
        return inner(q, k, v, bias, options, call, *rest)

    monkeypatch.setattr(_sdpa, "attend", spy)
    x = randn(3, 4, 9, 8)
    padding = torch.rand(3, 1, 1, 9, device=DEVICE) > 0.3
    want = scaled_dot_product_attention(x, x, x, padding)
    assert torch.equal(scaled_dot_product_attention(x, x, x, padding.expand(3, 4, 9, 9)), want)
    assert shapes == [(3, 1, 1, 9)] * 2
    thin = torch.rand(3, 1, 9, 1, device=DEVICE) > 0.3  # expanded along the keys: copied
    compare(*(randn(3, 4, 9, 8, grad=True) for _ in range(3)), thin)


def test_dropout():
    x = randn(1, 2, 256, 8)
    ones = torch.ones_like(x)
    torch.manual_seed(1)
    out = scaled_dot_product_attention(x, x, ones, dropout_p=0.25)
    assert not torch.equal(out, ones) and abs(out.mean().item() - 1) < 0.05
    torch.manual_seed(1)
    assert torch.equal(out, scaled_dot_product_attention(x, x, ones, dropout_p=0.25))
    leaf = x.clone().requires_grad_()
    nothing = scaled_dot_product_attention(leaf, x, x, dropout_p=1.0)
    nothing.sum().backward()
    assert not nothing.any() and not leaf.grad.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types(dtype):
    q, k, v = (randn(2, 4, 33, 16, dtype=dtype) for _ in range(3))
    mask = torch.rand(2, 1, 33, 33, device=DEVICE) > 0.2
    want = ORIGINAL(q.float(), k.float(), v.float(), mask)
    check("bool mask", scaled_dot_product_attention(q, k, v, mask), as_numpy(want), dtype, 5)
    float_mask = torch.zeros(2, 1, 33, 33, device=DEVICE).masked_fill(~mask, float("-inf"))
    for kind in (dtype, torch.float32):
        check("float mask", scaled_dot_product_attention(q, k, v, float_mask.to(kind)), as_numpy(want), dtype, 5)


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.float32, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_autocast(dtype, mask_dtype):
    x = randn(2, 4, 33, 16, dtype=dtype)
    mask = (torch.rand(33, 33, device=DEVICE) > 0.2).to(mask_dtype)
    with torch.autocast(DEVICE, torch.bfloat16):
        got, want = scaled_dot_product_attention(x, x, x, mask), ORIGINAL(x, x, x, mask)
    assert got.dtype == want.dtype == torch.bfloat16
    check("out", got, as_numpy(want), torch.bfloat16, 5)


def test_finite_masks():
    x = randn(1, 2, 9, 8, dtype=torch.float32)
    mask = torch.zeros(9, 9, device=DEVICE)
    mask[:, 4:] = torch.finfo(torch.float32).min
    want = ORIGINAL(x, x, x, mask)
    check("out", scaled_dot_product_attention(x, x, x, mask), as_numpy(want), torch.float32, 20)


@pytest.mark.parametrize("shape, dtype, text", [
    ((3, 1, 9, 9), torch.bool, r"attn_mask.shape is \(3, 1, 9, 9\)"),
    ((1, 1, 1, 1, 1, 9, 9), torch.bool, "attn_mask.shape"),
    ((9, 9), torch.int32, "attn_mask.dtype is torch.int32"),
])
def test_masks_that_do_not_fit(shape, dtype, text):
    x = randn(2, 4, 9, 8)
    with pytest.raises(RuntimeError, match=text):
        scaled_dot_product_attention(x, x, x, torch.ones(shape, dtype=dtype, device=DEVICE))


# --- tensor subclasses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queries, keys", [(9, 9), (4, 9), (9, 4)])
def test_masks_that_are_only_the_name_of_a_corner(queries, keys):
    from torch.nn.attention.bias import CausalBias, CausalVariant

    q, k, v = randn(2, 4, queries, 8), randn(2, 4, keys, 8), randn(2, 4, keys, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows without keys, which are NaN elsewhere and 0 here
        corners = [CausalBias(variant, queries, keys) for variant in CausalVariant]
    for corner in corners:
        want = scaled_dot_product_attention(q, k, v, corner._materialize(q.device))
        check("out", scaled_dot_product_attention(q, k, v, corner), as_numpy(want), EXACT)
        assert not scaled_dot_product_attention(q, k, v, corner, dropout_p=1.0).any()
        with pytest.raises(ValueError, match="is a CausalBias and is_causal is True"):
            scaled_dot_product_attention(q, k, v, corner, is_causal=True)
    with pytest.raises(ValueError, match="attn_mask is a CausalBias for"):
        scaled_dot_product_attention(q, k, v, CausalBias(CausalVariant.LOWER_RIGHT, 3, 5))


class Plain(torch.Tensor):
    pass


class Own(torch.Tensor):
    """A tensor with attention of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (functional.scaled_dot_product_attention, scaled_dot_product_attention):
            return "attention of its own"
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_are_asked_first():
    x = randn(2, 4, 9, 8)
    mask = torch.ones(9, 9, dtype=torch.bool, device=DEVICE)
    assert scaled_dot_product_attention(x, x, x.as_subclass(Own)) == "attention of its own"
    assert scaled_dot_product_attention(x, x, x, mask.as_subclass(Own)) == "attention of its own"
    out = scaled_dot_product_attention(x.as_subclass(Plain), x, x)
    assert type(out) is Plain and torch.equal(out.as_subclass(torch.Tensor), scaled_dot_product_attention(x, x, x))


@pytest.mark.parametrize("shapes", [((9,), (9,), (9,)), ((), (), ()), ((9, 8), (9,), (9, 8))], ids=str)
def test_ranks_that_do_not_fit(shapes):
    with pytest.raises(ValueError, match="(query|key|value).shape"):
        scaled_dot_product_attention(*(torch.ones(shape, device=DEVICE) for shape in shapes))


@pytest.mark.parametrize("heads", [(4, 0, 2), (4, 2, 0), (4, 3, 2), (4, 3, 3), (0, 0, 3)], ids=str)
def test_heads_that_do_not_fit(heads):
    q, k, v = (randn(2, h, 9, 8) for h in heads)
    with pytest.raises(ValueError, match="heads"):
        scaled_dot_product_attention(q, k, v, enable_gqa=True)
