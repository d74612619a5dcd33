"""The text that a GPT learns from: a folder of files, or what every Python carries with it.

The default is the source of Python's standard library (PSF licence): some ten megabytes of code and English
documentation, found on the machine, so that no network is needed. A twentieth of the text, the same for everyone with
the same files, is held out and never trained on.
"""

import hashlib
import json
import pathlib
import sysconfig

from tessera.lab.errors import UsageError

PIECE = 8192  # characters; text is held out in pieces of about this length
HELD_OUT = 20  # every so many-th piece
LEAST = 1_000_000  # characters of the default corpus
END = "<|endoftext|>"


def standard_library():
    """The files of the standard library, without tests and without what was installed beside it."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    foreign = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
    return root, [path for path in root.rglob("*.py") if not foreign & set(path.relative_to(root).parts)]


def read_texts(folder=None):
    """The texts of a folder's files (all that are UTF-8), by name; without a folder the standard library's."""
    if folder is None:
        root, paths = standard_library()
    else:
        root = pathlib.Path(folder)
        if not root.is_dir():
            raise UsageError(f"--data '{folder}': is not a folder")
        paths = [path for path in root.rglob("*") if path.is_file()]
    texts = []
    for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix()):
        try:
            text = path.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if text.strip() and "\0" not in text:
            texts.append(text)
    size = sum(map(len, texts))
    if folder is None and size < LEAST:
        raise UsageError(f"--data: Python's standard library has {size} characters of source here; name a folder of text")
    if not texts:
        raise UsageError(f"--data '{folder}': has no files of text (UTF-8)")
    return texts


def pieces_of(text):
    """The text cut at ends of lines into pieces of about PIECE characters."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE)
        end = len(text) if end < 0 else end + 1
        yield text[start:end]
        start = end


def split(texts):
    """(training texts, held-out texts): every HELD_OUT-th piece is held out, and at least the last one."""
    pieces = [piece for text in texts for piece in pieces_of(text)]
    held = [piece for index, piece in enumerate(pieces) if index % HELD_OUT == HELD_OUT - 1]
    if held:
        return [piece for index, piece in enumerate(pieces) if index % HELD_OUT != HELD_OUT - 1], held
    text = "".join(pieces)
    cut = len(text) - max(1, len(text) // HELD_OUT)
    return [text[:cut]], [text[cut:]]


def train_tokenizer(texts, vocabulary):
    """Byte-level byte-pair encoding of at most `vocabulary` tokens, learned from the texts."""
    tokenizers = find_tokenizers()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def find_tokenizers():
    """The tokenizers library; UsageError with what to do where there is none."""
    try:
        import tokenizers
    except ImportError as error:
        raise UsageError(f"tokenizers is needed to train a GPT: pip install tokenizers ({error})") from None
    return tokenizers


class Corpus:
    """Tokens to train on and to test with, in files: prepared once for a text and a vocabulary, read ever after."""

    def __init__(self, folder):
        import numpy

        self.folder = pathlib.Path(folder)
        self.about = json.loads((self.folder / "about.json").read_text())
        self.train = numpy.load(self.folder / "train.npy", mmap_mode="r")
        self.held = numpy.load(self.folder / "held.npy", mmap_mode="r")

    def tokenizer(self):
        return find_tokenizers().Tokenizer.from_file(str(self.folder / "tokenizer.json"))


def prepare(directory, data, vocabulary, say=print):
    """The Corpus of a folder of text (None: the standard library) in `directory`, made there if it is not."""
    import numpy

    texts = read_texts(data)
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]
    folder = pathlib.Path(directory) / f"corpus-{digest}-{vocabulary}"
    if (folder / "about.json").exists():
        return Corpus(folder)
    characters = sum(map(len, texts))
    say(f"gpt: learning a vocabulary of {vocabulary} from {characters / 1e6:.1f} million characters")
    train, held = split(texts)
    tokenizer = train_tokenizer(train, vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id(END)
    counts = {}
    for name, pieces in (("train", train), ("held", held)):
        tokens = [token for encoded in tokenizer.encode_batch(pieces) for token in (*encoded.ids, end)]
        counts[name] = len(tokens)
        numpy.save(folder / f"{name}.npy", numpy.array(tokens, dtype=numpy.int32))
    about = {
        "source": "Python's standard library" if data is None else str(data), "characters": characters,
        "vocabulary": tokenizer.get_vocab_size(), "tokens": counts["train"], "held_tokens": counts["held"],
    }  # fmt: skip
    (folder / "about.json").write_text(json.dumps(about, indent=2) + "\n")  # last: it says that the rest is whole
    return Corpus(folder)
