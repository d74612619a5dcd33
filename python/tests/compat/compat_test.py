"""tessera.compat.flash_attn against attention written out in torch."""

import inspect
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_support import CUDA, DEVICE, EXACT, as_numpy, band, check, plain_attention, randn, torch

import tessera.compat
from tessera.compat import flash_attn
from tessera.compat.flash_attn import bert_padding
from tessera.torch import attention


def compare(got, want, inputs):
    check("out", got, as_numpy(want), EXACT, 200)
    grad = torch.randn_like(want)
    grads = [torch.autograd.grad(x, inputs, grad) for x in (got, want)]
    for a, b in zip(*grads):
        check("gradient", a, as_numpy(b), EXACT, 200, floor=1.0)


def alibi_bias(slopes, queries, keys):
    distance = (torch.arange(queries, device=DEVICE)[:, None] + keys - queries - torch.arange(keys, device=DEVICE)).abs()
    return -slopes.to(EXACT)[..., None, None] * distance


@given(st.integers(1, 40), st.integers(1, 40), st.booleans(), st.sampled_from(((-1, -1), (3, 2), (5, 0))),
       st.sampled_from((0.0, 3.0)), st.sampled_from((None, (4,), (2, 4))), st.sampled_from((None, 0.3)))
def test_flash_attn_func(queries, keys, causal, window, softcap, slopes, scale):
    q, k, v = randn(2, queries, 4, 16, grad=True), randn(2, keys, 2, 16, grad=True), randn(2, keys, 2, 16, grad=True)
    slopes = None if slopes is None else torch.rand(slopes, device=DEVICE)
    got = flash_attn.flash_attn_func(q, k, v, softmax_scale=scale, causal=causal, window_size=window, softcap=softcap,
                                     alibi_slopes=slopes, deterministic=True)
    want = plain_attention(q, k, v, mask=band(queries, keys, window[0], 0 if causal else window[1]), scale=scale,
                           softcap=softcap, bias=None if slopes is None else alibi_bias(slopes, queries, keys))
    compare(got, want, (q, k, v))


def test_packed_tensors_are_used_as_they_lie():
    qkv = randn(2, 33, 3, 4, 16, grad=True)
    want = plain_attention(*qkv.unbind(2), mask=band(33, 33, right=0))
    compare(flash_attn.flash_attn_qkvpacked_func(qkv, causal=True), want, (qkv,))
    q, kv = randn(2, 20, 4, 16, grad=True), randn(2, 33, 2, 2, 16, grad=True)
    want = plain_attention(q, *kv.unbind(2), mask=band(20, 33, 8, 4))
    compare(flash_attn.flash_attn_kvpacked_func(q, kv, window_size=(8, 4)), want, (q, kv))


def padded(batch, length, *tail):
    """A padded batch, and its mask of tokens; one sequence is empty."""
    mask = torch.arange(length, device=DEVICE) < torch.randint(1, length + 1, (batch, 1), device=DEVICE)
    mask[1] = False
    return randn(batch, length, *tail, grad=True), mask


@pytest.mark.parametrize("form", ["apart", "kv packed", "qkv packed"])
def test_varlen(form):
    q, q_mask = padded(4, 30, 4, 16)
    kv, kv_mask = padded(4, 40, 2, 4, 16)
    if form == "qkv packed":
        qkv, q_mask = padded(4, 30, 3, 4, 16)
        packed, indices, cu, longest, _ = bert_padding.unpad_input(qkv, q_mask)
        out = flash_attn.flash_attn_varlen_qkvpacked_func(packed, cu, longest)
        inputs, (q, k, v), kv_mask = (qkv,), qkv.unbind(2), q_mask
    else:
        packed_q, indices, cu_q, longest_q, _ = bert_padding.unpad_input(q, q_mask)
        packed_kv, _, cu_k, longest_k, used = bert_padding.unpad_input(kv, kv_mask)
        assert torch.equal(used.long(), kv_mask.sum(1)) and longest_k == used.max() and cu_k.dtype == torch.int32
        k, v = kv.unbind(2)
        inputs = (q, kv)
        if form == "apart":
            out = flash_attn.flash_attn_varlen_func(packed_q, *packed_kv.unbind(1), cu_q, cu_k, longest_q, longest_k)
        else:
            out = flash_attn.flash_attn_varlen_kvpacked_func(packed_q, packed_kv, cu_q, cu_k, longest_q, longest_k)
    got = bert_padding.pad_input(out, indices, *q_mask.shape)
    want = plain_attention(q, k, v, mask=kv_mask[:, None, None, :]) * q_mask[:, :, None, None]
    compare(got, want, inputs)


