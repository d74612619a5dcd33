"""The training loop of a GPT, in its own process: accumulation, warm-up and cosine, mixed precision, evaluation,
and checkpoints that continue bit for bit."""

import math
import os
import pathlib
import statistics
import time
from dataclasses import asdict

import torch

from tessera.lab.corpus import Corpus
from tessera.lab.memory import meter_of
from tessera.lab.model import NO_TARGET, Gpt, GptConfig, autocast, count_parameters

EVALUATION_SEQUENCES = 64
FORMAT = 1


def learning_rate(config, step, steps):
    """Linear warm-up to the full rate, then half a cosine down to 0."""
    warmup = min(config.warmup, steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


class Sequences:
    """Training sequences in an order that depends on the seed alone: each epoch is a permutation of all."""

    def __init__(self, tokens, config, seed, device):
        self.tokens, self.length, self.seed, self.device = tokens, config.sequence, seed, device
        self.config = config
        self.count = (len(tokens) - 1) // config.sequence
        self._epoch, self._order = None, None

    def batch(self, first, size):
        """Tokens and targets of sequences number `first` onwards."""
        picked = []
        for number in range(first, first + size):
            epoch, place = divmod(number, self.count)
            if epoch != self._epoch:
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
                self._epoch, self._order = epoch, torch.randperm(self.count, generator=generator).tolist()
            start = self._order[place] * self.length
            picked.append(torch.from_numpy(self.tokens[start : start + self.length + 1].astype("int64")))
        whole = torch.stack(picked)
        if self.config.causal:
            return whole[:, :-1].to(self.device), whole[:, 1:].to(self.device)
        masked = [self.mask_words(one[:-1], first + index) for index, one in enumerate(whole)]
        return tuple(torch.stack(parts).to(self.device) for parts in zip(*masked))

    def mask_words(self, tokens, number):
        """As BERT does it: of the words to guess 80 % are replaced by the mask's token, 10 % by any other, 10 % stay. Which
        words follows from the number of the sequence alone."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        draw = torch.rand(len(tokens), generator=generator)
        guessed = draw < max(self.config.masked, draw.min().item() + 1e-9)  # at least one
        how = torch.rand(len(tokens), generator=generator)
        words = torch.randint(self.config.vocabulary, (len(tokens),), generator=generator)
        shown = torch.where(how < 0.8, self.config.vocabulary, torch.where(how < 0.9, words, tokens))
        return torch.where(guessed, shown, tokens), torch.where(guessed, tokens, NO_TARGET)


class Trainer:
    """A model in training and everything that its next step depends on."""

    def __init__(self, config, attention, corpus, device, dtype, seed, steps):
        self.config, self.attention, self.device, self.dtype, self.seed = config, attention, device, dtype, seed
        self.steps = steps
        torch.manual_seed(seed)
        self.model = Gpt(config, attention).to(device)
        self.compute = torch.compile(self.model) if config.compiled else self.model
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=config.learning_rate, betas=config.betas, eps=config.eps,
            weight_decay=config.weight_decay,
        )  # fmt: skip
        self.scaler = torch.amp.GradScaler(device.split(":")[0], enabled=dtype == "fp16")
        self.sequences = Sequences(corpus.train, config, seed, device)
        self.held = Sequences(corpus.held, config, seed, device)
        self.step = 0
        self.train_loss = math.nan
        self.seconds = []  # of every step

    def train_step(self):
        """One step of the optimiser. Its loss is the mean over the accumulated batches."""
        config = self.config
        start = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config, self.step, self.steps)
        self.model.train()
        total = 0.0
        for part in range(config.accumulation):
            tokens, targets = self.sequences.batch((self.step * config.accumulation + part) * config.batch, config.batch)
            with autocast(self.device, self.dtype):
                loss = self.compute(tokens, targets) / config.accumulation
            self.scaler.scale(loss).backward()
            total += loss.detach()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.train_loss = float(total)  # waits for the GPU
        self.step += 1
        self.seconds.append(time.perf_counter() - start)

    @torch.no_grad()
    def evaluate(self):
        """Mean loss on the held-out sequences, always the same ones; draws no random numbers."""
        self.model.eval()
        count = min(EVALUATION_SEQUENCES, self.held.count)
        total = 0.0
        for first in range(0, count, self.config.batch):
            size = min(self.config.batch, count - first)
            with autocast(self.device, self.dtype):
                total += float(self.model(*self.held.batch(first, size))) * size
        return total / count

    def save(self, path):
        """Writes a checkpoint; the one before stays whole until this one is."""
        state = {
            "format": FORMAT, "config": asdict(self.config), "attention": self.attention, "dtype": self.dtype,
            "seed": self.seed, "steps": self.steps, "step": self.step, "train_loss": self.train_loss,
            "seconds": self.seconds, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(), "generator": torch.get_rng_state(),
            "gpu_generator": None if self.device == "cpu" else torch.cuda.get_rng_state(self.device),
        }  # fmt: skip
        part = pathlib.Path(path).with_suffix(".part")
        part.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, part)
        os.replace(part, path)

    def load(self, path):
        """Continues from a checkpoint. Raises ValueError for one of another run."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        for name in ("attention", "dtype", "seed", "steps"):
            if state[name] != getattr(self, name):
                raise ValueError(f"{path}: its {name} is {state[name]}, this run has {getattr(self, name)}")
        if GptConfig(**state["config"]) != self.config:
            raise ValueError(f"{path}: is a checkpoint of another configuration")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.step, self.train_loss, self.seconds = state["step"], state["train_loss"], state["seconds"]
        torch.set_rng_state(state["generator"].cpu())
        if state["gpu_generator"] is not None:
            torch.cuda.set_rng_state(state["gpu_generator"].cpu(), self.device)


def warm_up(attention, device, dtype):
    """Trains one small model, so that threads and libraries are loaded before memory is counted."""
    small = GptConfig(vocabulary=64, width=64, depth=1, heads=1, inner=64, sequence=64, block_size=16)
    model = Gpt(small, attention).to(device)
    tokens = torch.zeros(1, small.sequence, dtype=torch.long, device=device)
    with autocast(device, dtype):
        model(tokens, tokens).backward()
    torch.optim.Adam(model.parameters()).step()


def train(link, config, attention, corpus, device, dtype, seed, deterministic, steps, checkpoint, resume, checkpoint_every):
    """The task of the process: reports progress, and a row at every evaluation. Returns whether it was stopped."""
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products on a GPU that repeat bit for bit
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # a help for debugging that costs time
    warm_up(attention, device, dtype)
    meter = meter_of(device)
    meter.forget_peak()
    trainer = Trainer(GptConfig(**config), attention, Corpus(corpus), device, dtype, seed, steps)
    config = trainer.config
    if resume and pathlib.Path(checkpoint).exists():
        trainer.load(checkpoint)
        link.report(kind="resumed", step=trainer.step)

    def tell_row():
        loss = trainer.evaluate()
        # The first step compiles, loads and measures itself into the caches.
        typical = statistics.median(trainer.seconds[1:] or trainer.seconds or [math.nan])
        link.report(
            kind="row", step=trainer.step, loss=loss, perplexity=math.exp(min(loss, 700)), train_loss=trainer.train_loss,
            tokens=trainer.step * config.step_tokens, train_seconds=sum(trainer.seconds), step_seconds=typical,
            tokens_per_second=config.step_tokens / typical, peak_bytes=meter.peak(), memory_used_bytes=meter.used(),
            learning_rate=learning_rate(config, trainer.step, steps), parameters=count_parameters(trainer.model),
        )  # fmt: skip

    if trainer.step == 0 and link.turn():  # in turns, so that rows have the order of the attentions
        tell_row()
    while trainer.step < steps and link.turn():
        trainer.train_step()
        last = trainer.step == steps
        if trainer.step % config.evaluate_every == 0 or last:
            tell_row()
        if last or trainer.step % checkpoint_every == 0:
            trainer.save(checkpoint)
        link.report(kind="progress", step=trainer.step, loss=trainer.train_loss, seconds=trainer.seconds[-1])
    if trainer.step < steps:  # asked to stop
        trainer.save(checkpoint)
    return trainer.step < steps
