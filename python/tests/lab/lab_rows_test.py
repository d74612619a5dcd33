"""Rows, directories and arguments of tessera.lab, without training anything."""

import json
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_support import lab, needs_command

from tessera.lab import cli, corpus, machine, memory
from tessera.lab.errors import UsageError
from tessera.lab.rows import FIELDS, TABLE, Results, timing_fields

STAMP = {"commit": "c", "scale": "quick", "version": "0", "machine": "M", "gpu": None, "device": "cpu", "torch": "2"}


def open_results(folder, experiment="training", resume=False, **changed):
    return Results(folder, experiment, STAMP | changed, resume)


def fields(sequence, **more):
    return {"algorithm": "flash", "q_length": sequence} | more


@needs_command
def test_rows_have_the_fields_of_tessera_bench():
    command = [*machine.tessera_command(), "bench", "--seq", "16", "--repetitions", "1", "--json", "-"]
    lines = [line for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines() if line[:1] == "{"]
    theirs = json.loads(lines[0])
    both = [field for field in TABLE if "bench" in field.get("programs", ["bench"])]
    assert list(theirs) == [field["name"] for field in both]
    kinds = {"integer": int, "number": (int, float), "text": str, "switch": bool}
    for field in both:
        value = theirs[field["name"]]
        assert value is None or isinstance(value, kinds[field["type"]]), field["name"]


def test_rows_are_kept_and_found_again(tmp_path):
    results = open_results(tmp_path)
    row = results.write(fields(128, median_ms=1.5, reason='with "quotes", and a comma'))
    assert list(row) == list(FIELDS)
    results.close()
    again = open_results(tmp_path, resume=True)
    assert again.find(fields(128)) == row and again.find(fields(256)) is None
    lines = (tmp_path / "results.csv").read_text().splitlines()
    assert len(lines) == 2 and lines[0].startswith("schema,commit") and '"with ""quotes"", and a comma"' in lines[1]
    with pytest.raises(KeyError):
        again.write(fields(128))
    with pytest.raises(KeyError, match="no_such"):
        again.write({"no_such": 1})


def test_a_loss_that_is_no_number_is_no_value(tmp_path):
    assert open_results(tmp_path).write(fields(1, loss=float("nan")))["loss"] is None


def test_a_row_cut_short_does_not_count(tmp_path):
    results = open_results(tmp_path)
    for sequence in (128, 256):
        results.write(fields(sequence))
    results.close()
    text = (tmp_path / "results.jsonl").read_text()
    for cut in (1, 10, 400):
        (tmp_path / "results.jsonl").write_text(text[:-cut])
        again = open_results(tmp_path, resume=True)
        assert len(again.rows) == 1
        again.write(fields(256))
        again.close()
        assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