def test_varlen_causal_is_bottom_right_in_each_sequence():
    lengths_q, lengths_k = (3, 5), (6, 5)
    q, k, v = randn(8, 2, 16), randn(11, 2, 16), randn(11, 2, 16)
    cumulative = [torch.tensor((0, a, a + b), dtype=torch.int32, device=DEVICE) for a, b in (lengths_q, lengths_k)]
    got = flash_attn.flash_attn_varlen_func(q, k, v, *cumulative, 5, 6, causal=True)
    parts = [plain_attention(a[None], b[None], c[None], mask=band(len(a), len(b), right=0))[0] for a, b, c in zip(
        q.split(lengths_q), k.split(lengths_k), v.split(lengths_k))]
    check("out", got, as_numpy(torch.cat(parts)), EXACT, 100)


SLOPES = {"none": lambda: None, "heads": lambda: torch.rand(2, device=DEVICE),
          "batch and heads": lambda: torch.rand(2, 2, device=DEVICE),
          "strided": lambda: torch.rand(2, 8, device=DEVICE)[:, ::4], "transposed": lambda: torch.rand(2, 2, device=DEVICE).T,
          "expanded": lambda: torch.rand(2, device=DEVICE).expand(2, 2)}


@pytest.mark.parametrize("slopes", SLOPES)
def test_varlen_takes_what_flash_attn_takes(slopes):
    """A max_seqlen above the number of tokens, tokens behind the last sequence, and slopes with any strides."""
    slopes = SLOPES[slopes]()
    lengths_q, lengths_k = (3, 5), (6, 5)
    cumulative = [torch.tensor((0, a, a + b), dtype=torch.int32, device=DEVICE) for a, b in (lengths_q, lengths_k)]
    q, k, v = (randn(n, 2, 16, grad=True) for n in (8 + 4, 11 + 3, 11 + 3))
    dense = [x.detach()[:n].requires_grad_() for x, n in ((q, 8), (k, 11), (v, 11))]
    want = attention(*dense, lengths=tuple(cumulative), max_lengths=(5, 6), causal=True,
                     alibi=None if slopes is None else slopes.contiguous())
    got = flash_attn.flash_attn_varlen_func(*(x[:len(y)] for x, y in zip((q, k, v), dense)), *cumulative, 1000, 1000,
                                            causal=True, alibi_slopes=slopes)
    assert torch.equal(got, want)
    if CUDA:
        return  # where the lengths cannot be read, rows of no sequence are not written
    out = flash_attn.flash_attn_varlen_func(q, k, v, *cumulative, 5, 6, causal=True, alibi_slopes=slopes)
    assert torch.equal(out[:8], want) and not out[8:].any()
    for grad, expected in zip(torch.autograd.grad(out.square().sum(), (q, k, v)),
                              torch.autograd.grad(want.square().sum(), dense)):
        assert torch.equal(grad[:len(expected)], expected) and not grad[len(expected):].any()


def test_varlen_with_tokens_behind_the_last_sequence_step_by_step():
    from tessera.compat.flash_attn import flash_attn_interface as low

    if CUDA:
        pytest.skip("on a GPU rows of no sequence are not written")
    cu = torch.tensor([0, 12, 30], dtype=torch.int32, device=DEVICE)
    q, k, v = (randn(34, 4, 16, grad=True) for _ in range(3))
    words = {"dropout_p": 0.3, "softmax_scale": 0.25, "causal": False, "alibi_slopes": torch.rand(4, 2, device=DEVICE).T}
    out, lse, signed, state = low._flash_attn_varlen_forward(q, k, v, cu, cu, 18, 50, **words, return_softmax=True)
    assert not out[30:].any() and torch.isneginf(lse[:, 30:]).all() and signed.shape == (2, 4, 18, 50)
    grads = [torch.empty_like(x) for x in (q, k, v)]
    low._flash_attn_varlen_backward(torch.ones_like(out), q, k, v, out, lse, *grads, cu, cu, 18, 50, **words,
                                    rng_state=state)
    want = attention(*(x[:30] for x in (q, k, v)), lengths=cu, dropout=0.3, dropout_state=state, scale=0.25,
                     alibi=words["alibi_slopes"])
    assert torch.equal(out[:30], want)
    for got, expected in zip(grads, torch.autograd.grad(want.sum(), (q, k, v))):
        assert torch.equal(got, expected)  # 0 behind the last sequence


