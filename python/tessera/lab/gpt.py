"""`gpt`: a language model trained with standard, flash and block-sparse attention: loss, tokens/s, memory."""

import math
import os
import pathlib
import sys
from dataclasses import asdict, replace

from tessera.lab import worker
from tessera.lab.compare import pause
from tessera.lab.corpus import prepare
from tessera.lab.errors import Interrupted, UsageError
from tessera.lab.model import GptConfig
from tessera.lab.progress import bytes_text

# gpt2-small is the configuration of the study, which does not give the batch size. The others keep
# its shape and learn something within minutes on two cores. They read no text twice and need no
# dropout, so the curves of standard and flash attention must coincide.
PRESETS = {
    "gpt2-small": GptConfig(vocabulary=50257, width=768, depth=12, heads=12, inner=3072, sequence=512, dropout=0.1,
                            init_std=0.02, block_size=128, batch=1, accumulation=16, learning_rate=1e-4,
                            betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, warmup=1000, epochs=5.0, compiled=True),
    "small": GptConfig(vocabulary=4096, width=256, depth=4, heads=4, inner=1024, sequence=256, dropout=0.0, block_size=32,
                       batch=4, accumulation=2, learning_rate=1e-3, warmup=30, steps=300, evaluate_every=20),
    "tiny": GptConfig(vocabulary=512, width=64, depth=2, heads=2, inner=256, sequence=64, dropout=0.0, block_size=16,
                      batch=8, accumulation=2, learning_rate=3e-3, warmup=10, steps=100, evaluate_every=10),
    # An encoder of BERT-large's shape; batch and learning rate are those of its paper, on one device by accumulation.
    "bert-large": GptConfig(vocabulary=30522, width=1024, depth=24, heads=16, inner=4096, sequence=512, dropout=0.1,
                            init_std=0.02, block_size=128, batch=8, accumulation=32, learning_rate=1e-4,
                            betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, warmup=10000, epochs=40.0, compiled=True,
                            masked=0.15),
    "bert-tiny": GptConfig(vocabulary=512, width=64, depth=2, heads=2, inner=256, sequence=64, dropout=0.0, block_size=16,
                           batch=8, accumulation=2, learning_rate=3e-3, betas=(0.9, 0.999), warmup=10, steps=100,
                           evaluate_every=10, masked=0.15),
}  # fmt: skip


# The fields of GptConfig that are options: counts, numbers, and the rest.
COUNTS = ("vocabulary", "width", "depth", "heads", "inner", "sequence", "block_size", "batch", "accumulation", "warmup",
          "steps", "evaluate_every")  # fmt: skip
NUMBERS = {"epochs": (1e-6, math.inf), "dropout": (0, 0.99), "init_std": (1e-6, 1), "learning_rate": (1e-12, 1),
           "eps": (1e-30, 1), "weight_decay": (0, 1), "masked": (0, 0.99)}  # fmt: skip
OTHERS = ("betas", "compiled")


def given_fields(options):
    """The fields of the configuration that options replace."""
    every = (*COUNTS, *NUMBERS, *OTHERS)
    return {name: getattr(options, name) for name in every if getattr(options, name, None) is not None}


def settings_of(options):
    """Those that change what is learned, as text for the rows."""
    elsewhere = ("compiled", "steps", "epochs", "evaluate_every")  # a field of rows, or how long it trains
    given = {name: value for name, value in given_fields(options).items() if name not in elsewhere}
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in given.items())


def config_of(options):
    """The preset with the given options in place of its own."""
    given = given_fields(options)
    if "epochs" in given and "steps" not in given:
        given["steps"] = 0
    return replace(PRESETS[options.preset], **given)


def steps_of(config, tokens):
    """Steps of the optimiser, of at least one batch."""
    sequences = (tokens - 1) // config.sequence
    if sequences < 1:
        raise UsageError(f"--data: has {tokens} tokens, fewer than one sequence of {config.sequence}")
    return config.steps or max(1, int(config.epochs * sequences / (config.batch * config.accumulation)))


def fields_of(config, options, attention, dtype):
    """The fields of one attention's rows that are known before training."""
    head_dim = config.width // config.heads
    return {
        "algorithm": attention, "direction": "training", "dtype": dtype, "preset": options.preset,
        "batch": config.batch * config.accumulation, "q_length": config.sequence, "k_length": config.sequence,
        "q_heads": config.heads, "kv_heads": config.heads, "qk_dim": head_dim, "v_dim": head_dim,
        "embedding": config.width, "depth": config.depth, "mask": "causal" if config.causal else "full", "dropout": config.dropout,
        "optimizer": "adam", "compiled": config.compiled, "deterministic": options.deterministic,
        "seed": options.seed,
    }  # fmt: skip


def checkpoint_path(directory, preset, attention):
    return pathlib.Path(directory) / "checkpoints" / f"{preset}-{attention}.pt"


