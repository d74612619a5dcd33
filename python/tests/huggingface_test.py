"""attn_implementation="tessera" against "eager" on small models with random weights."""

import copy

import pytest
from torch_support import DEVICE, as_numpy, check, torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed (tools/setup python)")

import tessera.huggingface  # noqa: E402, I001

DTYPE = torch.float32
SIZES = {"vocab_size": 101, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {**SIZES, "intermediate_size": 96, "max_position_embeddings": 128, "attention_dropout": 0.0,
           "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def gpt2():
    return transformers.GPT2LMHeadModel, transformers.GPT2Config(
        vocab_size=101, n_embd=64, n_layer=2, n_head=4, n_positions=128, attn_pdrop=0.0, embd_pdrop=0.0,
        resid_pdrop=0.0, bos_token_id=1, eos_token_id=2)


def llama():
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(**DECODER, num_key_value_heads=2)


def mistral():
    return transformers.MistralForCausalLM, transformers.MistralConfig(
        **DECODER, num_key_value_heads=2, head_dim=16, sliding_window=8)


def gemma2():
    return transformers.Gemma2ForCausalLM, transformers.Gemma2Config(
        **DECODER, num_key_value_heads=2, head_dim=16, sliding_window=8, attn_logit_softcapping=5.0,
        query_pre_attn_scalar=16)


def bert():
    return transformers.BertForMaskedLM, transformers.BertConfig(
        **SIZES, intermediate_size=96, max_position_embeddings=128, attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0)


DECODERS = [gpt2, llama, mistral, gemma2]


def pair(make):
    """The same model twice, with eager attention and with ours; whether ours runs is asserted by `calls`."""
    kind, config = make()
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    eager = kind(config).to(DEVICE, DTYPE).eval()
    own = copy.deepcopy(config)
    own._attn_implementation = "tessera"
    ours = kind(own).to(DEVICE, DTYPE).eval()
    ours.load_state_dict(eager.state_dict())
    assert ours.config._attn_implementation == "tessera"
    return eager, ours


@pytest.fixture
def calls(monkeypatch):
    """What attention was called with."""
    seen = []
    inner = tessera.huggingface.attention

    def spy(*args, **words):
        seen.append(words)
        return inner(*args, **words)

    monkeypatch.setattr(tessera.huggingface, "attention", spy)
    return seen


def tokens(batch, length):
    return torch.randint(3, 101, (batch, length), device=DEVICE)


def padding_of(kind, batch, length):
    """(batch, length): the first sequence is whole, the others lack tokens on one side."""
    if kind == "none":
        return None
    mask = torch.ones(batch, length, dtype=torch.long, device=DEVICE)
    for row in range(1, batch):
        cut = 3 + 2 * row
        mask[row, :cut] = kind == "right"
        mask[row, length - cut:] = kind == "left"
    return mask


def loss_of(model, ids, mask):
    logits = model(input_ids=ids, attention_mask=mask).logits
    return logits if mask is None else logits[mask.bool()]


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("make", [*DECODERS, bert], ids=lambda make: make.__name__)
def test_outputs_and_gradients(make, padding, calls):
    models = pair(make)
    ids, mask = tokens(3, 33), padding_of(padding, 3, 33)
    results = []
    for model in models:
        out = loss_of(model, ids, mask)
        torch.nn.functional.log_softmax(out, -1).square().mean().backward()
        results.append((out, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    check("logits", results[1][0], as_numpy(results[0][0]), DTYPE, 200)
    for name, want in results[0][1].items():
        check(name, results[1][1][name], as_numpy(want), DTYPE, 2000, floor=1e-4)
    assert len(calls) == 2
    for words in calls:  # never a dense mask
        assert words["bias"] is None if padding == "none" else words["bias"].shape == (3, 1, 1, 33)
        assert words["causal"] == (make is not bert)
    if make in (mistral, gemma2):
        assert (7, 0) in [words["window"] for words in calls]
    if make is gemma2:
        assert all(words["softcap"] == 5.0 for words in calls)


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("make", DECODERS, ids=lambda make: make.__name__)
def test_prefill_and_decode(make, padding, calls):
    models = pair(make)
    ids, mask = tokens(2, 20), padding_of(padding, 2, 20)
    prompts = [12, 13, 14, 17]  # prefill, two single tokens, then a chunk on top of the cache
    results = []
    with torch.no_grad():
        for model in models:
            cache, outs = transformers.DynamicCache(config=model.config), []
            for begin, end in zip([0, *prompts], [*prompts, 20]):
                out = model(input_ids=ids[:, begin:end], past_key_values=cache, use_cache=True,
                            attention_mask=None if mask is None else mask[:, :end])
                outs.append(out.logits)
            results.append(torch.cat(outs, 1))
    seen = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    check("logits", results[1][seen], as_numpy(results[0][seen]), DTYPE, 200)
    assert calls


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("make", DECODERS, ids=lambda make: make.__name__)
def test_generate(make, cache):
    eager, ours = pair(make)
    ids, mask = tokens(2, 11), padding_of("left", 2, 11)
    words = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0,
             "cache_implementation": cache, "disable_compile": True}
    assert torch.equal(eager.generate(ids, **words), ours.generate(ids, **words))


def test_a_mask_of_ones_own():
    """Prefix attention as a 4-dimensional mask: it is complete, and causality is not added to it."""
    eager, ours = pair(llama)
    ids = tokens(2, 16)
    seen = torch.ones(16, 16, dtype=torch.bool, device=DEVICE).tril()
    seen[:, :6] = True
    bias = torch.zeros(2, 1, 16, 16, device=DEVICE, dtype=DTYPE).masked_fill(~seen, torch.finfo(DTYPE).min)
    with torch.no_grad():
        want = eager(input_ids=ids, attention_mask=bias).logits
        check("float", ours(input_ids=ids, attention_mask=bias).logits, as_numpy(want), DTYPE, 200)
        got = ours(input_ids=ids, attention_mask=seen.expand(2, 1, 16, 16)).logits
        check("bool", got, as_numpy(want), DTYPE, 200)


def test_packed_by_position_ids():
    eager, ours = pair(llama)
    ids = tokens(1, 18)
    positions = torch.cat((torch.arange(7), torch.arange(11)))[None].to(DEVICE)
    with torch.no_grad():
        want = eager(input_ids=ids, position_ids=positions, use_cache=False).logits
        got = ours(input_ids=ids, position_ids=positions, use_cache=False).logits
    check("logits", got, as_numpy(want), DTYPE, 200)


def test_sinks():
    sinks = torch.randn(4, device=DEVICE, dtype=DTYPE, requires_grad=True)
    q, k, v = (torch.randn(2, 4, 9, 16, device=DEVICE, dtype=DTYPE, requires_grad=True) for _ in range(3))
    module = torch.nn.Module()
    module.is_causal = False
    got, _ = tessera.huggingface.attention_forward(module, q, k, v, None, s_aux=sinks)
    scores = torch.cat((q @ k.mT / 4, sinks.reshape(1, 4, 1, 1).expand(2, 4, 9, 1)), -1)
    want = (torch.softmax(scores, -1)[..., :-1] @ v).transpose(1, 2)
    check("out", got, as_numpy(want), DTYPE, 50)
    grad = torch.randn_like(want)
    for a, b in zip(*(torch.autograd.grad(x, (q, k, v, sinks), grad) for x in (got, want))):
        check("gradient", a, as_numpy(b), DTYPE, 100)


def test_dropout_in_training_only():
    kind, config = llama()
    config.attention_dropout = 0.5
    config._attn_implementation = "tessera"
    torch.manual_seed(0)
    model = kind(config).to(DEVICE, DTYPE)
    ids = tokens(2, 24)

    def logits():
        torch.manual_seed(4)
        return model(input_ids=ids).logits

    model.train()
    first = logits()
    assert torch.equal(first, logits())
    assert not torch.equal(first, model(input_ids=ids).logits)
    model.eval()
    assert torch.equal(logits(), model(input_ids=ids).logits)


def test_compile():
    eager, ours = pair(llama)
    compiled = torch.compile(ours, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.no_grad():
        for padding in ("none", "left"):
            ids, mask = tokens(2, 21), padding_of(padding, 2, 21)
            want, got = eager(input_ids=ids, attention_mask=mask, use_cache=False), \
                compiled(input_ids=ids, attention_mask=mask, use_cache=False)
            seen = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
            check("logits", got.logits[seen], as_numpy(want.logits[seen]), DTYPE, 200)


def test_paged_caches_are_refused():
    x = torch.randn(1, 2, 4, 8, device=DEVICE)
    with pytest.raises(NotImplementedError, match="cache"):
        tessera.huggingface.attention_forward(torch.nn.Module(), x, x, x, None, cache=object())