def test_varlen_compiles_whole():
    cu = torch.tensor([0, 12, 30], dtype=torch.int32, device=DEVICE)
    x = randn(34, 2, 16, dtype=torch.float32)
    compiled = torch.compile(lambda x: flash_attn.flash_attn_varlen_func(x, x, x, cu, cu, 18, 18), fullgraph=True,
                             backend="aot_eager")
    assert torch.equal(compiled(x[:30]), flash_attn.flash_attn_varlen_func(x[:30], x[:30], x[:30], cu, cu, 18, 18))
    if not CUDA:
        assert not compiled(x)[30:].any()


def test_return_attn_probs():
    q, k, v = randn(2, 20, 4, 16), randn(2, 300, 2, 16), randn(2, 300, 2, 16)
    torch.manual_seed(3)
    out, lse, signed = flash_attn.flash_attn_func(q, k, v, dropout_p=0.3, return_attn_probs=True)
    torch.manual_seed(3)
    assert torch.equal(out, flash_attn.flash_attn_func(q, k, v, dropout_p=0.3))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(2, 2)) / 4
    check("lse", lse, as_numpy(torch.logsumexp(scores, -1)), EXACT, 200)
    check("probabilities", signed.abs(), as_numpy(torch.softmax(scores, -1)), EXACT, 200)
    assert abs((signed < 0).double().mean().item() - 0.3) < 0.01
    kept = torch.where(signed < 0, 0, signed) / (1 - round(0.3 * 2**15) / 2**15)  # dropped in steps of 2^-15
    check("out", out, as_numpy(torch.einsum("bhqk,bkhd->bqhd", kept, v.repeat_interleave(2, 2))), EXACT, 200)
    assert flash_attn.flash_attn_func(q, k, v, return_attn_probs=True)[2] is None


def test_return_attn_probs_of_packed_sequences():
    qkv = randn(30, 3, 2, 16)
    cu = torch.tensor([0, 12, 12, 30], dtype=torch.int32, device=DEVICE)
    out, lse, signed = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, cu, 18, dropout_p=0.5, return_attn_probs=True)
    assert out.shape == (30, 2, 16) and lse.shape == (2, 30) and signed.shape == (3, 2, 18, 18)
    kept = torch.where(signed < 0, 0, signed) / 0.5
    want = torch.einsum("hqk,khd->qhd", kept[2], qkv[12:, 2])
    check("out", out[12:], as_numpy(want), EXACT, 200)
    assert not signed[1].any() and not signed[0, :, 12:].any()


@pytest.mark.parametrize("words", [{}, {"causal": True}, {"window_size": (4, 0)}, {"gather": True}, {"leftpad": True},
                                   {"rotary": True, "causal": True}, {"rotary": True, "rotary_interleaved": False}],
                         ids=lambda words: "-".join(words) or "plain")
