"""Every architecture of transformers as a tiny model with random weights: configurations are shrunk by the names of their
fields, models and inputs follow from transformers' auto classes."""

from __future__ import annotations

import inspect
import itertools
import re
import warnings

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

LENGTH = 21  # of a sequence: more than two of the windows and chunks below
WINDOW = 8
VOCABULARY = 128
LARGEST = 32_000_000  # parameters; what is larger has been missed by the rules below

# What a field becomes. The first pattern that matches its whole name counts; None leaves it alone.
RULES = [
    (r".*(drop|mask_time_prob|mask_feature_prob|jitter|noise).*", lambda value: 0.0 if isinstance(value, float) else None),
    (r"(pad|bos|eos)_token_id", None),
    (r".*vocab_size(_per_layer_input)?|vocab_size_.*|.*vocabulary.*", VOCABULARY),
    (r"(n_layer|n_layers|depth|.*num_layers|(.*_)?num_hidden_layers|encoder_layers|decoder_layers|num_(en|de)coder_layers)", 2),
    (r"num_heads|n_head|n_heads|(en|de)coder_attention_heads|attention_heads|(.*_)?num_attention_heads", 4),
    (r"d_model|n_embd|(.*_)?hidden_size|embed_dim|embedding_size|embedding_dim|dim|hidden_dim|(en|de)coder_hidden_dim", 64),
    (r"(.*_)?intermediate_size|(.*_)?ffn_dim|d_ff|ffn_hidden_size|(.*_)?mlp_dim|n_inner|feed_forward_.*size|dim_ff", 96),
    (r"head_dim|.*_head_dim|d_kv|dim_head|attention_head_size|v_head_dim", 16),
    (r"qk_head_dim", 32),
    (r"kv_lora_rank|q_lora_rank|o_lora_rank", 32),
    (r"num_experts|num_local_experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok|moe_topk|moe_k|num_selected_experts", 2),
    (r"n_group|topk_group|n_groups", 1),
    (r"first_k_dense_replace", 1),
    (r"sliding_window|attention_chunk_size|local_attention|window_size", WINDOW),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|seq_length|max_source_positions|max_target_positions|"
     r"num_position_embeddings", 128),
    (r"image_size", lambda value: [32] * len(value) if isinstance(value, (list, tuple)) else 32),
    (r"patch_size", 8),
    (r"num_mel_bins", 16),
    (r"num_frames", 4),
    (r"conv_dim", lambda value: [32] * len(value)),
    (r"num_conv_pos_embeddings", 16),
    (r"num_conv_pos_embedding_groups", 4),
    (r"projection_dim", 64),
    (r"index_topk", 8),
    (r"codebook_size|num_embeddings", 64),
]
FILLED = (r"(qk_)?head_dim|num_key_value_heads|n_routed_experts|num_experts_per_tok|moe_intermediate_size|vocab_size|"
          r"sliding_window")
TYPES = (int, float, list, tuple)


def shrunk_field(name: str, value):
    for pattern, wanted in RULES:
        if re.fullmatch(pattern, name):
            new = wanted(value) if callable(wanted) else wanted
            if new is None or isinstance(value, (list, tuple)) != isinstance(new, list):
                return value
            return new
    if name.endswith(("_token_id", "_token_index")) and isinstance(value, int) and value >= VOCABULARY:
        return 100 + sum(name.encode()) % 28  # most are different
    if re.fullmatch(r".*num_key_value_heads|num_kv_heads|n_head_kv|kv_heads", name):
        return 2
    return value


def field(config, name: str, default=None):
    """A field, or the default, also where a configuration refuses to say, since layers differ."""
    try:
        return getattr(config, name, default)
    except Exception:
        return default


