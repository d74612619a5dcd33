"""replace_sdpa: whom the library's attention reaches, and for how long."""

import asyncio
import threading

import pytest
from torch.utils.checkpoint import checkpoint
from torch_support import DEVICE, as_numpy, check, randn, torch

from tessera.torch import replace_sdpa, scaled_dot_product_attention

functional = torch.nn.functional
ORIGINAL = functional.scaled_dot_product_attention


def is_ours():
    """Whether what stands in torch.nn.functional is the library's: it has dropout bits of its own."""
    x = torch.ones(1, 1, 64, 8, device=DEVICE)
    torch.manual_seed(0)
    got = functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    torch.manual_seed(0)
    return torch.equal(got, scaled_dot_product_attention(x, x, x, dropout_p=0.5))


def test_replace_nests_and_ends():
    assert not is_ours()
    with replace_sdpa():
        assert is_ours()
        with replace_sdpa():
            assert is_ours()
        assert is_ours()
    assert functional.scaled_dot_product_attention is ORIGINAL and not is_ours()


def test_replace_ends_with_an_exception():
    with pytest.raises(KeyError):
        with replace_sdpa():
            raise KeyError
    assert functional.scaled_dot_product_attention is ORIGINAL


def test_replace_holds_for_its_thread_only():
    entered, leave, seen = threading.Event(), threading.Event(), {}

    def inside():
        with replace_sdpa():
            seen["inside"] = is_ours()
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=inside)
    thread.start()
    assert entered.wait(30)
    seen["outside"] = is_ours()
    with replace_sdpa():
        seen["both"] = is_ours()
        leave.set()
        thread.join()
        seen["still"] = is_ours()
    assert seen["inside"] and not seen["outside"] and seen["both"] and seen["still"]
    assert functional.scaled_dot_product_attention is ORIGINAL


def test_replace_reaches_multihead_attention():
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True, device=DEVICE, dtype=torch.float32)
    x = randn(2, 9, 32, dtype=torch.float32)
    padding = torch.zeros(2, 9, dtype=torch.bool, device=DEVICE)
    padding[1, 5:] = True
    want = layer(x, x, x, key_padding_mask=padding, need_weights=False)[0]
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        from tessera.torch import _sdpa

        inner = _sdpa.attend
        patch.setattr(_sdpa, "attend", lambda *a, **words: calls.append(1) or inner(*a, **words))
        with replace_sdpa():
            got = layer(x, x, x, key_padding_mask=padding, need_weights=False)[0]
    assert calls
    check("out", got, as_numpy(want), torch.float32, 50)


def test_replace_and_compile():
    x = randn(2, 4, 33, 16, dtype=torch.float32)
    mask = torch.rand(33, 33, device=DEVICE) > 0.2
    compiled = torch.compile(lambda x, mask: functional.scaled_dot_product_attention(x, x, x, mask).sin(),
                             fullgraph=True, dynamic=True)
    with replace_sdpa():
        got = compiled(x, mask)
    check("out", got, as_numpy(ORIGINAL(x, x, x, mask).sin()), torch.float32, 50)


def test_replace_inside_compiled_code():
    targets = []

    def backend(graph, _):
        targets.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph

    x = randn(2, 4, 33, 16, dtype=torch.float32)

    @torch.compile(fullgraph=True, backend=backend)
    def compiled(x):
        with replace_sdpa():
            inside = functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return inside, functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    inside, outside = compiled(x)
    assert torch.ops.tessera.forward in targets and torch._C._nn.scaled_dot_product_attention in targets
    assert torch.equal(inside, scaled_dot_product_attention(x, x, x, is_causal=True))
    assert torch.equal(outside, ORIGINAL(x, x, x, is_causal=True))
    assert functional.scaled_dot_product_attention is ORIGINAL and not is_ours()