def test_kvcache(words):
    words = dict(words)
    gather, leftpad, rotary = (words.pop(x, False) for x in ("gather", "leftpad", "rotary"))
    batch, capacity, new, filled = 3, 32, 2, [5, 0, 20]
    q = randn(batch, new, 4, 16)
    k, v = randn(batch, new, 2, 16), randn(batch, new, 2, 16)
    k_cache, v_cache = randn(5, capacity, 2, 16), randn(5, capacity, 2, 16)
    rows = [4, 0, 2] if gather else [0, 1, 2]
    begin = [2, 0, 7] if leftpad else [0, 0, 0]
    angles = torch.rand(capacity, 4, device=DEVICE, dtype=EXACT)

    def turn(x, positions):  # the definition, pair by pair
        x = x.clone()
        for n, position in enumerate(positions):
            for i, angle in enumerate(angles[position].tolist()):
                a, b = (2 * i, 2 * i + 1) if words.get("rotary_interleaved", True) else (i, i + 4)
                cos, sin = torch.tensor(angle).cos().item(), torch.tensor(angle).sin().item()
                x[n, :, a], x[n, :, b] = x[n, :, a] * cos - x[n, :, b] * sin, x[n, :, a] * sin + x[n, :, b] * cos
        return x

    want_out, want_k = [], k_cache.clone()
    for b in range(batch):
        places = list(range(filled[b], filled[b] + new))
        turned_q, turned_k = q[b], k[b]
        if rotary:
            turned_q = turn(q[b], places if words.get("causal") else [filled[b]] * new)
            turned_k = turn(k[b], places)
        keys = torch.cat((k_cache[rows[b], begin[b]:filled[b]], turned_k))
        values = torch.cat((v_cache[rows[b], begin[b]:filled[b]], v[b]))
        want_k[rows[b], places] = turned_k
        left, right = words.get("window_size", (-1, -1))
        seen = band(new, len(keys), left, 0 if words.get("causal") else right)
        want_out.append(plain_attention(turned_q[None], keys[None], values[None], mask=seen)[0])

    device = {"dtype": torch.int32, "device": DEVICE}
    out, lse = flash_attn.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=torch.tensor(filled, **device),
        cache_batch_idx=torch.tensor(rows, **device) if gather else None,
        cache_leftpad=torch.tensor(begin, **device) if leftpad else None,
        rotary_cos=angles.cos() if rotary else None, rotary_sin=angles.sin() if rotary else None,
        return_softmax_lse=True, **words)
    loose = torch.float32 if rotary else EXACT  # the turning itself is done in fp32
    check("out", out, as_numpy(torch.stack(want_out)), loose, 100)
    check("cache", k_cache, as_numpy(want_k), loose, 10)
    assert lse.shape == (batch, 4, new)


@pytest.mark.parametrize("per_batch", [False, True])
def test_kvcache_scores(per_batch):
    """Scale, softcap and slopes, which may differ from one batch entry to the next, reach the scores."""
    filled = [5, 17, 12]
    q, k_cache, v_cache = randn(3, 2, 4, 16), randn(3, 20, 2, 16), randn(3, 20, 2, 16)
    slopes = torch.rand(*((3, 4) if per_batch else (4,)), device=DEVICE)
    out = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=torch.tensor(filled, device=DEVICE),
                                             softmax_scale=0.7, softcap=1.5, alibi_slopes=slopes, causal=True)
    for b, keys in enumerate(filled):
        distance = (torch.arange(keys, device=DEVICE) - torch.arange(2, device=DEVICE)[:, None] - (keys - 2)).abs()
        bias = -(slopes[b] if per_batch else slopes)[:, None, None].to(EXACT) * distance
        want = plain_attention(q[b:b + 1], k_cache[b:b + 1, :keys], v_cache[b:b + 1, :keys], bias=bias, scale=0.7,
                               softcap=1.5, mask=band(2, keys, right=0))
        check(f"out {b}", out[b:b + 1], as_numpy(want), EXACT, 100)


@pytest.mark.parametrize("packed", [False, True])
def test_forward_and_backward_one_by_one(packed):
    from tessera.compat.flash_attn import flash_attn_interface as low

    kind = "varlen_" if packed else ""
    lengths = (torch.tensor([0, 12, 30], dtype=torch.int32, device=DEVICE),) * 2 + (18, 18) if packed else ()
    q, k, v = (randn(*(() if packed else (2,)), 30, 4, 16, grad=True) for _ in range(3))
    words = {"dropout_p": 0.3, "softmax_scale": 0.25, "causal": True, "window_size_left": 9, "window_size_right": -1,
             "softcap": 4.0, "alibi_slopes": torch.rand(4, device=DEVICE)}
    out, lse, signed, state = getattr(low, f"_flash_attn_{kind}forward")(q, k, v, *lengths, **words, return_softmax=True)
    assert (signed < 0).any() and state.dtype == torch.int64 and state.shape == (2,)
    dout = torch.randn_like(out)
    grads = [torch.empty_like(x) for x in (q, k, v)]
    sums = getattr(low, f"_flash_attn_{kind}backward")(dout, q, k, v, out, lse, *grads, *lengths, **words,
                                                       deterministic=True, rng_state=state)
    want = attention(q, k, v, dropout=0.3, dropout_state=state, scale=0.25, causal=True, window=(9, -1), softcap=4.0,
                     alibi=words["alibi_slopes"],
                     **({"lengths": lengths[0], "max_lengths": (18, 18)} if packed else {}))
    assert torch.equal(out, want) and sums.shape == lse.shape
    for got, expected in zip(grads, torch.autograd.grad(want, (q, k, v), dout)):
        check("gradient", got, as_numpy(expected), EXACT, 10)


