"""tessera.torch.attention in eager mode: results and gradients against the fp64 oracle."""

import contextlib
import itertools

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_support import CUDA, DEVICE, DTYPES, EXACT, as_numpy, check, check_problem, cpu_only, cuda_only, randn, torch

import tessera
import tessera.compat
from tessera.torch import _calls, attention, new_dropout_state


def in_memory_order(tensor, order):
    """The same values, the first three dimensions lying in another order in memory."""
    back = np.argsort((*order, 3)).tolist()
    return tensor.detach().permute(*order, 3).contiguous().permute(*back).requires_grad_()


@st.composite
def problems(draw):
    batch, queries, keys = draw(st.integers(1, 3)), draw(st.integers(1, 40)), draw(st.integers(1, 40))
    kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    dtype = draw(st.sampled_from(DTYPES))
    qk_dim = draw(st.integers(1, 40))
    v_dim = draw(st.sampled_from((qk_dim, 7)))
    torch.manual_seed(draw(st.integers(0, 2**32 - 1)))
    heads = kv_heads * group
    orders = [draw(st.permutations(range(3))) for _ in range(3)]
    q, k, v = (in_memory_order(randn(*shape, dtype=dtype), order) for shape, order in zip(
        ((batch, queries, heads, qk_dim), (batch, keys, kv_heads, qk_dim), (batch, keys, kv_heads, v_dim)), orders))
    words = {
        "causal": draw(st.booleans()),
        "window": draw(st.sampled_from((None, (3, 2), (-1, 4), (0, -1)))),
        "align": draw(st.sampled_from(("bottom_right", "top_left"))),
        "diagonal": draw(st.sampled_from((None, -2, 3))),
        "scale": draw(st.sampled_from((None, 0.5))),
        "softcap": draw(st.sampled_from((0.0, 2.0))),
        "dropout": draw(st.sampled_from((0.0, 0.3))),
    }
    bias = None
    if draw(st.booleans()):
        rank = draw(st.integers(1, 4))
        full = (batch, heads, queries)
        shape = tuple(draw(st.sampled_from((1, size))) for size in full[4 - rank:])
        bias = randn(*shape, keys, dtype=draw(st.sampled_from((dtype, torch.promote_types(dtype, torch.float32)))),
                     grad=True)
    alibi = None
    if draw(st.booleans()):
        alibi = torch.rand(draw(st.sampled_from(((heads,), (batch, heads)))), device=DEVICE)
    return q, k, v, bias, alibi, words, draw(st.booleans())


@given(problems())
def test_results_and_gradients(case):
    q, k, v, bias, alibi, words, heads_first = case
    state = new_dropout_state(DEVICE) if words["dropout"] else None
    left, right = words["window"] or (-1, -1)
    problem = oracle.Problem(
        scale=words["scale"], left=left, right=0 if words["causal"] else right, align=words["align"],
        diagonal=words["diagonal"], softcap=words["softcap"], dropout=words["dropout"], bias=as_numpy(bias),
        alibi=as_numpy(alibi), **(dict(zip(("seed", "offset"), state.tolist())) if state is not None else {}))

    def run(q, k, v, bias):
        if not heads_first:
            return attention(q, k, v, bias=bias, alibi=alibi, dropout_state=state, return_lse=True, **words)
        out, lse = attention(*(x.transpose(1, 2) for x in (q, k, v)), bias=bias, alibi=alibi, dropout_state=state,
                             return_lse=True, layout="bhsd", **words)
        return out.transpose(1, 2), lse

    check_problem(problem, run, q, k, v, bias)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=5), st.booleans())
def test_packed_sequences(lengths, causal):
    cumulative = [torch.tensor([0, *itertools.accumulate(x)], dtype=torch.int32, device=DEVICE) for x in zip(*lengths)]
    longest = tuple(max(x) for x in zip(*lengths))
    q, k, v = (randn(int(total[-1]), heads, 16, grad=True) for total, heads in zip(
        (cumulative[0], cumulative[1], cumulative[1]), (4, 2, 2)))
    lengths_q, lengths_k = zip(*lengths)

    def run(q, k, v, bias):
        out, lse = attention(q[0], k[0], v[0], lengths=tuple(cumulative), max_lengths=longest, causal=causal,
                             return_lse=True)
        return out[None], lse[None]

    check_problem(oracle.Problem(right=0 if causal else -1, lengths_q=lengths_q, lengths_k=lengths_k), run,
                  *(x.detach()[None].requires_grad_() for x in (q, k, v)))


