"""Work in processes of its own: what runs out of memory there, or crashes, ends one measurement and not the run.

The processes are forked from one that has loaded PyTorch and done nothing else, so that each starts in a moment, with
untouched memory and an uninitialised GPU.
"""

import contextlib
import multiprocessing
import re
import signal
import time
from dataclasses import dataclass, field

from tessera.lab.errors import Interrupted
from tessera.lab.memory import is_out_of_memory

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch"])

POLL_SECONDS = 0.1
STOP_SECONDS = 60  # a task that is asked to stop may take as long to save its work


class Link:
    """What a task sees of the process that started it."""

    def __init__(self, connection):
        self._connection = connection
        self._stop = False

    def report(self, **fields):
        """Sends something the task has to say; the listener of run() gets it."""
        try:
            self._connection.send(("said", fields))
        except OSError:
            self._stop = True  # nobody is left to hear it

    def stopping(self):
        """True when the task should save its work and return: it was asked to, or who started it is gone."""
        self._stop = self._stop or self._connection.poll()
        return self._stop


@dataclass
class Outcome:
    """How a task ended: "ok" with what it returned, "out_of_memory" or "failed" with the reason."""

    status: str
    value: object = None
    reason: str = ""
    said: list = field(default_factory=list)


def _reason(error):
    """The first line of an exception with something in it, short enough for a table."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    text = re.sub(r"^\[enforce fail at [^]]*\] [^.]*\. ", "", text)  # the place in PyTorch's sources
    return text if len(text) <= 300 else text[:297] + "..."


def _child(connection, task, arguments):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    try:
        outcome = Outcome("ok", task(Link(connection), **arguments))
    except Exception as error:
        if is_out_of_memory(error):
            outcome = Outcome("out_of_memory", reason=_reason(error))
        else:
            outcome = Outcome("failed", reason=f"{type(error).__name__}: {_reason(error)}")
    with contextlib.suppress(OSError):
        connection.send(("done", outcome))


def _ended(process):
    """The outcome of a process that ended without a word."""
    code = process.exitcode
    if code == -signal.SIGKILL:
        return Outcome("out_of_memory", reason="killed by the system, which does so when memory runs out")
    if code is not None and code < 0:
        return Outcome("failed", reason=f"the process ended by signal {signal.Signals(-code).name}")
    return Outcome("failed", reason=f"the process ended with exit code {code}")


def run(task, arguments, interrupt, listener=None, patient=False):
    """Runs task(link, **arguments), a function of a module, in a process of its own and returns its Outcome.

    `listener` gets the fields of every Link.report. When `interrupt.asked` becomes true, a patient run asks the task to
    stop and waits for it, another one ends it at once; both raise Interrupted.
    """
    here, there = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_child, args=(there, task, arguments))
    try:
        process.start()
    except (EOFError, OSError):
        here.close()
        time.sleep(POLL_SECONDS)  # until a signal to the whole group has arrived here, too
        if interrupt.asked:  # it has ended the process that would have started this one
            raise Interrupted from None
        raise
    finally:
        there.close()
    asked_at = None
    outcome = None
    try:
        while outcome is None:
            if interrupt.asked and asked_at is None:
                asked_at = time.monotonic()
                if not patient:
                    raise Interrupted
                here.send("stop")
            if asked_at is not None and (interrupt.insisted or time.monotonic() - asked_at > STOP_SECONDS):
                raise Interrupted
            try:
                if not here.poll(POLL_SECONDS):
                    continue
                kind, content = here.recv()
            except (EOFError, ConnectionResetError):
                process.join(10)
                outcome = _ended(process)
                continue
            if kind == "done":
                outcome = content
            elif listener is not None:
                listener(**content)
    finally:
        here.close()
        if outcome is None:
            process.terminate()
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()
    if interrupt.asked:  # also where the signal went to the whole group and ended the task before it was asked
        raise Interrupted
    return outcome


class Interrupt:
    """Ctrl-C as a flag: asked once, insisted when pressed again. A context manager that restores what was before."""

    def __init__(self):
        self.asked = self.insisted = False
        self._before = {}

    def _handle(self, _signal, _frame):
        self.insisted = self.asked
        self.asked = True

    def __enter__(self):
        for one in (signal.SIGINT, signal.SIGTERM):
            self._before[one] = signal.signal(one, self._handle)
        return self

    def __exit__(self, *_):
        for one, handler in self._before.items():
            signal.signal(one, handler)
