"""`python -m tessera.lab`: its arguments, and the code that all experiments share."""

import argparse
import difflib
import pathlib
import re
import subprocess
import sys
import textwrap
import time
from datetime import datetime, timezone

from tessera.lab import machine
from tessera.lab.errors import Interrupted, UsageError
from tessera.lab.progress import Progress, bytes_text, clock_text, counted
from tessera.lab.rows import EXPERIMENTS, Results
from tessera.lab.worker import Interrupt

PROGRAM = "python -m tessera.lab"
INTERRUPTED = 130
QUESTIONS = {
    "training": "How much time and memory does flash attention save in training, and which models fit with it?",
    "gpt": "Does a language model learn equally well with each attention, and how fast?",
    "peers": "How fast is Tessera, compared with each backend of PyTorch's scaled_dot_product_attention?",
    "studies": "How fast is PyTorch at the points of a run of tessera lab, and how much memory does it take?",
}
DTYPES = ("fp32", "bf16", "fp16")


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of exiting, and accepts no abbreviated options."""

    def __init__(self, **arguments):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **arguments)

    def error(self, message):
        raise UsageError(f"{self.prog.removeprefix(PROGRAM).strip()}: {message}".removeprefix(": "))


def number(option, text):
    """Parse a count such as "512" or "4k"; raise UsageError otherwise."""
    match = re.fullmatch(r"(\d+)(k?)", text.strip())
    value = int(match[1]) * (1024 if match and match[2] else 1) if match else 0
    if value < 1:
        raise UsageError(f"{option} '{text}': must be a positive count such as 512 or 4k")
    return value


def numbers(option, text):
    """Parse a list of counts: "512,1k", or "512..4k" for doubling."""
    values = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        value, end = number(option, first), number(option, last) if dots else number(option, first)
        if end < value:
            raise UsageError(f"{option} '{text}': {first} is more than {last}")
        while value <= end:
            values.append(value)
            value *= 2
    return values


def names(option, text, allowed):
    """Parse a comma-separated list of names out of `allowed`, without repetitions."""
    found = []
    for name in text.split(","):
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, 1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"{option} '{name}': {meant}allowed are {', '.join(allowed)}")
        if name not in found:
            found.append(name)
    return found


def betas(option, text):
    """Parse the two decay rates of Adam: "0.9,0.95"."""
    parts = text.split(",")
    if len(parts) != 2:
        raise UsageError(f"{option} '{text}': must be two numbers such as 0.9,0.95")
    return tuple(real(option, part, 0, 0.999999) for part in parts)


def whole(option, text, least=0):
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise UsageError(f"{option} '{text}': must be a whole number of at least {least}")
    return value


def real(option, text, least=0.0, most=float("inf")):
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        limit = f"at least {least:g}" if most == float("inf") else f"from {least:g} to {most:g}"
        raise UsageError(f"{option} '{text}': must be a number, {limit}")
    return value


# Options that take a word: name, metavar, default, help.
COMMON = (
    ("--device", "DEVICE", None, "cpu, cuda or cuda:N [a GPU if there is one]"),
    ("--dtype", "TYPE", None, "fp32, or bf16 or fp16 for mixed precision [fp32 on a CPU, else bf16]"),
    ("--seed", "N", "0", "seed of parameters, data, dropout and the order of calls [0]"),
    ("--out", "DIR", None, "directory for the results [lab-results/DATE]"),
)
TRAINING = (
    ("--seq", "LIST", None, "sequence lengths [by size]"),
    ("--width", "LIST", None, "widths of the model, multiples of 64 [by size]"),
    ("--depth", "LIST", None, "layers [by size]"),
    ("--heads", "LIST", None, "heads [as many as have 64 channels]"),
    ("--batch", "N", "1", "sequences in a step [1]"),
    ("--attention", "LIST", "standard,flash", "also sdpa, PyTorch's own [standard,flash]"),
    ("--optimizer", "NAME", "none", "none (as in the study) or adamw [none]"),
)


def add_words(parser, options):
    for name, metavar, default, text in options:
        parser.add_argument(name, metavar=metavar, default=default, help=text)


def add_common(parser, sizes):
    parser.add_argument("--quick", action="store_true", help="small sizes: about two minutes on two cores")
    if sizes:
        parser.add_argument("--full", action="store_true", help="the sizes of the studies, for a GPU [on a GPU]")
    add_words(parser, COMMON)
    parser.add_argument("--resume", action="store_true", help="continue the run in --out; finished measurements are kept")


def add_training(commands):
    parser = commands.add_parser(
        "training", help=QUESTIONS["training"],
        description="Trains transformers of many sizes, each in its own process under a memory budget.",
        epilog="LIST is counts such as 512,1k, or 512..4k for doubling. Models that do not fit become out-of-memory rows.",
    )  # fmt: skip
    add_common(parser, sizes=True)
    add_words(parser, TRAINING)
    parser.add_argument("--study", action="store_true",
                        help="the grid of the study; on a CPU its lengths and widths divided by 8")  # fmt: skip
    parser.add_argument("--causal", action="store_true", help="each position attends to itself and earlier ones [no]")
    parser.add_argument("--memory-budget", metavar="SIZE", help="memory for a model and its training; 22GiB imitates an L4 [by size]")


def add_gpt(commands):
    parser = commands.add_parser(
        "gpt", help=QUESTIONS["gpt"],
        description="Trains a GPT on text with each attention, from the same parameters and on the same text in the same order.",
        epilog="Ctrl-C writes a checkpoint; --resume continues it bit for bit.",
    )  # fmt: skip
    add_common(parser, sizes=False)
    parser.add_argument("--preset", metavar="NAME", help="gpt2-small, small, tiny, or masked words: bert-large, bert-tiny [small on a CPU; with --quick tiny]")
    parser.add_argument("--attention", metavar="LIST", help="also sdpa, PyTorch's own [standard,flash,block_sparse]")
    parser.add_argument("--data", metavar="DIR", help="folder of text files [Python's standard library]")
    for option, what in (
        ("vocabulary", "tokens"), ("width", "channels"), ("depth", "layers"), ("heads", "heads"),
        ("inner", "channels of the network in a layer"), ("block-size", "tokens in a block of block-sparse attention"),
        ("batch", "sequences at a time"), ("accumulation", "batches in a step"), ("sequence", "tokens in a sequence"),
        ("steps", "steps of the optimiser"), ("warmup", "steps of rising learning rate"),
        ("evaluate-every", "steps between evaluations"),
    ):  # fmt: skip
        parser.add_argument(f"--{option}", metavar="N", help=f"{what} [of the preset]")
    for option, what in (
        ("epochs", "instead of --steps: times through the text"), ("dropout", "probability"),
        ("init-std", "standard deviation of initial weights"), ("learning-rate", "highest learning rate"),
        ("eps", "Adam's epsilon"), ("weight-decay", "Adam's weight decay"), ("masked", "share of words that an encoder guesses"),
    ):  # fmt: skip
        parser.add_argument(f"--{option}", metavar="X", help=f"{what} [of the preset]")
    parser.add_argument("--betas", metavar="X,X", help="Adam's decay rates [of the preset]")
    parser.add_argument("--checkpoint-every", metavar="N", help="steps between checkpoints [as evaluations]")
    parser.add_argument("--compile", dest="compiled", action=argparse.BooleanOptionalAction,
                        help="torch.compile the model [of the preset, on a GPU]")  # fmt: skip
    parser.add_argument("--deterministic", action=argparse.BooleanOptionalAction, default=True,
                        help="use deterministic algorithms, which are slower on a GPU [yes]")  # fmt: skip
    parser.add_argument("--interleaved", action=argparse.BooleanOptionalAction, default=True,
                        help="train the attentions step by step in turns, all in memory at once [yes]")  # fmt: skip
    parser.add_argument("--generate", metavar="PROMPT", help="continue PROMPT with the checkpoint in --out, without training")
    parser.add_argument("--tokens", metavar="N", default="100", help="tokens to generate [100]")
    parser.add_argument("--temperature", metavar="X", default="0.8", help="0 takes the likeliest token [0.8]")
    parser.add_argument("--top-k", metavar="N", default="50", help="tokens to choose from [50]")


def add_peers(commands):
    parser = commands.add_parser(
        "peers", help=QUESTIONS["peers"],
        description="Calls Tessera and PyTorch's backends interleaved on the same tensors and compares the medians.",
    )  # fmt: skip
    add_common(parser, sizes=True)
    parser.add_argument("--seq", metavar="LIST", help="sequence lengths [by size]")
    parser.add_argument("--heads", metavar="N", help="heads [by size]")
    parser.add_argument("--dim", metavar="LIST", help="head dimensions [by size]")
    parser.add_argument("--batch", metavar="N", help="batch entries [by size]")
    parser.add_argument("--direction", metavar="LIST", default="forward,backward", help="forward, backward or both [forward,backward]")
    parser.add_argument("--mask", metavar="LIST", default="full,causal", help="full, causal or both [full,causal]")


def add_studies(commands):
    parser = commands.add_parser(
        "studies", help=QUESTIONS["studies"],
        description="Times PyTorch's unfused attention and scaled_dot_product_attention at every point of RUN, a directory of "
        "tessera lab. Draws both into one page.",
    )  # fmt: skip
    parser.add_argument("run", metavar="RUN", help="the directory that tessera lab wrote, on this machine")
    parser.add_argument("--methods", metavar="LIST", default="pytorch,sdpa", help="pytorch, sdpa or both [pytorch,sdpa]")
    parser.add_argument("--out", metavar="DIR", help="directory for the results [RUN/pytorch]")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out; finished measurements are kept")


def make_parser():
    parser = Parser(
        prog=PROGRAM,
        description="The training studies of Tessera's lab, with PyTorch.",
        epilog="NAME --help lists the options of an experiment. tessera report draws the rows of several directories.",
    )
    parser.add_argument("--list", action="store_true", help="list the questions of the experiments and exit")
    commands = parser.add_subparsers(dest="experiment", metavar="experiment")
    for add in (add_training, add_gpt, add_peers, add_studies):
        add(commands)
    return parser


def read_common(options):
    """Reads device, scale and type, on which the default sizes depend."""
    options.device = machine.parse_device(options.device)
    on_cpu = options.device == "cpu"
    full = getattr(options, "full", False)
    if options.quick and full:
        raise UsageError("--quick and --full cannot be combined; give one of them")
    options.scale = "quick" if options.quick else "full" if full or not on_cpu else "default"
    options.dtype = names("--dtype", options.dtype, DTYPES)[0] if options.dtype else "fp32" if on_cpu else "bf16"
    options.seed = whole("--seed", options.seed)


def read_training(options):
    from tessera.lab import training

    if options.study and (options.quick or options.full):
        raise UsageError("--study has its own sizes; leave --quick and --full out")
    options.study_factor = None
    if options.study:
        options.scale, options.study_factor = "study", training.CPU_FACTOR if options.device == "cpu" else 1
    sizes = training.STUDY[options.study_factor] if options.study else training.SIZES[options.scale]
    options.heads = numbers("--heads", options.heads) if options.heads else []
    for name in ("seq", "width", "depth"):
        setattr(options, name, numbers(f"--{name}", getattr(options, name) or sizes[name]))
    options.batch = number("--batch", options.batch)
    options.attention = names("--attention", options.attention, training.ATTENTIONS)
    options.optimizer = names("--optimizer", options.optimizer, training.OPTIMIZERS)[0]
    options.memory_budget = machine.parse_bytes("--memory-budget", options.memory_budget or sizes["memory_budget"])
    training.check(options)
    return training


def read_gpt(options):
    from tessera.lab import gpt
    from tessera.lab.model import ATTENTIONS

    on_cpu = options.device == "cpu"
    usual = "tiny" if options.quick else "small" if on_cpu else "gpt2-small"
    options.preset = names("--preset", options.preset or usual, list(gpt.PRESETS))[0]
    options.attention_given = options.attention is not None
    options.attention = names("--attention", options.attention or "standard,flash,block_sparse", ATTENTIONS)
    read = {name: number for name in (*gpt.COUNTS, "checkpoint_every")}
    for name, limits in gpt.NUMBERS.items():
        read[name] = lambda option, text, limits=limits: real(option, text, *limits)
    read["betas"] = betas
    for name, reader in read.items():
        text = getattr(options, name)
        setattr(options, name, None if text is None else reader(f"--{name.replace('_', '-')}", text))
    if options.compiled is None and on_cpu:
        options.compiled = False
    options.tokens = number("--tokens", options.tokens)
    options.top_k = number("--top-k", options.top_k)
    options.temperature = real("--temperature", options.temperature)
    if options.generate is not None and options.out is None:
        raise UsageError("--generate: needs --out DIR, where the checkpoint is")
    return gpt


def read_peers(options):
    from tessera.lab import peers

    sizes = peers.SIZES[options.scale]
    options.seq = numbers("--seq", options.seq or sizes["seq"])
    options.dim = numbers("--dim", options.dim or sizes["dim"])
    options.heads = number("--heads", options.heads or str(sizes["heads"]))
    options.batch = number("--batch", options.batch or str(sizes["batch"]))
    options.direction = names("--direction", options.direction, ("forward", "backward"))
    options.mask = names("--mask", options.mask, ("full", "causal"))
    return peers


def read_studies(options):
    from tessera.lab import studies

    options.methods = names("--methods", options.methods, studies.METHODS)
    options.rows = studies.read_run(options.run)
    options.device = machine.parse_device(options.rows[0]["device"])
    options.scale = options.rows[0]["scale"]
    options.out = options.out or f"{options.run.rstrip('/')}/pytorch"
    return studies


def directory_of(options):
    """--out, or a new directory, so that no run overwrites another."""
    if options.resume and options.out is not None and not pathlib.Path(options.out, "results.jsonl").exists():
        raise UsageError(f"--resume: '{options.out}' has no results.jsonl to continue; leave --resume out to start there")
    if options.out is not None:
        return options.out
    if options.resume:
        raise UsageError("--resume: needs --out DIR, the directory to continue")
    return "lab-results/" + datetime.now(timezone.utc).strftime("%Y-%m-%dT%H-%M-%SZ")


def stamp_of(options):
    """The fields that all rows of a run share."""
    import torch

    return {
        "commit": machine.commit_text(), "scale": options.scale, "version": machine.version_text(),
        "machine": machine.machine_text(), "gpu": machine.gpu_name(options.device), "device": options.device,
        "study_factor": getattr(options, "study_factor", None), "settings": settings_text(options), "torch": torch.__version__,
        **machine.surroundings(options.device), "libraries": f"PyTorch {torch.__version__}",
    }  # fmt: skip


def settings_text(options):
    """The options that change what is measured and are no field of every row's question."""
    if options.experiment == "gpt":
        from tessera.lab.gpt import settings_of

        return settings_of(options)
    return f"--memory-budget {bytes_text(options.memory_budget)}" if getattr(options, "memory_budget", None) else ""


