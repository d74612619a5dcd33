"""How much memory a process has, may have, and had at its peak; on the CPU and on a GPU.

On the CPU everything counts that the process holds beyond what it held when it was ready to work (PyTorch loaded,
threads started): anonymous memory, as the system sees it. On a GPU it is what PyTorch's allocator gave out, the library's
workspace included.
"""

import ctypes
import errno
import resource


def _status(*names):
    """Lines of /proc/self/status, in bytes."""
    found = {}
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in names:
                found[name] = int(value.split()[0]) * 1024
    return [found[name] for name in names]


def _held():
    """Bytes of anonymous memory, without what the C library keeps for later although it was freed."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    return _status("RssAnon")[0]


class HostMeter:
    """Memory of this process beyond what it held when the meter was made."""

    def __init__(self):
        self.before = _held()

    def limit(self, budget):
        """From now on the process may take `budget` bytes more: what goes beyond fails, as on a machine that has no
        more. The system counts what is reserved for writing (RLIMIT_DATA), which is never less than what is used."""
        (reserved,) = _status("VmData")
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (reserved + budget, hard))

    def forget_peak(self):
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")

    def used(self):
        return max(0, _held() - self.before)

    def peak(self):
        """Since forget_peak. The system keeps the peak of all pages; those of files, which are loaded once and stay,
        are taken off."""
        peak, files = _status("VmHWM", "RssFile")
        return max(0, peak - files - self.before)

    def wait(self):
        """The CPU has done what it was asked when it returns."""


class GpuMeter:
    """The same of a GPU, with PyTorch's counters."""

    def __init__(self, device):
        import torch

        self.cuda, self.device = torch.cuda, torch.device(device)
        self.cuda.init()
        self.before = self.cuda.memory_allocated(self.device)

    def limit(self, budget):
        total = self.cuda.get_device_properties(self.device).total_memory
        self.cuda.set_per_process_memory_fraction(min(1.0, budget / total), self.device)

    def forget_peak(self):
        self.cuda.reset_peak_memory_stats(self.device)

    def used(self):
        return self.cuda.memory_allocated(self.device) - self.before

    def peak(self):
        return self.cuda.max_memory_allocated(self.device) - self.before

    def wait(self):
        self.cuda.synchronize(self.device)


def meter_of(device):
    """The meter for a device. To be made when the process is ready to work, before it holds a model."""
    return HostMeter() if device == "cpu" else GpuMeter(device)


# What PyTorch, its libraries and the C++ runtime say when there is no memory; each raises an error
# of its own.
_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc", "not enough memory",
          "could not create a memory object", "failed to allocate", "bad allocation")  # fmt: skip


def is_out_of_memory(error):
    """Whether an exception says that memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _WORDS)
