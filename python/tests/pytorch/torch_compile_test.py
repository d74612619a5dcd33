"""What traces: the operators, fake tensors, torch.compile, torch.export, the profiler."""

import pytest
from torch_support import DEVICE, EXACT, as_numpy, check, cpu_only, randn, torch

import tessera
from tessera.torch import attention, new_dropout_state


def operator_inputs(dtype, grad, **words):
    """Arguments of torch.ops.tessera.forward, by name over defaults."""
    named = {
        "q": randn(2, 9, 4, 8, dtype=dtype, grad=grad), "k": randn(2, 7, 2, 8, dtype=dtype, grad=grad),
        "v": randn(2, 7, 2, 6, dtype=dtype, grad=grad), "bias": None, "alibi": None, "lengths_q": None,
        "lengths_k": None, "dropout_state": None, "visible": None, "max_q": 0, "max_k": 0, "layout": 0, "causal": False,
        "window": None, "align": "bottom_right", "diagonal": None, "scale": None, "softcap": 0.0, "dropout": 0.0,
        "origin": [0, 0, 0, 0], "algorithm": "automatic", "deterministic": False, "block_mask": None}
    assert set(words) <= set(named)
    return tuple({**named, **words}.values())


CASES = {
    "plain": lambda: {},
    "featured": lambda: {"bias": randn(4, 1, 7, dtype=torch.float32, grad=True), "causal": True, "window": [3, -1],
                         "softcap": 3.0, "alibi": torch.rand(4, device=DEVICE), "scale": 0.3},
    **({} if DEVICE == "cuda" else {"visible": lambda: {"visible": torch.rand(2, 1, 9, 7) > 0.3}}),
    "dropout": lambda: {"dropout": 0.2, "dropout_state": new_dropout_state(DEVICE)},
    "transposed": lambda: {"q": randn(2, 4, 9, 8, dtype=torch.float32).transpose(1, 2).requires_grad_()},
    "copied": lambda: {"q": randn(2, 9, 8, 4, dtype=torch.float32).transpose(2, 3).requires_grad_()},
    "expanded": lambda: {"k": randn(1, 7, 1, 8, dtype=torch.float32).expand(2, 7, 2, 8)},
    "one channel": lambda: {x: randn(2, 1, 9, 4, dtype=torch.float32).transpose(1, 3).requires_grad_() for x in "qkv"},
    "one channel, bshd": lambda: {x: randn(2, 9, 1, 4, dtype=torch.float32).mT.requires_grad_() for x in "qkv"},
    "one key": lambda: {"bias": randn(1, 9, dtype=torch.float32).mT.requires_grad_(), **{
        x: randn(2, 1, 2, 8, dtype=torch.float32, grad=True) for x in "kv"}},
    "heads first": lambda: {"q": randn(2, 4, 9, 8, dtype=torch.float32, grad=True), "layout": 1, **{
        x: randn(2, 2, 7, 8, dtype=torch.float32, grad=True) for x in "kv"}},
}


@pytest.mark.parametrize("case", CASES)
def test_opcheck_forward(case):
    torch.library.opcheck(torch.ops.tessera.forward.default, operator_inputs(torch.float32, True, **CASES[case]()))


BACKWARD_CASES = {
    "plain": lambda: {},
    "one channel": CASES["one channel"],
    "copied": CASES["copied"],
    "overlapping": lambda: {"q": randn(2, 4, 9, 8, dtype=torch.float32).transpose(1, 2), "k": randn(
        80, dtype=torch.float32).as_strided((2, 7, 2, 8), (40, 1, 1, 1)), "v": randn(2, 7, 2, 8, dtype=torch.float32)},
}


@pytest.mark.parametrize("case", BACKWARD_CASES)
@pytest.mark.parametrize("needs", [(True, True, True, True), (False, True, False, False)])
def test_opcheck_backward(needs, case):
    words = {name: x.detach() for name, x in BACKWARD_CASES[case]().items()}
    keys = words["k"].shape[1] if "k" in words else 7
    rows = words["q"].shape[1] if "q" in words else 9
    inputs = operator_inputs(torch.float32, False, bias=randn(rows, keys, dtype=torch.float32), **words)
    out, lse = torch.ops.tessera.forward(*inputs)
    torch.library.opcheck(torch.ops.tessera.backward.default,
                          (torch.randn_like(out), torch.randn_like(lse), out, lse, list(needs), *inputs))


@cpu_only
def test_operator_gradcheck():
    q, k, v, bias = randn(1, 5, 2, 4, grad=True), randn(1, 6, 1, 4, grad=True), randn(1, 6, 1, 3, grad=True), \
        randn(5, 6, grad=True)
    rest = operator_inputs(EXACT, False)[4:]
    assert torch.autograd.gradcheck(lambda *x: torch.ops.tessera.forward(*x, *rest), (q, k, v, bias))


def both_ways(function, *inputs, **options):
    """Values and gradients of the function, compiled and not, must agree; returns the compiled function."""
    compiled = torch.compile(function, fullgraph=True, **options)
    compare(function, compiled, inputs)
    return compiled