def test_lengths_as_a_list():
    x = randn(9, 2, 8)
    lengths = torch.tensor([0, 4, 9], dtype=torch.int32, device=DEVICE)
    want = attention(x, x, x, lengths=lengths, max_lengths=(5, 5))
    assert torch.equal(attention(x, x, x, lengths=[0, 4, 9], max_lengths=(5, 5)), want)
    assert torch.equal(attention(x, x, x, lengths=([0, 4, 9], lengths), max_lengths=(5, 5)), want)
    one = [np.int32(0), np.int32(9)], [torch.tensor(0), torch.tensor(9)], np.array([0, 9])
    assert all(torch.equal(attention(x, x, x, lengths=y, max_lengths=[9, 9]), attention(x[None], x[None], x[None])[0])
               for y in one)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "block-sparse"])
@pytest.mark.parametrize("algorithm", ["automatic", "standard", "flash1", "flash2"])
def test_algorithms(algorithm, sparse):
    q, k, v = (randn(2, 70, 2, 16, grad=True) for _ in range(3))
    mask = tessera.BlockMask.butterfly(70, 70, block_q=16, block_k=16) if sparse else None
    visible = None
    if sparse:
        kept = np.zeros((mask.q_blocks, mask.k_blocks), dtype=bool)
        for row in range(mask.q_blocks):
            kept[row, mask.row(row)] = True
        visible = oracle.blocks_to_elements(kept, 70, 70, 16, 16)
        assert 0 < visible.mean() < 1

    def run(q, k, v, bias):
        return attention(q, k, v, algorithm=algorithm, block_mask=mask, causal=True, return_lse=True)

    check_problem(oracle.Problem(right=0, visible=visible), run, q, k, v)


@cpu_only
@pytest.mark.parametrize("words", [{}, {"causal": True}, {"window": (2, 1)}, {"softcap": 2.0}, {"dropout": 0.3}],
                         ids=lambda words: next(iter(words), "plain"))
def test_gradcheck(words):
    q, k, v, bias = randn(2, 5, 4, 8, grad=True), randn(2, 7, 2, 8, grad=True), randn(2, 7, 2, 6, grad=True), \
        randn(4, 1, 7, grad=True)
    state = torch.tensor([1, 2]) if "dropout" in words else None
    assert torch.autograd.gradcheck(
        lambda q, k, v, bias: attention(q, k, v, bias=bias, dropout_state=state, return_lse=True, **words),
        (q, k, v, bias))


def test_gradient_through_the_lse_alone():
    q, k, v = (randn(1, 9, 2, 8, grad=True) for _ in range(3))
    _, lse = attention(q, k, v, return_lse=True)
    lse.sum().backward()
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 8**-0.5
    want = torch.autograd.grad(torch.logsumexp(scores, -1).sum(), (q, k))
    check("grad_q", q.grad, as_numpy(want[0]), EXACT, 100)
    check("grad_k", k.grad, as_numpy(want[1]), EXACT, 100)
    assert not v.grad.any()


def test_only_wanted_gradients_are_computed():
    q, k, v = randn(1, 9, 2, 8), randn(1, 9, 2, 8, grad=True), randn(1, 9, 2, 8)
    attention(q, k, v).sum().backward()
    assert k.grad is not None and q.grad is None and v.grad is None
    assert not attention(q, k.detach(), v).requires_grad
    with torch.no_grad():
        assert not attention(q, k, v).requires_grad


def test_rows_without_keys():
    q, k, v = randn(1, 6, 2, 8, grad=True), randn(1, 3, 2, 8, grad=True), randn(1, 3, 2, 8, grad=True)
    out, lse = attention(q, k, v, causal=True, return_lse=True)  # the first three rows end before the first key
    assert not out[:, :3].any() and torch.isneginf(lse[:, :, :3]).all()
    (out.sum() + lse[:, :, 3:].sum()).backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v)) and not q.grad[:, :3].any()
    empty = attention(q, k[:, :0], v[:, :0])
    assert not empty.any() and empty.shape == q.shape


