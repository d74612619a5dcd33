"""`gpt`: a tiny model end to end with each attention, resumed bit for bit, and text from what it learned."""

import math
import os
import signal
import threading
import time

import pytest
from lab_support import WORDS, lab, needs_command, page_of, rows_of, torch, write_rows
from lab_support import text_folder as text_folder  # a fixture

pytest.importorskip("tokenizers", reason="tokenizers is not installed (pip install tokenizers)")

from tessera.lab.gpt import PRESETS, checkpoint_path, steps_of  # noqa: E402
from tessera.lab.gpt_loop import Sequences, learning_rate  # noqa: E402
from tessera.lab.model import NO_TARGET, Gpt, block_mask_of, count_parameters  # noqa: E402

STEPS = 12


def command(text_folder, out, *more):
    return ("gpt", "--device", "cpu", "--preset", "tiny", "--data", text_folder, "--steps", STEPS, "--evaluate-every", 4,
            "--out", out, *more)  # fmt: skip


@pytest.fixture(scope="module")
def trained(text_folder, tmp_path_factory):
    """All three attentions, without dropout, whose random numbers would differ."""
    out = tmp_path_factory.mktemp("gpt") / "out"
    assert PRESETS["tiny"].dropout == 0 and lab(*command(text_folder, out)) == 0
    return out


def losses(directory, attention):
    return {row["step"]: row["loss"] for row in rows_of(directory, algorithm=attention)}


def test_every_attention_learns(trained):
    for attention in ("standard", "flash", "block_sparse"):
        curve = losses(trained, attention)
        assert list(curve) == [0, 4, 8, 12]
        assert curve[12] < curve[0] - 1
    for row in rows_of(trained):
        assert row["preset"] == "tiny" and row["peak_bytes"] > 0 and row["tokens"] == row["step"] * 1024
        assert row["step"] == 0 or (row["tokens_per_second"] > 0 and row["train_seconds"] > 0)