def compare(function, compiled, inputs):
    leaves = [x for x in inputs if x.requires_grad]
    want, got = function(*inputs), compiled(*inputs)
    check("value", got, as_numpy(want), torch.float32, 100)
    for a, b in zip(torch.autograd.grad(got, leaves), torch.autograd.grad(want, leaves)):
        check("gradient", a, as_numpy(b), torch.float32, 100)


@pytest.mark.parametrize("transpose", [(1, 3), (2, 3), (1, 2)])
def test_compile_with_one_channel(transpose):
    """Of a dimension of size 1 the stride is anything; what is traced must say the same as what runs."""
    shape = [2, 9, 4, 1]
    shape[transpose[0]], shape[transpose[1]] = shape[transpose[1]], shape[transpose[0]]
    q, k, v = (randn(*shape, dtype=torch.float32, grad=True) for _ in range(3))
    both_ways(lambda q, k, v: attention(*(x.transpose(*transpose) for x in (q, k, v))).sin().sum(), q, k, v)


@cpu_only
def test_compile_with_a_boolean_mask():
    q, k, v = (randn(2, 33, 6, 16, dtype=torch.float32, grad=True) for _ in range(3))
    visible = torch.arange(33) < torch.tensor([33, 20])[:, None, None, None]
    both_ways(lambda q, k, v, visible: attention(q, k, v, visible=visible).sin().sum(), q, k, v, visible)
    sdpa = tessera.torch.scaled_dot_product_attention
    both_ways(lambda q, k, v, visible: sdpa(q.mT, k.mT, v.mT, visible[..., :16]).sin().sum(), q, k, v, visible)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_with_the_slopes_of_the_paper(dynamic):
    q, k, v = (randn(2, 33, 6, 16, dtype=torch.float32, grad=True) for _ in range(3))
    both_ways(lambda q, k, v: attention(q, k, v, alibi=True, causal=True).sin().sum(), q, k, v, dynamic=dynamic)


def test_compiled_autograd_after_an_eager_forward():
    mask = tessera.BlockMask.local(64, 64, 1, block_q=16, block_k=16)
    q, k, v, bias = *(randn(1, 64, 2, 8, dtype=torch.float32, grad=True) for _ in range(3)), \
        randn(64, dtype=torch.float32, grad=True)
    enable = torch._dynamo.compiled_autograd._enable
    for words in ({}, {"causal": True, "scale": 0.5, "softcap": 2.0}, {"window": (3, -1), "block_mask": mask}):
        def loss():
            out, lse = attention(2.0 * q, k, v, bias=bias, return_lse=True, **words)
            return out.square().sum() + lse.sum()

        want = torch.autograd.grad(loss(), (q, k, v, bias))
        value = loss()
        with enable(torch.compile(backend="aot_eager", fullgraph=True)):
            got = torch.autograd.grad(value, (q, k, v, bias))
        for a, b in zip(got, want):
            check("gradient", a, as_numpy(b), torch.float32, 10)


def test_compile_with_dynamic_shapes():
    def model(q, k, v, bias):
        out, lse = attention(q * 2.0, k, v, bias=bias, causal=True, window=(30, 0), softcap=5.0, return_lse=True)
        return out.sin().sum() + lse.sum()

    def inputs(batch, queries, keys):
        shapes = (batch, queries, 4, 16), (batch, keys, 2, 16), (batch, keys, 2, 16), (4, 1, keys)
        return [randn(*shape, dtype=torch.float32, grad=True) for shape in shapes]

    compiled = both_ways(model, *inputs(3, 40, 50), dynamic=True)
    # Sizes for which Inductor's own thresholds (4096 elements in a loop) do not ask for other code.
    with torch._dynamo.config.patch(error_on_recompile=True):
        for sizes in ((3, 33, 40), (4, 47, 47), (5, 100, 120)):
            compare(model, compiled, inputs(*sizes))


def test_compile_with_a_block_mask():
    mask = tessera.BlockMask.local(64, 64, 1, block_q=16, block_k=16)
    q, k, v = (randn(2, 64, 2, 16, dtype=torch.float32, grad=True) for _ in range(3))
    both_ways(lambda q, k, v: attention(q, k, v, block_mask=mask).sin().sum(), q, k, v)
    dense = attention(q, k, v)
    assert not torch.allclose(dense, attention(q, k, v, block_mask=mask))


def test_compiled_code_notices_another_mask():
    near, far = (tessera.BlockMask.local(64, 64, radius, block_q=16, block_k=16) for radius in (0, 2))
    x = randn(1, 64, 2, 16, dtype=torch.float32)
    compiled = torch.compile(lambda x, mask: attention(x, x, x, block_mask=mask), fullgraph=True, backend="aot_eager")
    for mask in (near, far, None, near):
        assert torch.equal(compiled(x, mask), attention(x, x, x, block_mask=mask))