def test_expanded_and_transposed_inputs_are_not_copied():
    one = randn(1, 33, 1, 16)
    expanded = one.expand(3, 33, 4, 16)
    transposed = randn(3, 4, 33, 16).transpose(1, 2)
    packed = randn(3, 33, 3, 4, 16)
    for tensor in (expanded, transposed, *packed.unbind(2), randn(3, 33, 4, 20)[..., :16]):
        assert _calls.with_rows(tensor) is tensor
    want = attention(transposed.contiguous(), expanded.contiguous(), expanded.contiguous())
    assert torch.equal(attention(transposed, expanded, expanded), want)
    q = transposed.detach().requires_grad_()
    shared = one.clone().requires_grad_()
    attention(q, shared.expand(3, 33, 4, 16), shared.expand(3, 33, 4, 16)).sum().backward()
    assert shared.grad.shape == one.shape and q.grad.stride() == q.stride()


def test_head_dim_that_is_not_contiguous_is_copied():
    q = randn(2, 33, 16, 4).transpose(2, 3)
    assert q.stride(-1) != 1
    assert torch.equal(attention(q, q, q), attention(*(q.contiguous(),) * 3))


@pytest.mark.parametrize("which", range(4), ids=["q", "k", "v", "bias"])
def test_each_input_may_have_rows_with_gaps(which):
    leaves = [randn(2, 33, 16, 4, grad=True) for _ in range(3)] + [randn(33, 33, grad=True)]

    def value(contiguous):
        x = list(leaves[i].mT if i == which else leaves[i].mT.contiguous() for i in range(4))
        assert x[which].stride(-1) != 1
        return attention(*(y.contiguous() if contiguous else y for y in x[:3]),
                         bias=x[3].contiguous() if contiguous else x[3]).square().sum()

    for got, want in zip(*(torch.autograd.grad(value(contiguous), leaves) for contiguous in (False, True))):
        assert torch.equal(got, want)


def test_inputs_that_overlap_themselves():
    track = randn(40)
    windows = track.as_strided((1, 8, 1, 16), (40, 1, 1, 1)).requires_grad_()  # as unfold makes them
    same = windows.detach().contiguous().requires_grad_()
    for x in (windows, same):
        attention(x, x, x).square().sum().backward()
    assert torch.equal(windows.grad, same.grad)


def test_output_follows_the_memory_order_of_q():
    q = randn(2, 33, 4, 16).transpose(1, 2)
    out = attention(q, q, q, layout="bhsd")
    assert out.stride() == q.stride() and out.transpose(1, 2).is_contiguous()


def test_docstrings():
    import doctest

    from tessera.torch import _attention, _replace, _sdpa

    for module in (_attention, _replace, _sdpa, tessera.compat):
        results = doctest.testmod(module)
        assert results.attempted and not results.failed, module
    tessera.compat.uninstall()


# --- dropout ---------------------------------------------------------------------------------------------------------


def dropped(x, **words):
    return attention(x, x, x, dropout=0.4, **words)


def test_dropout_follows_the_generator():
    x = randn(1, 64, 2, 16)
    torch.manual_seed(7)
    first, second = dropped(x), dropped(x)
    torch.manual_seed(7)
    assert torch.equal(dropped(x), first)
    assert torch.equal(dropped(x), second)
    assert not torch.equal(first, second)

    own = torch.Generator(DEVICE).manual_seed(3)
    before = torch.get_rng_state()
    third = dropped(x, generator=own)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(dropped(x, generator=own.manual_seed(3)), third)


