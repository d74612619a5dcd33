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
        given = words["bias"] if words["visible"] is None else words["visible"]
        assert given is None if padding == "none" else given.shape == (3, 1, 1, 33)
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


@pytest.mark.parametrize("name", ["cache", "indices", "block_indices"])
def test_arguments_that_are_refused(name):
    x = torch.randn(1, 2, 4, 8, device=DEVICE)
    with pytest.raises(NotImplementedError, match=f'{name}: .* use "sdpa"'):
        tessera.huggingface.attention_forward(torch.nn.Module(), x, x, x, None, **{name: object()})


def test_large_heads_are_refused():
    x = torch.randn(1, 2, 4, 512, device=DEVICE)
    with pytest.raises(NotImplementedError, match='head_dim: 512 .* use "sdpa"'):
        tessera.huggingface.attention_forward(torch.nn.Module(), x, x, x, None)


@pytest.mark.parametrize(("name", "reason"), [
    ("Bloom", "declares no support"), ("GPTNeoXJapanese", "declares no support"), ("GPTJ", "do not call"),
    ("Falcon", "do not call")])
def test_models_that_are_refused(name, reason):
    kind = getattr(transformers, name + "ForCausalLM")
    words = {"vocab_size": 50, "hidden_size": 32, "n_embd": 32, "n_head": 2, "num_attention_heads": 2, "n_layer": 1,
             "num_hidden_layers": 1, "rotary_dim": 8, "intermediate_size": 32}
    text = f'{name}ForCausalLM does not support attn_implementation="tessera": .*{reason}.*"eager"'
    with pytest.raises(ValueError, match=text):
        kind(kind.config_class(**words, attn_implementation="tessera"))
    kind(kind.config_class(**words, attn_implementation="eager"))  # others are left alone


def test_models_that_are_refused_when_changed():
    kind = transformers.BigBirdPegasusForCausalLM
    model = kind(kind.config_class(vocab_size=50, d_model=32, decoder_layers=1, encoder_layers=1, decoder_attention_heads=2,
                                   encoder_attention_heads=2, decoder_ffn_dim=32, encoder_ffn_dim=32))
    with pytest.raises(ValueError, match="does not support attn_implementation"):
        model.set_attn_implementation("tessera")


def test_changed_after_construction(calls):
    eager, _ = pair(mistral)
    ids = tokens(2, 21)
    with torch.no_grad():
        want = eager(input_ids=ids).logits
        eager.set_attn_implementation("tessera")
        check("logits", eager(input_ids=ids).logits, as_numpy(want), DTYPE, 200)
    assert calls


