"""The machine of a run: its name, the commit, the device and the free memory."""

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess

from tessera.lab.errors import UsageError

UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


def machine_text():
    """The machine in the words of `tessera lab`: "AMD EPYC 9B45, 2 CPUs, Linux 6.1.0 x86_64"."""
    known = command_info().get("machine")
    if known:
        return known
    system = os.uname()
    return f"{system.machine} CPU, {len(os.sched_getaffinity(0))} CPUs, {system.sysname} {system.release} {system.machine}"


def version_text():
    """The version of the package; "unknown" for sources that were not built."""
    import tessera

    return getattr(tessera, "__version__", "unknown")


@functools.cache
def commit_text():
    """The commit that the library was built from, or these sources belong to, "-dirty" appended when files had changed;
    "unknown" where neither can be told."""
    built = command_info().get("commit")
    if built and built != "unknown":
        return built
    source = pathlib.Path(__file__).resolve()

    def git(*words):
        return subprocess.run(
            ["git", "-C", str(source.parent), *words], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", str(source))  # fails for a package installed inside some other repository
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def find_torch():
    """The torch module. Raises UsageError, which says what to install, where it is missing."""
    try:
        import torch
    except ImportError as error:
        raise UsageError(f"this experiment needs PyTorch: pip install torch ({error})") from None
    return torch


def parse_device(text):
    """The requested device as "cpu" or "cuda:0"; None stands for a GPU if there is one, else the CPU."""
    torch = find_torch()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    here = ["cpu"] + [f"cuda:{index}" for index in range(gpus)]
    if text is None:
        return here[min(1, gpus)]
    device = "cuda:0" if text == "cuda" else text
    if device not in here:
        raise UsageError(f"--device '{text}': not usable here; this machine and this PyTorch have {', '.join(here)}")
    return device


def surroundings(device):
    """Driver, CUDA, governor and usable CPUs, as `tessera info` tells them; empty where that command is missing."""
    known = command_info().get("surroundings", {}).get(device.split(":")[0], {})
    return {name: known.get(name) for name in ("driver", "cuda", "governor", "usable_cpus")}


def gpu_name(device):
    """The name of a GPU, None for the CPU."""
    return None if device == "cpu" else find_torch().cuda.get_device_name(device)


def parse_bytes(option, text):
    """ "15GiB" as a number. Raises UsageError unless it is a positive size."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]*)\s*", text)
    try:
        size = float(match[1]) * UNITS[match[2]]
    except (TypeError, KeyError, ValueError):
        size = 0
    if size < 1:
        raise UsageError(f"{option} '{text}': must be a size such as 512MiB or 16GiB")
    return int(size)


def available_memory(device):
    """Free memory in bytes: of the GPU, or of the machine within the limit of its control group."""
    if device != "cpu":
        return find_torch().cuda.mem_get_info(device)[0]
    with open("/proc/meminfo", encoding="ascii") as lines:
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    group = pathlib.Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        available = min(available, max(0, limit - used))
    except (OSError, ValueError):  # no control group, or "max": no limit
        pass
    return available


@functools.cache
def command_info():
    """The output of `tessera info --json`; empty where the command is missing."""
    command = tessera_command()
    try:
        done = subprocess.run([*command, "info", "--json"], capture_output=True, text=True, timeout=60, check=True)
        return json.loads(done.stdout)
    except (TypeError, OSError, ValueError, subprocess.SubprocessError):
        return {}


def tessera_command():
    """The words that start the `tessera` command: TESSERA_BINARY, the package's, or one on the PATH; None without one."""
    from tessera import _command, _core

    named = os.environ.get("TESSERA_BINARY")
    if not named and hasattr(_core, "command"):
        return _command.invocation()
    found = named or shutil.which("tessera")
    return [found] if found else None