def test_compiled_code_notices_the_replacement():
    targets = []

    def backend(graph, _):
        targets.append([str(node.target) for node in graph.graph.nodes])
        return graph

    x = randn(2, 4, 9, 16)
    compiled = torch.compile(lambda x: functional.scaled_dot_product_attention(x, x, x), fullgraph=True, backend=backend)

    def ours():
        return any("tessera" in target for target in targets[-1])

    compiled(x)
    assert not ours()
    with replace_sdpa():
        compiled(x)
        assert ours()
        thread = threading.Thread(target=compiled, args=(x,))  # another thread, which is not inside
        thread.start()
        thread.join()
        assert not ours() and len(targets) <= 3
    for _ in range(3):
        with replace_sdpa():
            compiled(x)
    assert len(targets) <= 3, "every block compiles again"


def test_replace_holds_for_its_task_only():
    async def inside(entered, leave):
        with replace_sdpa():
            entered.set()
            await leave.wait()
            return is_ours()

    async def outside(entered, leave):
        await entered.wait()
        result = is_ours()
        leave.set()
        return result

    async def both():
        events = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(inside(*events), outside(*events))

    assert asyncio.run(both()) == [True, False]
    assert functional.scaled_dot_product_attention is ORIGINAL


def test_replace_as_a_decorator():
    @replace_sdpa()
    def inside(depth):
        return is_ours() and (depth == 0 or inside(depth - 1)) and is_ours()

    assert inside(2) and not is_ours()


@pytest.mark.parametrize("block_ends", ["before backward", "after backward"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_repeats_the_forward_pass(reentrant, block_ends):
    """With dropout, whose bits differ between the library and PyTorch, and whose gradients are wrong if they are mixed."""
    x = randn(1, 2, 64, 8, grad=True)

    def layer(x):
        return functional.scaled_dot_product_attention(x * 2.0, x, x, dropout_p=0.4)

    with replace_sdpa():
        torch.manual_seed(5)
        (want,) = torch.autograd.grad(layer(x).square().sum(), x)
        torch.manual_seed(5)
        out = checkpoint(layer, x, use_reentrant=reentrant)
        if block_ends == "after backward":
            out.square().sum().backward()
    if block_ends == "before backward":
        out.square().sum().backward()
    assert torch.equal(x.grad, want)
    x.grad = None
    checkpoint(layer, x, use_reentrant=reentrant).square().sum().backward()  # PyTorch's own, not touched
    assert not torch.equal(x.grad, want) and functional.scaled_dot_product_attention is ORIGINAL


def test_replace_leaves_the_patches_of_others():
    calls = []

    def theirs_over(inner):
        def theirs(*args, **words):
            calls.append(1)
            return inner(*args, **words)
        return theirs

    x = randn(1, 2, 9, 8)
    try:
        with replace_sdpa():
            ours = functional.scaled_dot_product_attention
            functional.scaled_dot_product_attention = theirs = theirs_over(ours)
            assert is_ours() and calls
        assert functional.scaled_dot_product_attention is theirs, "what others put there is gone"
        with replace_sdpa():  # again, over theirs, which leads to what stood there before
            assert is_ours()
        calls.clear()
        assert functional.scaled_dot_product_attention is theirs and not is_ours() and calls
        assert torch.equal(theirs(x, x, x), ORIGINAL(x, x, x))
        functional.scaled_dot_product_attention = ours  # they restore what they found
        assert not is_ours()
        with replace_sdpa():
            assert is_ours()
        assert functional.scaled_dot_product_attention is ORIGINAL, "what was left behind is taken back"
    finally:
        functional.scaled_dot_product_attention = ORIGINAL


def test_replace_asks_subclasses():
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func is functional.scaled_dot_product_attention:
                return "attention of its own"
            return super().__torch_function__(func, types, args, kwargs or {})

    q, k = randn(2, 4, 4, 8), randn(2, 4, 9, 8)
    for corner in (causal_lower_right(4, 9), causal_upper_left(4, 9)):
        want = ORIGINAL(q, k, k, corner._materialize(q.device))
        with replace_sdpa():
            check("out", functional.scaled_dot_product_attention(q, k, k, attn_mask=corner), as_numpy(want), q.dtype, 20)
    with replace_sdpa():
        assert functional.scaled_dot_product_attention(q, k, k.as_subclass(Own)) == "attention of its own"
        with torch.device(DEVICE):  # a mode, which PyTorch treats like a subclass
            assert is_ours()