# What transformers says of a pass: queries, keys, the offset of each, local size, whether it is a decoder's.
PASSES = {
    "prefill": (7, 7, 0, 0, None, True), "chunk on a cache": (3, 9, 6, 0, None, True), "one token": (1, 9, 8, 0, None, True),
    "window": (7, 7, 0, 0, 3, True), "window of a full cache": (2, 4, 8, 6, 3, True),
    "one token in a window": (1, 3, 8, 6, 3, True), "static cache": (3, 9, 2, 0, None, True),
    "encoder": (7, 7, 0, 0, None, False), "cross": (3, 8, 0, 0, None, False),
    "both sides": (9, 9, 0, 0, 3, False), "both sides, narrow": (3, 3, 0, 0, 5, False),
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", PASSES)
def test_mask_is_that_of_eager(name, padded):
    """To attention_forward as a description and to everybody else as numbers, also after someone has written to it."""
    from transformers import masking_utils as masks
    queries, keys, q_offset, kv_offset, local, causal = PASSES[name]
    padding = torch.ones(2, kv_offset + keys, dtype=torch.bool, device=DEVICE)
    if padded:
        padding[1, :kv_offset + 2] = False
    function = {(True, False): masks.causal_mask_function, (False, False): masks.bidirectional_mask_function}.get(
        (causal, local is not None)) or (masks.sliding_window_causal_mask_function if causal else
                                         masks.sliding_window_bidirectional_mask_function)(local)
    words = {"batch_size": 2, "q_length": queries, "kv_length": keys, "q_offset": q_offset, "kv_offset": kv_offset,
             "local_size": local, "mask_function": function, "attention_mask": padding, "allow_is_causal_skip": causal,
             "allow_is_bidirectional_skip": not causal, "dtype": DTYPE, "device": DEVICE}
    config = transformers.MistralConfig(sliding_window=local)
    want, got = masks.eager_mask(**words, config=config), tessera.huggingface.mask(**words, config=config)
    assert (want is None) == (got is None)
    if want is None:
        return
    described = isinstance(got, tessera.huggingface.Mask)
    assert described == (name != "static cache")
    assert got.shape == want.shape and got.dtype == want.dtype and isinstance(got, torch.Tensor)
    q, k = torch.randn(2, 4, queries, 8, device=DEVICE), torch.randn(2, 4, keys, 8, device=DEVICE)
    module = torch.nn.Module()

    def outputs(mask):
        weights = torch.softmax(q @ k.mT / 8**0.5 + mask, -1)
        return (weights @ k).transpose(1, 2)

    seen = (want == 0).any(-1)[:, 0]
    out, _ = tessera.huggingface.attention_forward(module, q, k, k, got)
    check("described", out[seen], as_numpy(outputs(want)[seen]), DTYPE, 50)
    moved = got.to(torch.float64 if DEVICE == "cpu" else DTYPE)
    assert not described or isinstance(moved, tessera.huggingface.Mask)
    assert not described or got.built is None
    check("added", outputs(got)[seen], as_numpy(outputs(want)[seen]), DTYPE, 50)
    got[..., keys - 1] = torch.finfo(DTYPE).min
    want[..., keys - 1] = torch.finfo(DTYPE).min
    seen = (want == 0).any(-1)[:, 0]
    out, _ = tessera.huggingface.attention_forward(module, q, k, k, got)
    check("written", out[seen], as_numpy(outputs(want)[seen]), DTYPE, 50)


@pytest.mark.parametrize("how", ["layers", "checkpoint", "compiled checkpoint"])
def test_masks_cross_boundaries(how):
    """Compiled layers get their mask from outside; checkpoints hand it on."""
    eager, ours = pair(mistral)
    ids, mask = tokens(2, 21), padding_of("left", 2, 21)
    want = eager(input_ids=ids, attention_mask=mask, use_cache=False).logits[mask.bool()]
    run = ours
    if how == "layers":
        for layer in ours.model.layers:
            layer.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    else:
        ours.train()
        ours.gradient_checkpointing_enable({"use_reentrant": False})
        run = torch.compile(ours, fullgraph=True, dynamic=True, backend="aot_eager") if how == "compiled checkpoint" else ours
    got = run(input_ids=ids, attention_mask=mask, use_cache=False).logits[mask.bool()]
    check("logits", got, as_numpy(want), DTYPE, 200)
    got.square().mean().backward()
    want.square().mean().backward()
    name = "model.layers.0.self_attn.q_proj.weight"
    check("gradient", ours.get_parameter(name).grad, as_numpy(eager.get_parameter(name).grad), DTYPE, 2000)


def test_a_missing_mask_hides_nothing_unless_said():
    q = torch.randn(1, 2, 5, 8, device=DEVICE)
    module = torch.nn.Module()
    module.is_causal = False
    full = (torch.softmax(q @ q.mT / 8**0.5, -1) @ q).transpose(1, 2)
    check("full", tessera.huggingface.attention_forward(module, q, q, q, None)[0], as_numpy(full), DTYPE, 50)
    row = torch.zeros(1, 1, 1, 5, device=DEVICE)
    module.is_causal = True  # a mask of one row is the whole mask, too
    check("row", tessera.huggingface.attention_forward(module, q, q, q, row)[0], as_numpy(full), DTYPE, 50)