def test_an_encoder_learns_masked_words(text_folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert lab("gpt", "--device", "cpu", "--preset", "bert-tiny", "--data", text_folder, "--steps", STEPS, "--evaluate-every", 4,
               "--attention", "standard,flash", "--out", out) == 0  # fmt: skip
    standard, flash = losses(out, "standard"), losses(out, "flash")
    assert flash[12] < flash[0] - 1 and all(abs(standard[step] - flash[step]) <= 1e-2 for step in standard)
    for row in rows_of(out):
        assert row["mask"] == "full" and row["perplexity"] == pytest.approx(math.exp(row["loss"]))
    assert lab("gpt", "--device", "cpu", "--preset", "bert-tiny", "--out", out, "--generate", "x") == 2
    assert "guesses masked words" in capsys.readouterr().err


def test_every_field_is_an_option(text_folder, tmp_path, capsys):
    words = ("--width", 32, "--depth", 1, "--heads", 4, "--inner", 48, "--vocabulary", 300, "--block-size", 8, "--init-std", 0.05,
             "--learning-rate", 0.002, "--betas", "0.8,0.9", "--eps", 1e-7, "--weight-decay", 0.1)  # fmt: skip
    out = tmp_path / "out"
    assert lab(*command(text_folder, out, *words, "--attention", "flash")) == 0
    row = rows_of(out)[-1]
    assert (row["embedding"], row["depth"], row["q_heads"], row["qk_dim"]) == (32, 1, 4, 8)
    config = torch.load(checkpoint_path(out, "tiny", "flash"), weights_only=True)["config"]
    assert (config["inner"], config["vocabulary"], config["block_size"], config["init_std"]) == (48, 300, 8, 0.05)
    assert (config["learning_rate"], tuple(config["betas"]), config["eps"], config["weight_decay"]) == (0.002, (0.8, 0.9), 1e-7, 0.1)
    assert "--learning-rate 0.002" in row["settings"] and "--betas (0.8, 0.9)" in row["settings"]
    assert lab(*command(text_folder, out, "--attention", "flash", "--resume")) == 2
    assert "give the same options" in capsys.readouterr().err
    assert lab(*command(text_folder, tmp_path / "none", "--heads", 3)) == 2
    assert "--heads '3': must divide --width 64" in capsys.readouterr().err


def test_words_are_masked_as_in_bert():
    config = PRESETS["bert-tiny"]
    import numpy

    sequences = Sequences(numpy.arange(config.sequence * 200 + 1) % 512, config, 5, "cpu")
    tokens, targets = sequences.batch(0, 200)
    plain = Sequences(sequences.tokens, PRESETS["tiny"], 5, "cpu").batch(0, 200)[0]
    guessed = targets != NO_TARGET
    assert guessed.any(1).all() and guessed.float().mean() == pytest.approx(0.15, abs=0.01)
    assert torch.equal(targets[guessed], plain[guessed]) and torch.equal(tokens[~guessed], plain[~guessed])
    assert (tokens[guessed] == config.vocabulary).float().mean() == pytest.approx(0.8, abs=0.03)
    assert (tokens[guessed] == plain[guessed]).float().mean() == pytest.approx(0.1, abs=0.03)
    again = Sequences(sequences.tokens, config, 5, "cpu").batch(7, 1)
    assert torch.equal(again[0][0], tokens[7]) and torch.equal(again[1][0], targets[7]), "it depends on the number alone"


def test_bert_large_has_its_shape():
    config = PRESETS["bert-large"]
    assert (config.width, config.depth, config.heads, config.inner, config.sequence) == (1024, 24, 16, 4096, 512)
    assert not config.causal and config.masked == 0.15
    with torch.device("meta"):
        assert 330e6 < count_parameters(Gpt(config, "flash")) < 340e6


def test_standard_and_flash_learn_the_same(trained):
    standard, flash = losses(trained, "standard"), losses(trained, "flash")
    assert all(abs(standard[step] - flash[step]) <= 1e-2 for step in standard)
    assert losses(trained, "block_sparse") != flash, "it sees less"


def test_mixed_precision_learns_the_same(text_folder, tmp_path, trained):
    assert lab(*command(text_folder, tmp_path / "out", "--dtype", "bf16", "--attention", "standard,flash")) == 0
    standard, flash = losses(tmp_path / "out", "standard"), losses(tmp_path / "out", "flash")
    assert all(abs(standard[step] - flash[step]) <= 1e-2 for step in standard)
    assert flash[12] == pytest.approx(losses(trained, "flash")[12], abs=0.1) and flash[12] != losses(trained, "flash")[12]


def test_an_interrupted_run_goes_on_bit_for_bit(text_folder, tmp_path, capsys):
    """With dropout: parameters, moments, random numbers and the order of the text are all as if nothing had happened."""
    words = ("--attention", "flash", "--evaluate-every", 5, "--dropout", 0.1)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert lab(*command(text_folder, whole, *words)) == 0

    def interrupt_within():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.01)
            if (broken / "results.jsonl").exists() and len(rows_of(broken)) >= 1:
                break
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt_within)
    thread.start()
    code = lab(*command(text_folder, broken, *words, "--checkpoint-every", 1000))
    thread.join()
    assert code == 130 and "--resume" in capsys.readouterr().err
    path = checkpoint_path(broken, "tiny", "flash")
    assert 0 < torch.load(path, weights_only=True)["step"] < STEPS
    assert lab(*command(text_folder, broken, *words, "--resume")) == 0
    assert losses(broken, "flash") == losses(whole, "flash")
    one, other = (torch.load(checkpoint_path(out, "tiny", "flash"), weights_only=True) for out in (whole, broken))
    assert one["step"] == other["step"] == STEPS
    assert torch.equal(one["generator"], other["generator"])
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
    for name in ("exp_avg", "exp_avg_sq"):
        states = (state["optimizer"]["state"].values() for state in (one, other))
        assert all(torch.equal(a[name], b[name]) for a, b in zip(*states, strict=True))
    before = rows_of(broken)
    assert lab(*command(text_folder, broken, *words, "--resume")) == 0
    assert rows_of(broken) == before, "nothing is left to do"


def test_a_checkpoint_of_another_run_is_refused(text_folder, trained, tmp_path):
    out = tmp_path / "out"
    assert lab(*command(text_folder, out, "--attention", "standard", "--steps", 2)) == 0
    assert lab(*command(text_folder, out, "--attention", "standard", "--steps", 3, "--resume")) == 1
    (row,) = rows_of(out, status="failed")
    assert "its steps is 2, this run has 3" in row["reason"]