@pytest.mark.parametrize("seed, offset", [(3, 4), (2**64 - 5, 2**63 + 1)])
def test_dropout_by_numbers(seed, offset):
    q, k, v = (randn(1, 40, 2, 16, grad=True) for _ in range(3))
    check_problem(oracle.Problem(dropout=0.4, seed=seed, offset=offset),
                  lambda q, k, v, _: attention(q, k, v, dropout=0.4, seed=seed, offset=offset, return_lse=True), q, k, v)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_reproduces_dropout(reentrant):
    from torch.utils.checkpoint import checkpoint

    x = randn(1, 64, 2, 16, grad=True)
    torch.manual_seed(5)
    dropped(x * 2.0).square().sum().backward()
    want, x.grad = x.grad, None
    torch.manual_seed(5)
    checkpoint(lambda x: dropped(x * 2.0), x, use_reentrant=reentrant).square().sum().backward()
    assert torch.equal(x.grad, want)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(reentrant):
    from torch.utils.checkpoint import checkpoint

    x = randn(1, 64, 2, 16, grad=True)
    want = torch.autograd.grad(attention(x, x, x, causal=True).square().sum(), x)[0]
    got = checkpoint(lambda x: attention(x, x, x, causal=True), x, use_reentrant=reentrant)
    got.square().sum().backward()
    assert torch.equal(x.grad, want)