def test_what_is_missing_says_so():
    x = randn(2, 8, 2, 16)
    table = torch.zeros(2, 1, dtype=torch.int32, device=DEVICE)
    with pytest.raises(NotImplementedError, match="block_table"):
        flash_attn.flash_attn_with_kvcache(x, x, x, block_table=table)
    with pytest.raises(NotImplementedError, match="block_table"):
        flash_attn.flash_attn_varlen_func(x[0], x[0], x[0], None, None, 8, 8, block_table=table)


def test_concatenated_sequences():
    hidden = randn(3, 6, 4)
    in_length = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]], device=DEVICE)
    tokens, indices, cu, longest = bert_padding.unpad_input_for_concatenated_sequences(hidden, in_length)
    assert cu.tolist() == [0, 2, 5, 8, 10, 16] and longest == 6 and len(tokens) == len(indices) == 16
    assert torch.equal(tokens, torch.cat((hidden[0, :5], hidden[1, :5], hidden[2])))


def test_signatures_are_those_of_flash_attn_2():
    common = "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs".split()
    lengths = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k".split()
    expected = {
        "flash_attn_func": ["q", "k", "v", *common],
        "flash_attn_kvpacked_func": ["q", "kv", *common],
        "flash_attn_qkvpacked_func": ["qkv", *common],
        "flash_attn_varlen_func": ["q", "k", "v", *lengths, *common, "block_table"],
        "flash_attn_varlen_kvpacked_func": ["q", "kv", *lengths, *common],
        "flash_attn_varlen_qkvpacked_func": ["qkv", "cu_seqlens", "max_seqlen", *common],
        "flash_attn_with_kvcache": "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx "
                                   "cache_leftpad block_table softmax_scale causal window_size softcap "
                                   "rotary_interleaved alibi_slopes num_splits return_softmax_lse".split(),
    }
    for name, parameters in expected.items():
        assert list(inspect.signature(getattr(flash_attn, name)).parameters) == parameters, name


@pytest.fixture
def installed():
    if "flash_attn" in sys.modules:
        pytest.skip("the real flash_attn is loaded in this process")
    tessera.compat.install()
    yield
    tessera.compat.uninstall()


def test_install(installed):
    import importlib.util

    import flash_attn as found
    from flash_attn.bert_padding import pad_input
    from flash_attn.flash_attn_interface import flash_attn_func

    assert found is flash_attn and pad_input is bert_padding.pad_input and flash_attn_func is flash_attn.flash_attn_func
    assert importlib.util.find_spec("flash_attn") is not None
    tessera.compat.install()
    tessera.compat.uninstall()
    assert "flash_attn" not in sys.modules and "flash_attn.bert_padding" not in sys.modules


def test_install_is_a_distribution(installed):
    """Code asks importlib.metadata for the version before it imports, and for the packages that there are."""
    import importlib.metadata as metadata

    for name in ("flash_attn", "flash-attn"):
        assert metadata.version(name) == flash_attn.__version__
    assert metadata.distribution("flash_attn").metadata["Name"] == "flash_attn"
    assert "flash_attn" in metadata.packages_distributions()["flash_attn"]
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("no-such-package-at-all")
    tessera.compat.uninstall()
    assert "flash_attn" not in [x.metadata["Name"] for x in metadata.distributions() if x.version == "2.8.3"]


def test_transformers_finds_it():
    """In a process of its own: transformers looks once, when it is imported. It also wants a GPU, which is pretended."""
    pytest.importorskip("transformers", reason="transformers is not installed (tools/setup python)")
    program = """if True:
        import tessera.compat
        tessera.compat.install()
        from transformers.utils import import_utils
        import_utils.is_torch_cuda_available = lambda: True
        assert import_utils.is_flash_attn_2_available()
        """
    subprocess.run([sys.executable, "-c", program], check=True)


def test_install_refuses_to_mix(monkeypatch):
    import types

    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    with pytest.raises(ImportError, match="already loaded"):
        tessera.compat.install()