def test_a_trained_model_writes(trained, capsys):
    def written(*more):
        assert lab("gpt", "--device", "cpu", "--preset", "tiny", "--out", trained, "--generate", "flash block", "--tokens", 40, *more) == 0
        return capsys.readouterr().out

    text = written("--attention", "standard")
    assert text.startswith("flash block") and len(text) > 30
    assert sum(text.count(word) for word in WORDS) > 5, "words of the text it learned from"
    assert written("--attention", "standard") == text and written("--attention", "standard", "--seed", 1) != text
    assert written("--temperature", 0) == written("--temperature", 0, "--seed", 3)


def test_what_was_not_trained_cannot_write(tmp_path, capsys):
    assert lab("gpt", "--device", "cpu", "--preset", "tiny", "--out", tmp_path, "--generate", "x") == 2
    assert "train it first" in capsys.readouterr().err


@needs_command
def test_the_report_reads_what_the_rows_say(trained, tmp_path):
    said = page_of(trained)
    ends = [losses(trained, attention)[12] for attention in ("standard", "flash", "block_sparse")]
    assert f"At step 12 the loss is {ends[0]:.3f} with standard, {ends[1]:.3f} with flash and {ends[2]:.3f} with block_sparse." in said
    assert "Compared with standard, the loss differs by at most" in said and "The loss falls to" in said
    rows = rows_of(trained)
    for row in rows:
        if row["algorithm"] == "flash":
            row["tokens_per_second"] = None if row["step"] == 0 else 3e6
            row["loss"] += 0.5
    said = page_of(write_rows(tmp_path / "changed", rows))
    assert f"{ends[1] + 0.5:.3f} with flash" in said and "3000000 tokens/s" in said
    rows = [row for row in rows if row["algorithm"] != "flash" or row["step"] == 12]
    for row in rows:
        if row["algorithm"] == "flash":
            row |= {"status": "out_of_memory", "reason": "none left", "loss": None}
    assert "flash runs out of memory at step 12." in page_of(write_rows(tmp_path / "oom", rows))


# --- parts --------------------------------------------------------------------------------------------


def test_the_preset_is_that_of_the_study():
    config = PRESETS["gpt2-small"]
    assert (config.vocabulary, config.width, config.depth, config.heads, config.inner) == (50257, 768, 12, 12, 3072)
    assert (config.sequence, config.dropout, config.init_std, config.block_size) == (512, 0.1, 0.02, 128)
    assert (config.learning_rate, config.betas, config.eps, config.weight_decay) == (1e-4, (0.9, 0.95), 1e-8, 0)
    assert (config.warmup, config.accumulation, config.epochs, config.compiled) == (1000, 16, 5, True)
    with torch.device("meta"):
        model = Gpt(config, "flash")
    assert count_parameters(model) == 124_046_592  # GPT-2's 124 439 808, less 512 x 768 for the shorter sequence


def test_the_learning_rate_rises_and_falls():
    config = PRESETS["gpt2-small"]
    rates = [learning_rate(config, step, 3000) for step in range(3000)]
    assert rates[0] == pytest.approx(1e-7) and rates[999] == pytest.approx(1e-4) == max(rates)
    assert rates[2000] == pytest.approx(5e-5) and rates[2999] < 1e-9
    assert all(a <= b for a, b in zip(rates[:999], rates[1:1000])) and all(a >= b for a, b in zip(rates[1000:], rates[1001:]))


def test_an_epoch_is_a_permutation():
    config = PRESETS["tiny"]
    import numpy

    tokens = numpy.arange(config.sequence * 7 + 1)
    sequences = Sequences(tokens, config, 5, "cpu")
    first, targets = sequences.batch(0, 7)
    assert sorted(first.flatten().tolist()) == list(range(config.sequence * 7)) and torch.equal(first + 1, targets)
    second = sequences.batch(7, 7)[0]
    assert sorted(second.flatten().tolist()) == sorted(first.flatten().tolist()) and not torch.equal(first, second)
    again = Sequences(tokens, config, 5, "cpu")
    assert torch.equal(again.batch(5, 4)[0], torch.cat([first[5:], second[:2]])), "from anywhere, across epochs"


def test_steps_follow_from_epochs():
    assert steps_of(PRESETS["gpt2-small"], 512 * 16 * 100 + 1) == 500
    assert steps_of(PRESETS["tiny"], 10_000) == PRESETS["tiny"].steps


def test_block_sparse_attention_sees_less_and_itself():
    mask = block_mask_of(512, 64)
    assert 0 < mask.density < 1
    assert all(block in mask.row(block) for block in range(mask.q_blocks))