def shrunk(config, overrides: dict, fill: bool, layer_types: bool):
    """The configuration with small numbers, made anew, so that what follows from them follows. fill: fields without a
    value get one; layer_types: every kind of layer is there once."""
    words, plain = {}, config.to_dict()
    for name, value in plain.items():
        sub = field(config, name)
        if isinstance(sub, transformers.PreTrainedConfig):
            words[name] = shrunk(sub, overrides.get(name, {}), fill, layer_types).to_dict()
        elif value is None and fill and re.fullmatch(FILLED, name):
            words[name] = shrunk_field(name, 0)
        elif isinstance(value, TYPES) and not isinstance(value, bool):
            new = shrunk_field(name, value)
            if new != value:
                words[name] = new
    if field(config, "num_attention_heads") == field(config, "num_key_value_heads") and "num_key_value_heads" in words:
        words["num_key_value_heads"] = words.get("num_attention_heads", 4)
    types = field(config, "layer_types")
    if types and layer_types and not isinstance(getattr(type(config), "layer_types", None), property):
        kinds = list(dict.fromkeys(types))
        kinds = kinds * (1 if len(kinds) > 1 else 2)
        words["layer_types"], words["num_hidden_layers"] = kinds, len(kinds)
    rope = field(config, "rope_parameters")
    if isinstance(rope, dict) and "rope_type" in rope:  # models that split it by axes have defaults for large heads
        size = words.get("head_dim", field(config, "head_dim")) or 16
        half = int(size * field(config, "partial_rotary_factor", rope.get("partial_rotary_factor", 1.0))) // 2
        words["rope_parameters"] = {**rope, "mrope_section": [half - 2 * (half * 3 // 8), half * 3 // 8, half * 3 // 8]}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    words.update({name: number for name, number in tokens.items() if name in plain})
    if "decoder_start_token_id" in plain:
        words["decoder_start_token_id"] = 1
    words.update({name: value for name, value in overrides.items() if not isinstance(value, dict) or name not in words})
    return type(config)(**words)


# What the names do not say, by the model type.
OVERRIDES: dict[str, dict] = {
    "autoformer": {"prediction_length": 4},
    "bailing_hybrid": {"num_attention_heads": 4, "head_dim": 16},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "deepseek_v2": {"num_experts_per_tok": 2, "moe_intermediate_size": 96},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "embedding_gemma2_text": {"per_layer_config": {"1": {"head_dim": 32, "num_key_value_heads": 1}}},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16},
    "flaubert": {"emb_dim": 64},
    "gemma3n_text": {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4,
                     "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16, "laurel_rank": 8,
                     "activation_sparsity_pattern": [0.0] * 4},
    "gemma4_text": {"per_layer_config": {"1": {"head_dim": 32}}, "hidden_size_per_layer_input": 16},
    "gemma4_unified_text": {"per_layer_config": {"1": {"head_dim": 32}}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16,
                         "mamba_chunk_size": 16},
    "informer": {"prediction_length": 4},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "kimi_linear": {"num_experts_per_token": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "longcat_flash": {"qk_head_dim": 32, "head_dim": 16},
    "mobilebert": {"intra_bottleneck_size": 48, "true_hidden_size": 48},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "sam3_lite_text_text_model": {"num_hidden_layers": 3},
    "time_series_transformer": {"prediction_length": 4},
    "xlm": {"emb_dim": 64},
    "xmod": {"languages": ["en"], "default_language": "en"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
for whole, part in (("gemma4", "gemma4_text"), ("gemma4_unified", "gemma4_unified_text"), ("gemma3n", "gemma3n_text"),
                    ("embedding_gemma2", "embedding_gemma2_text")):
    OVERRIDES[whole] = {"text_config": OVERRIDES[part]}
# Architectures that the sweep leaves out.
LEFT_OUT: dict[str, str] = {}

TASKS = {
    "CausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "Seq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "SpeechSeq2Seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "ImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "Model": "MODEL_MAPPING_NAMES",
}


def architectures() -> list[tuple[str, str]]:
    """(task, model type) of everything that transformers knows: the bare model only where nothing else has the type."""
    pairs, known = [], set()
    for task, table in TASKS.items():
        for kind in getattr(modeling_auto, table):
            if task != "Model" or kind not in known:
                pairs.append((task, kind))
            known.add(kind)
    return pairs


class Skipped(Exception):
    """Why an architecture is not tested."""


def build(task: str, kind: str):
    """(class, configuration) of the tiny model."""
    if kind in LEFT_OUT:
        raise Skipped(LEFT_OUT[kind])
    name = getattr(modeling_auto, TASKS[task])[kind]
    model = getattr(transformers, name if isinstance(name, str) else name[0], None)
    if model is None or kind not in CONFIG_MAPPING_NAMES:
        raise Skipped("transformers lists it without a class or a configuration")
    errors = []
    for fill, layer_types, part in itertools.product((False, True), (True, False), (False, True)):
        try:
            with warnings.catch_warnings(), torch.device("meta"):
                warnings.simplefilter("ignore")
                config = shrunk(CONFIG_MAPPING[kind](), OVERRIDES.get(kind, {}), fill, layer_types)
                config = config.get_text_config() if part else config
                size = sum(p.numel() for p in model(with_attention(config, "eager")).parameters())
        except Exception as error:
            errors.append(error)
        else:
            if size > LARGEST:
                raise Skipped(f"the tiny configuration still has {size} parameters")
            return model, config
    text = str(errors[0]).strip().splitlines() or [""]
    raise Skipped(f"no tiny configuration: {type(errors[0]).__name__}: {text[-1].strip()[:150]}") from errors[0]


def with_attention(config, name: str):
    config = type(config).from_dict(config.to_dict())
    config._attn_implementation = name
    return config


@torch.no_grad()
def randomize(model: torch.nn.Module) -> None:
    """Weights of a size that makes attention matter: as initialized, most models hardly look at it."""
    generator = torch.Generator().manual_seed(5)
    for name, parameter in sorted(model.named_parameters()):
        if parameter.dim() >= 2 and parameter.numel() and parameter.is_floating_point() and name.endswith("weight"):
            fan_in = parameter[0].numel()
            embedding = "emb" in name or "wte" in name or "shared" in name
            parameter.normal_(0.0, 1.0 if embedding and parameter.dim() == 2 else fan_in**-0.5, generator=generator)


def candidates(model, task: str, batch: int = 2):
    """What the model might be called with, of random content; most take the first."""
    generator = torch.Generator().manual_seed(7)
    config, main = model.config, model.main_input_name
    parameters = inspect.signature(model.forward).parameters

    def tokens():
        return torch.randint(3, 100, (batch, LENGTH), generator=generator)

    def randn(*shape):
        return torch.randn(*shape, generator=generator)

    def known(name, default):
        places = (config, *(field(config, key) for key in config.sub_configs))
        return next((value for place in places if (value := field(place, name)) is not None), default)

    size = known("image_size", 32)
    size = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    channels, frames, mels = known("num_channels", 3), known("num_frames", 4), known("num_mel_bins", 16)
    text = {"input_ids": tokens(), "attention_mask": torch.ones(batch, LENGTH, dtype=torch.long)}
    if task == "Model":
        text["input_ids"][:, -1] = 2  # where many pool; without it they take the first token, padding or not
    image = {"pixel_values": randn(batch, channels, *size)}
    options = []
    if "grid_thw" in parameters:  # patches of two images, as a list
        patch = known("patch_size", 8)
        width = known("in_channels", channels) * known("temporal_patch_size", 1) * patch * patch
        name = "hidden_states" if "hidden_states" in parameters else "pixel_values"
        options.append({name: randn(24, width), "grid_thw": torch.tensor([[1, 4, 4], [1, 2, 4]])})
        options.append({name: randn(24, 3 * patch * patch), "grid_thw": torch.tensor([[1, 4, 4], [1, 2, 4]])})
    if "input_ids" in parameters or main == "input_ids":
        options.append(text)
        options.append({**text, **image})
        options.append({**image, "input_ids": text["input_ids"]})
    options += [image, {"pixel_values": randn(batch, frames, channels, *size)},
                {"pixel_values_videos": randn(batch, frames, channels, *size)}]
    options.append({"input_values": randn(batch, 4000)})
    for width in dict.fromkeys((mels, known("feature_projection_input_dim", 160), 80, 128)):
        for shape in ((batch, 256, width), (batch, width, 256)):
            options.append({"input_features": randn(*shape)})
            options.append({"input_features": options[-1]["input_features"],
                            "input_features_mask": torch.ones(batch, 256, dtype=torch.long)})
    options.append({"inputs_embeds": randn(batch, LENGTH, known("hidden_size", 64))})
    options.append({"past_values": randn(batch, known("context_length", 32), known("num_input_channels", 1))})
    if task not in ("CausalLM", "MaskedLM", "ImageTextToText"):
        options.sort(key=lambda words: main not in words)
    for words in options:
        if all(name in parameters for name in words):
            if config.is_encoder_decoder and "decoder_input_ids" in parameters:
                words = {**words, "decoder_input_ids": tokens()}
            yield words