def write_report(directory, say, beside=None):
    """Draws the page with `tessera report`, also of a run `beside`; says so where that command is missing."""
    command = machine.tessera_command()
    if command is None:
        say(f"the `tessera` command is missing, so there is no page; where it is installed, run `tessera report {directory}`")
        return
    runs = [directory] if beside is None else [beside, directory]
    done = subprocess.run([*command, "report", *runs, "--out", f"{directory}/report.html"], capture_output=True, text=True)
    say((done.stdout if done.returncode == 0 else f"the page could not be written: {done.stderr}").strip())


def resume_command(arguments, directory):
    """The command that continues a run."""
    words = [word for word in arguments if word != "--resume"]
    if not any(word == "--out" or word.startswith("--out=") for word in words) and "studies" not in words:
        words += ["--out", directory]
    quoted = [f"'{word}'" if re.search(r"[^\w./,:=-]", word) else word for word in words]
    return f"{PROGRAM} {' '.join(quoted)} --resume"


def run(options, arguments):
    """Runs one experiment; the exit code."""
    machine.find_torch()
    if options.experiment != "studies":
        read_common(options)
    readers = {"training": read_training, "gpt": read_gpt, "peers": read_peers, "studies": read_studies}
    experiment = readers[options.experiment](options)
    if getattr(options, "generate", None) is not None:
        experiment.generate(options, options.device)
        return 0
    options.out = directory_of(options)
    stamp = experiment.stamp_of(options.rows, options.device) if options.experiment == "studies" else stamp_of(options)
    progress, start = Progress(), time.monotonic()
    results = Results(options.out, options.experiment, stamp, options.resume)
    where = stamp["gpu"] + " in " + stamp["machine"] if stamp["gpu"] else stamp["machine"]
    progress.say(f"tessera {stamp['version']} ({stamp['commit']}), PyTorch {stamp['torch']} on {where}")
    progress.say(f"{options.experiment}, {options.scale} sizes, into {options.out}\n")
    stopped, failed = False, 0
    before = len(results.rows)
    try:
        with Interrupt() as interrupt:
            _, failed = experiment.run(options, results, progress, interrupt, options.device)
    except Interrupted:
        stopped = True
    finally:
        progress.clear()
        results.close()
    new = len(results.rows) - before
    spent = clock_text(time.monotonic() - start)
    progress.say(f"\n{counted(new, 'row')} measured in {spent}; {results.path} and results.csv hold {counted(len(results.rows), 'row')}")
    if results.rows:
        write_report(options.out, progress.say, getattr(options, "run", None))
    if stopped:
        print(f"interrupted; the finished rows are kept; continue with\n  {resume_command(arguments, options.out)}", file=sys.stderr)
        return INTERRUPTED
    if failed:
        print(f"{PROGRAM}: {counted(failed, 'row')} failed; see the reasons in {results.path}", file=sys.stderr)
    return 1 if failed else 0


def list_text():
    text = ""
    for name, question in QUESTIONS.items():
        text += f"{name:10}{question}\n"
    return text + textwrap.dedent(f"""
        {PROGRAM} NAME --help lists the options of one of them. tessera lab --list lists the
        experiments that need no PyTorch.
        """)


def main(arguments=None):
    """The command. Returns the exit code: 0, 1 when rows failed, 2 for wrong arguments, 130 after Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        options = make_parser().parse_args(arguments)
        if options.list:
            print(list_text(), end="")
            return 0
        if options.experiment is None:
            raise UsageError(f"needs an experiment, one of {', '.join(EXPERIMENTS)}; --list describes them")
        return run(options, arguments)
    except UsageError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