class Run:
    """One attention: its process, its rows, its line of progress."""

    def __init__(self, fields, steps, results, progress):
        self.fields, self.steps, self.results, self.progress = fields, steps, results, progress
        self.name = f"gpt {fields['preset']}, {fields['algorithm']}"
        self.typical = None

    def hear(self, kind, **said):
        """Handles a report of the process."""
        if kind == "progress":
            speed = f", {self.typical:.0f} tokens/s" if self.typical else ""
            what = f"{self.name}: step {said['step']} of {self.steps}, loss {said['loss']:.3f}{speed}"
            self.progress.show(what, said["step"] / self.steps)
        elif kind == "resumed":
            self.progress.say(f"{self.name}: continues after step {said['step']}")
        elif kind == "row":
            self.write(**said)

    def write(self, step_seconds, **measured):
        fields = self.fields | measured | {"repetitions": measured["step"], "median_ms": step_seconds * 1e3}
        self.typical = None if measured["step"] == 0 else measured["tokens_per_second"]
        if self.results.find(fields) is not None:
            return  # written after the checkpoint that this run continues
        row = self.results.write(fields)
        speed = "" if row["tokens_per_second"] is None else f", {row['tokens_per_second']:.0f} tokens/s"
        self.progress.say(
            f"{self.name}: step {row['step']} of {self.steps}: loss {row['loss']:.4f}{speed}, peak {bytes_text(row['peak_bytes'])}"
        )


def run(options, results, progress, interrupt, device):
    """Trains what the results do not have yet. Returns (None, rows that failed)."""
    config = config_of(options)
    if config.width % config.heads:
        raise UsageError(f"--heads '{config.heads}': must divide --width {config.width}")
    corpus = prepare(options.out, options.data, config.vocabulary, progress.say)
    steps = steps_of(config, corpus.about["tokens"])
    if (corpus.about["held_tokens"] - 1) // config.sequence < 1:
        raise UsageError(f"--data: the text is too short to hold out one sequence of {config.sequence} tokens")
    progress.say(
        f"gpt: {options.preset}, {corpus.about['tokens']} tokens of {corpus.about['source']}, {steps} steps of "
        f"{config.step_tokens} tokens with each of {', '.join(options.attention)}"
    )
    every = [fields_of(config, options, attention, options.dtype) for attention in options.attention]
    runs = [Run(fields, steps, results, progress) for fields in every if results.find(fields | {"step": steps}) is None]
    if interrupt.asked:
        raise Interrupted
    arguments = [
        {
            "config": asdict(config), "attention": one.fields["algorithm"], "corpus": str(corpus.folder), "device": device,
            "dtype": options.dtype, "seed": options.seed, "deterministic": options.deterministic, "steps": steps,
            "checkpoint": str(checkpoint_path(options.out, options.preset, one.fields["algorithm"])),
            "resume": options.resume, "checkpoint_every": options.checkpoint_every or config.evaluate_every,
        }
        for one in runs
    ]  # fmt: skip
    # One after the other, or step by step in turns, so that a busy machine cannot favour one.
    groups = [slice(0, len(runs))] if options.interleaved else [slice(index, index + 1) for index in range(len(runs))]
    failed = 0
    for group in groups:
        listeners = [one.hear for one in runs[group]]
        settle = pause if device == "cpu" and len(listeners) > 1 else lambda: None
        outcomes = worker.run_in_turns(train_task, arguments[group], interrupt, listeners, settle)
        for one, outcome in zip(runs[group], outcomes, strict=True):
            if outcome.status == "ok":
                continue
            reason = {"status": outcome.status, "reason": outcome.reason, "step": steps, "train_seconds": 0.0}
            results.write(one.fields | reason)
            failed += outcome.status == "failed"
            progress.say(f"{one.name}: {outcome.status.replace('_', ' ')}: {outcome.reason}")
    return None, failed


def train_task(link, **arguments):
    """Imports the loop, and with it PyTorch, in the process that trains."""
    from tessera.lab.gpt_loop import train

    return train(link, **arguments)


def generate(options, device):
    """Writes text after a prompt to standard output, from the checkpoint in `--out`."""
    import torch

    from tessera.lab.corpus import END, Corpus
    from tessera.lab.model import Gpt

    attention = options.attention[0] if options.attention_given else "flash"
    path = checkpoint_path(options.out, options.preset, attention)
    if not path.exists():
        raise UsageError(
            f"--generate: '{path}' does not exist; train it first: "
            f"python -m tessera.lab gpt --preset {options.preset} --attention {attention} --out '{options.out}'"
        )
    state = torch.load(path, map_location=device, weights_only=True)
    config = GptConfig(**state["config"])
    if not config.causal:
        raise UsageError(f"--generate: {options.preset} guesses masked words; only a GPT continues a text")
    folders = sorted(pathlib.Path(options.out).glob(f"corpus-*-{config.vocabulary}"), key=os.path.getmtime)
    tokenizer = Corpus(folders[-1]).tokenizer()
    model = Gpt(config, attention).to(device).eval()
    model.load_state_dict(state["model"])
    end = tokenizer.token_to_id(END)
    tokens = tokenizer.encode(options.generate).ids or [end]
    generator = torch.Generator(device).manual_seed(options.seed)
    known = tokenizer.get_vocab_size()
    print(options.generate, end="")
    shown = tokenizer.decode(tokens)
    for _ in range(options.tokens):
        with torch.no_grad():
            logits = model(torch.tensor([tokens[-config.sequence :]], device=device))[0, -1, :known].float()
        if options.temperature == 0:
            token = int(logits.argmax())
        else:
            keep = logits.topk(min(options.top_k, known))
            chosen = torch.multinomial((keep.values / options.temperature).softmax(0), 1, generator=generator)
            token = int(keep.indices[chosen])
        if token == end:
            break
        tokens.append(token)
        text = tokenizer.decode(tokens)
        # A character is shown once all of its bytes are generated.
        if not text.endswith("\ufffd"):
            print(text[len(shown) :], end="")
            sys.stdout.flush()
            shown = text
    print()