@cuda_only
def test_cuda_graph_draws_new_bits():
    x = randn(1, 64, 2, 16)
    dropped(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = dropped(x)
    results = []
    for _ in range(2):
        graph.replay()
        results.append(out.clone())
    assert not torch.equal(*results)


@cuda_only
def test_cuda_graph_of_a_training_step():
    x = randn(1, 64, 2, 16, grad=True)
    want = torch.autograd.grad(attention(x, x, x, causal=True).square().sum(), x)[0]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grad = torch.autograd.grad(attention(x, x, x, causal=True).square().sum(), x)[0]
    grad.zero_()
    graph.replay()
    check("grad", grad, as_numpy(want), EXACT)


# --- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    q, k, v = (randn(1, 33, 2, 16, dtype=torch.float32, grad=True) for _ in range(3))
    bias = randn(33, 33, dtype=torch.float32, grad=True)
    with torch.autocast(DEVICE, dtype):
        out = attention(q, k, v, bias=bias)
    assert out.dtype == dtype
    out.float().sum().backward()
    assert all(x.grad.dtype == torch.float32 and x.grad.any() for x in (q, k, v, bias))
    check("out", out, as_numpy(attention(q, k, v, bias=bias)), dtype)


def test_deterministic_follows_torch():
    q, k, v = (randn(1, 200, 2, 16, grad=True) for _ in range(3))
    torch.use_deterministic_algorithms(True)
    try:
        grads = [torch.autograd.grad(attention(q, k, v).square().sum(), (q, k, v)) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(*grads))


def as_operators():
    """Under any mode of torch a call takes the operators in place of the autograd function."""
    return torch.overrides.BaseTorchFunctionMode()


WAYS = pytest.mark.parametrize("way", [contextlib.nullcontext, as_operators], ids=["eager", "operators"])


@WAYS
@pytest.mark.parametrize("through", ["the output", "the lse"])
def test_second_derivatives_are_refused(way, through):
    """Also where the gradient of the output is a constant, and where the input is no leaf."""
    x = randn(1, 9, 2, 8, grad=True)

    def value(x):
        y = 2.0 * x
        out, lse = attention(y, y, y, return_lse=True)
        return out.sum() if through == "the output" else lse.sum()

    with way():
        (grad,) = torch.autograd.grad(value(x), x, create_graph=True)
        with pytest.raises(NotImplementedError, match="first derivatives only.*SDPBackend.MATH"):
            torch.autograd.grad(grad.square().sum(), x)
        with pytest.raises(NotImplementedError, match="first derivatives only"):
            torch.autograd.functional.hvp(value, x.detach(), torch.ones_like(x))
        with pytest.raises(NotImplementedError, match="first derivatives only"):
            torch.autograd.functional.hessian(value, x[:, :2, :1, :2].detach())
        leaf = x.detach().requires_grad_()
        attention(leaf, leaf, leaf).sum().backward(create_graph=True, inputs=[leaf])
        with pytest.raises(NotImplementedError, match="first derivatives only"):
            leaf.grad.sum().backward()
        leaf.grad = None  # ends the cycle that create_graph makes


@WAYS
def test_a_graph_of_first_derivatives_is_made_without_harm(way):
    """create_graph alone costs nothing but the graph: other parts of it may be differentiated again."""
    q, k, v, bias = *(randn(1, 9, 2, 8, grad=True) for _ in range(3)), randn(9, 9, grad=True)
    with way():
        def loss():
            return attention(q, k, v, bias=bias).square().sum() + q.pow(3).sum()

        want = torch.autograd.grad(loss(), (q, k, v, bias))
        got = torch.autograd.grad(loss(), (q, k, v, bias), create_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(got, want))
    other = torch.autograd.grad(q.pow(3).sum(), q, create_graph=True)[0]
    assert torch.equal(torch.autograd.grad(other.sum(), q)[0], 6.0 * q)


def test_forward_mode_is_refused_not_ignored():
    from torch.autograd import forward_ad

    x = randn(1, 9, 2, 8)
    with forward_ad.dual_level():
        attention(x, x, x)
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(NotImplementedError, match="k has a forward-mode tangent"):
            attention(x, dual, x)
    with pytest.raises(NotImplementedError, match="q has a forward-mode tangent"):
        torch.func.jvp(lambda q: attention(q, x, x), (x,), (x,))


def test_inference_mode_and_parameters():
    x = torch.nn.Parameter(randn(1, 9, 2, 8))
    with torch.inference_mode():
        out = attention(x, x, x)
    assert out.is_inference()
    attention(x, x, x).sum().backward()
    assert x.grad is not None


def test_alibi_words():
    x = randn(1, 20, 4, 8)
    slopes = torch.tensor(tessera.alibi_slopes(4), device=DEVICE)
    want = attention(x, x, x, alibi=slopes)
    assert torch.equal(attention(x, x, x, alibi=True), want)
    assert torch.equal(attention(x, x, x, alibi=slopes.tolist()), want)
    assert torch.equal(attention(x, x, x, alibi=False), attention(x, x, x))


@WAYS
def test_alibi_slopes_that_require_a_gradient_are_refused(way):
    x, slopes = randn(1, 9, 2, 8), torch.ones(2, device=DEVICE, requires_grad=True)
    with way(), pytest.raises(ValueError, match="alibi requires a gradient.*bias"):
        attention(x, x, x, alibi=slopes)
    with torch.no_grad():
        attention(x, x, x, alibi=slopes)
    with pytest.raises(ValueError, match="requires a gradient"):
        tessera.attention(x, x, x, alibi=slopes)


def test_strided_alibi_slopes():
    x, slopes = randn(3, 9, 2, 8), torch.rand(2, 3, device=DEVICE)
    for strided in (slopes.T, torch.rand(3, 4, device=DEVICE)[:, ::2], torch.rand(6, 2, device=DEVICE)[::2],
                    torch.rand(2, device=DEVICE).expand(3, 2)):
        assert torch.equal(attention(x, x, x, alibi=strided), attention(x, x, x, alibi=strided.contiguous()))


@WAYS
def test_tensors_do_not_describe_a_call(way):
    """A description is kept for later calls, and a tensor may change."""
    x = randn(1, 9, 2, 8)
    number = torch.tensor(0.5)
    for words in ({"scale": number}, {"scale": torch.nn.Parameter(number)}, {"softcap": number}, {"dropout": number},
                  {"window": (torch.tensor(3), 0)}, {"diagonal": torch.tensor(3)}, {"causal": torch.tensor(True)},
                  {"origin": (torch.tensor(1), 0, 0, 0)}):
        name = next(iter(words))
        with way(), pytest.raises(ValueError, match=f"^{'left' if name == 'window' else name}.* is an? "):
            attention(x, x, x, **words)


def test_a_mask_without_values_is_no_bias():
    from torch.nn.attention.bias import causal_lower_right

    x = randn(1, 9, 2, 8)
    with pytest.raises(ValueError, match="bias is a CausalBias.*causal=True"):
        attention(x, x, x, bias=causal_lower_right(9, 9))


@pytest.mark.parametrize("seed", [-1, 2**64, 0.5, None, "a"])
@pytest.mark.parametrize("name", ["seed", "offset"])
def test_seeds_that_do_not_fit(name, seed):
    x = randn(1, 9, 2, 8)
    words = {"seed": 1, name: seed}
    if words["seed"] is None:
        pytest.skip("no seed: one is drawn")
    with pytest.raises(ValueError, match=f"{name} is {seed!r}; it must be an integer from 0 to 2"):
        attention(x, x, x, dropout=0.5, **words)


@cpu_only
@pytest.mark.parametrize("shape", [(2, 4, 30, 70), (4, 1, 70), (2, 1, 1, 70), (30, 70), (30, 1)], ids=str)
def test_boolean_masks(shape):
    q, k, v = randn(2, 30, 4, 8, grad=True), randn(2, 70, 2, 8, grad=True), randn(2, 70, 2, 5, grad=True)
    visible = torch.rand(shape) > 0.4
    visible = visible.expand(*shape[:-1], 70)
    seen = visible.expand(2, 4, 30, 70).numpy()
    check_problem(oracle.Problem(visible=seen, right=3, softcap=2.0),
                  lambda q, k, v, _: attention(q, k, v, visible=visible, window=(-1, 3), softcap=2.0, return_lse=True), q, k, v)


@cuda_only
def test_boolean_masks_name_the_way_out():
    x = randn(1, 9, 2, 8)
    with pytest.raises(NotImplementedError, match="boolean mask .visible.; pass a bias of -infinity"):
        attention(x, x, x, visible=torch.ones(9, dtype=torch.bool, device=DEVICE))


@pytest.mark.parametrize("words, error, text", [
    ({"scale": "a"}, ValueError, "scale is 'a'; it must be a number or None"),
    ({"bias": 1.0}, TypeError, "bias is of type float; it must be a torch.Tensor"),
    ({"visible": [True]}, TypeError, "visible is of type list; it must be a torch.Tensor"),
    ({"visible": torch.ones(9)}, ValueError, "visible.dtype is float32; it must be bool"),
    ({"dropout": "a"}, ValueError, "dropout is 'a'; it must be a number"),
    ({"softcap": None}, ValueError, "softcap is None; it must be a number"),
    ({"window": [3]}, ValueError, r"window is \[3\]; it must be two integers"),
    ({"lengths": ["a"]}, ValueError, r"lengths is \['a'\]"),
    ({"lengths": [0, 9], "max_lengths": 9}, ValueError, "max_lengths is 9"),
    ({"alibi": ["a", "b"]}, ValueError, "alibi is"),
    ({"layout": "sbhd"}, ValueError, "layout is 'sbhd'"),
    ({"dropout": 1.5}, ValueError, "dropout.probability is 1.5"),
    ({"window": (-3, 1)}, ValueError, "left"),
    ({"algorithm": "flash9"}, ValueError, "flash9"),
])
def test_errors_name_the_argument(words, error, text):
    x = randn(1, 9, 2, 8)
    with pytest.raises(error, match=text):
        attention(x, x, x, **words)


@pytest.mark.parametrize("rank", [0, 1, 2, 5])
@pytest.mark.parametrize("words", [{}, {"alibi": True}, {"return_lse": True}, {"layout": "bhsd"}], ids=str)
@WAYS
def test_ranks_are_checked(way, words, rank):
    x = torch.ones((2,) * rank, device=DEVICE)
    with way(), pytest.raises(ValueError, match="^q.* dimensions|^q.ndim is"):
        attention(x, x, x, **words)


def test_shapes_and_types_are_checked():
    x = randn(1, 9, 2, 8)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        with pytest.raises(ValueError, match=f"q.dtype is {str(dtype)[6:]}; it must be float64, float32"):
            attention(*(x.to(dtype),) * 3)
    with pytest.raises(ValueError, match="k.shape"):
        attention(x, randn(1, 9, 2, 9), x)
    with pytest.raises(ValueError, match="dtype"):
        attention(x, x.half(), x)
    with pytest.raises(ValueError, match="dtype"):
        attention(x.int(), x.int(), x.int())
    if CUDA:
        with pytest.raises(NotImplementedError):
            attention(x.double(), x.double(), x.double())