def test_what_may_not_share_a_directory(tmp_path):
    results = open_results(tmp_path)
    with pytest.raises(UsageError, match="another run is writing"):
        open_results(tmp_path, resume=True)
    results.write(fields(128))
    results.close()
    with pytest.raises(UsageError, match="--resume"):
        open_results(tmp_path)
    open_results(tmp_path, "gpt").close()  # another experiment of the same run may
    with pytest.raises(UsageError, match="field 'machine' is"):
        open_results(tmp_path, resume=True, machine="another")
    row = json.loads((tmp_path / "results.jsonl").read_text()) | {"experiment": "sequence"}
    (tmp_path / "results.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(UsageError, match="another program"):
        open_results(tmp_path, resume=True)
    (tmp_path / "results.jsonl").write_text("hello\n")
    with pytest.raises(UsageError, match="line 1: is not JSON"):
        open_results(tmp_path, resume=True)


def test_times_are_summed_up():
    summary = timing_fields([0.004, 0.001, 0.002, 0.003, 0.005])
    assert summary["median_ms"] == 3 and summary["lower_quartile_ms"] == 2 and summary["repetitions"] == 5
    assert timing_fields([0.002])["upper_quartile_ms"] == 2


@pytest.mark.parametrize(
    "words, parts",
    [
        ([], ["training, gpt, peers"]),
        (["trainin"], ["'trainin'", "training"]),
        (["training", "--seq", "12x"], ["--seq", "'12x'", "512 or 4k"]),
        (["training", "--seq", "4k..512"], ["--seq", "more than"]),
        (["training", "--width", "100"], ["--width", "'100'", "multiple of 64"]),
        (["training", "--memory-budget", "lots"], ["--memory-budget", "'lots'", "16GiB"]),
        (["training", "--memory-budget", "9999TiB"], ["--memory-budget", "left"]),
        (["training", "--attention", "flahs"], ["--attention", "'flahs'", "did you mean flash?"]),
        (["training", "--optimizer", "sgd"], ["--optimizer", "'sgd'", "none, adamw"]),
        (["training", "--quick", "--full"], ["--quick", "--full"]),
        (["training", "--resume"], ["--resume", "--out"]),
        (["training", "--device", "tpu"], ["--device", "'tpu'", "cpu"]),
        (["gpt", "--preset", "huge"], ["--preset", "'huge'", "gpt2-small, small, tiny"]),
        (["gpt", "--dropout", "2"], ["--dropout", "'2'", "from 0 to"]),
        (["gpt", "--steps", "0"], ["--steps", "'0'"]),
        (["gpt", "--dtype", "int8"], ["--dtype", "'int8'", "fp32, bf16, fp16"]),
        (["gpt", "--generate", "x"], ["--generate", "--out"]),
        (["peers", "--direction", "up"], ["--direction", "'up'", "forward, backward"]),
        (["peers", "--frobnicate"], ["--frobnicate"]),
    ],
)
def test_wrong_arguments_are_named(words, parts, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert lab(*words) == 2
    said = capsys.readouterr().err
    assert all(part in said for part in parts), said
    assert not list(tmp_path.iterdir()), "nothing is made for a wrong argument"


def test_list_and_help(capsys):
    assert lab("--list") == 0
    said = capsys.readouterr().out
    for name, question in cli.QUESTIONS.items():
        assert f"{name} " in said and question in said
        with pytest.raises(SystemExit) as end:
            lab(name, "--help")
        assert end.value.code == 0


def test_counts_and_sizes():
    assert cli.numbers("--seq", "512,1k..4k") == [512, 1024, 2048, 4096]
    assert machine.parse_bytes("--memory-budget", "1.5GiB") == 3 * 2**29
    assert machine.parse_bytes("--memory-budget", "2 GB") == 2_000_000_000


def test_the_command_that_resumes():
    words = ["gpt", "--data", "my text", "--quick"]
    assert cli.resume_command(words, "d") == "python -m tessera.lab gpt --data 'my text' --quick --out d --resume"
    assert cli.resume_command(["gpt", "--out", "d", "--resume"], "d").count("--out") == 1


def test_what_counts_as_out_of_memory():
    assert memory.is_out_of_memory(MemoryError())
    assert memory.is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    assert memory.is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert not memory.is_out_of_memory(RuntimeError("shapes do not match"))
    assert not memory.is_out_of_memory(ValueError("out of memory"))


# --- text ---------------------------------------------------------------------------------------------


@given(st.lists(st.text(alphabet="ab \n", max_size=30000), min_size=1, max_size=6).filter(lambda texts: any(texts)))
def test_every_character_is_either_trained_on_or_held_out(texts):
    train, held = corpus.split(texts)
    assert sorted("".join(train) + "".join(held)) == sorted("".join(texts))
    assert sum(map(len, held)) > 0
    assert corpus.split(texts) == (train, held)


def test_every_python_has_text():
    texts = corpus.read_texts()
    assert sum(map(len, texts)) >= corpus.LEAST
    train, held = corpus.split(texts)
    share = sum(map(len, held)) / sum(map(len, texts))
    assert 0.03 < share < 0.07


def test_folders_of_text(tmp_path):
    with pytest.raises(UsageError, match="is not a folder"):
        corpus.read_texts(tmp_path / "none")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\x00\xff")
    with pytest.raises(UsageError, match="no files of text"):
        corpus.read_texts(tmp_path)
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.md").write_text("first ü")
    assert corpus.read_texts(tmp_path) == ["first ü", "second"]


@given(st.text(min_size=1))
def test_byte_level_encoding_loses_nothing(text):
    pytest.importorskip("tokenizers", reason="tokenizers is not installed (pip install tokenizers)")
    tokenizer = test_byte_level_encoding_loses_nothing.tokenizer = getattr(
        test_byte_level_encoding_loses_nothing, "tokenizer", None
    ) or corpus.train_tokenizer(["some text to learn from, some text"], 300)
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