def test_compiled_dropout_follows_the_generator():
    x = randn(1, 64, 2, 16, dtype=torch.float32, grad=True)
    compiled = torch.compile(lambda x: attention(x, x, x, dropout=0.4), fullgraph=True)
    results = []
    for _ in range(2):
        torch.manual_seed(11)
        results.append((compiled(x), compiled(x)))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    assert not torch.equal(*results[0])


def test_compiled_checkpointing_repeats_dropout():
    """Recomputation drops what the first pass dropped: attention is linear in v, so the gradient along v follows from
    the output of the same call. (Two calls drop different elements, on GPUs also after torch.manual_seed: there
    compiled code recomputes with a generator of its own.)"""
    from torch.utils.checkpoint import checkpoint

    q = randn(1, 64, 2, 16, dtype=torch.float32)
    v = (torch.rand(1, 64, 2, 16, device=DEVICE) - 0.5).requires_grad_()
    weights = torch.randn_like(v)

    @torch.compile(fullgraph=True)
    def sines(q, v):
        return checkpoint(lambda q, v: attention(2.0 * q, q, v, dropout=0.3).sin(), q, v, use_reentrant=False)

    def along_v():
        """Both sides of the equation, for every head and channel."""
        result = sines(q, v)
        (grad,) = torch.autograd.grad(result, v, weights)
        angle = result.detach().asin()
        return (grad * v).detach().sum(1), (weights * angle.cos() * angle).sum(1)

    first = along_v()
    sines(q, v)  # a pass that is not followed back
    second = along_v()
    for got, want in (first, second):
        check("gradient along v", got, as_numpy(want), torch.float32, 1000)
    assert (first[1] - second[1]).abs().max() > 0.1, "both calls drop the same: the test would prove nothing"


def test_compiled_autocast():
    q, k, v = (randn(1, 33, 2, 16, dtype=torch.float32, grad=True) for _ in range(3))

    def model(q, k, v):
        with torch.autocast(DEVICE, torch.bfloat16):
            return attention(q, k, v)

    out = torch.compile(model, fullgraph=True)(q, k, v)
    assert out.dtype == torch.bfloat16
    check("out", out, as_numpy(model(q, k, v)), torch.bfloat16, 2)


def test_compiled_packed_sequences():
    lengths = torch.tensor([0, 10, 10, 33], dtype=torch.int32, device=DEVICE)
    q, k, v = (randn(33, 2, 16, dtype=torch.float32, grad=True) for _ in range(3))
    both_ways(lambda q, k, v: attention(q, k, v, lengths=lengths, max_lengths=(23, 23), causal=True).sin().sum(),
              q, k, v)


def test_export():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return attention(q, k, v, causal=True)

    q, k, v = (randn(2, 32, 2, 16, dtype=torch.float32) for _ in range(3))
    length = torch.export.Dim("length", min=2, max=1024)
    program = torch.export.export(Model(), (q, k, v), dynamic_shapes=({1: length},) * 3)
    longer = [randn(2, 77, 2, 16, dtype=torch.float32) for _ in range(3)]
    assert torch.equal(program.module()(*longer), Model()(*longer))


def test_meta_and_fake_tensors():
    out, lse = attention(*(torch.empty(2, 9, 4, 8, device="meta"),) * 3, return_lse=True)
    assert out.is_meta and out.shape == (2, 9, 4, 8) and lse.shape == (2, 4, 9)


def test_the_profiler_sees_it():
    x = randn(1, 16, 2, 8, grad=True)
    with torch.profiler.profile() as profile:
        attention(x, x, x).sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {"tessera::forward", "tessera::backward"} <= names


def test_a_graph_of_another_process_needs_its_mask():
    inputs = operator_inputs(torch.float32, False, block_mask="no such mask")
    with pytest.raises(ValueError, match="block_mask is 'no such mask'"):
        torch.ops.tessera.forward(*inputs)


@pytest.mark.parametrize("name, value", [
    ("scale", 0.3), ("scale", torch.nn.Parameter(torch.tensor(0.3))), ("softcap", 3.0), ("window", [3, 0]),
    ("window", (torch.tensor(3), 0)), ("diagonal", 1), ("dropout", 0.5), ("causal", True),
], ids=["scale", "parameter", "softcap", "window", "window of tensors", "diagonal", "dropout", "causal"])
@pytest.mark.parametrize("fullgraph", [True, False], ids=["fullgraph", "graph"])
def test_a_compiled_option_is_no_tensor(name, value, fullgraph):
    """The graph would hold the value of the first call, or drop the gradient."""
    value = value if isinstance(value, (torch.Tensor, tuple)) else torch.tensor(value)
    q = randn(1, 9, 2, 8, dtype=torch.float32)
    compiled = torch.compile(lambda q, value: attention(q, q, q, **{name: value}), backend="eager", fullgraph=fullgraph)
    refusal = (torch._dynamo.exc.Unsupported, f"{name} is or holds a tensor") if fullgraph else \
        (ValueError, f"{'left' if name == 'window' else name} is an array")
    torch.compiler.reset()
    with pytest.raises(refusal[0], match=refusal[1]):
        compiled(q, value)
