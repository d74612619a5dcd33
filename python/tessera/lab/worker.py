"""Work in processes of its own: what runs out of memory there, or crashes, ends one measurement and not the run.

The processes are forked from one that has loaded PyTorch and done nothing else, so that each starts in a moment, with
untouched memory and an uninitialised GPU.
"""

import contextlib
import multiprocessing
import random
import re
import signal
import time
from dataclasses import dataclass, field

from tessera.lab.compare import next_order
from tessera.lab.errors import Interrupted
from tessera.lab.memory import is_out_of_memory

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch"])

POLL_SECONDS = 0.1
STOP_SECONDS = 60  # a task that is asked to stop may take as long to save its work


class Link:
    """What a task sees of the process that started it."""

    def __init__(self, connection, takes_turns):
        self._connection, self._takes_turns = connection, takes_turns
        self._stop = False

    def turn(self):
        """Waits until it is this task's turn to work, where several work in turns. False: it is asked to stop."""
        if not self._takes_turns or self._stop:
            return not self.stopping()
        try:
            self._connection.send(("ready", None))
            self._stop = self._connection.recv() == "stop"
        except (EOFError, OSError):
            self._stop = True  # who started it is gone
        return not self._stop

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


def _child(connection, task, arguments, takes_turns):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    try:
        outcome = Outcome("ok", task(Link(connection, takes_turns), **arguments))
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


class Worker:
    """A task in a process of its own."""

    def __init__(self, task, arguments, interrupt, takes_turns=False):
        self.outcome = None
        self.waiting = False  # for its turn
        self.connection, there = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_child, args=(there, task, arguments, takes_turns))
        try:
            self.process.start()
        except (EOFError, OSError):
            self.connection.close()
            time.sleep(POLL_SECONDS)  # until a signal to the whole group has arrived here, too
            if interrupt.asked:  # it has ended the process that would have started this one
                raise Interrupted from None
            raise
        finally:
            there.close()

    def hear(self, listener):
        """Waits a moment for what the process says. `outcome` is set when it ends, `waiting` when it waits for its turn."""
        try:
            if not self.connection.poll(POLL_SECONDS):
                return
            kind, content = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(10)
            self.outcome = _ended(self.process)
            return
        if kind == "done":
            self.outcome = content
        elif kind == "ready":
            self.waiting = True
        elif listener is not None:
            listener(**content)

    def tell(self, word):
        """Says "go" or "stop"; a process that is gone hears nothing."""
        self.waiting = False
        with contextlib.suppress(OSError):
            self.connection.send(word)

    def end(self):
        """Ends the process, if it has not."""
        self.connection.close()
        if self.outcome is None:
            self.process.terminate()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Stopping:
    """Asks workers to stop when the run is interrupted, and gives them time to save their work."""

    def __init__(self, interrupt):
        self.interrupt, self.since = interrupt, None

    def check(self, workers):
        """Raises Interrupted when their time is over, or the interruption insists."""
        if self.interrupt.asked and self.since is None:
            self.since = time.monotonic()
            for worker in workers:
                worker.tell("stop")
        if self.since is not None and (self.interrupt.insisted or time.monotonic() - self.since > STOP_SECONDS):
            raise Interrupted


def run(task, arguments, interrupt, listener=None, patient=False):
    """Runs task(link, **arguments), a function of a module, in a process of its own and returns its Outcome.

    `listener` gets the fields of every Link.report. When `interrupt.asked` becomes true, a patient run asks the task to
    stop and waits for it, another one ends it at once; both raise Interrupted.
    """
    worker = Worker(task, arguments, interrupt)
    stopping = Stopping(interrupt)
    try:
        while worker.outcome is None:
            if interrupt.asked and not patient:
                raise Interrupted
            stopping.check([worker])
            worker.hear(listener)
    finally:
        worker.end()
    if interrupt.asked:  # also where the signal went to the whole group and ended the task before it was asked
        raise Interrupted
    return worker.outcome


def run_in_turns(task, arguments, interrupt, listeners, settle=lambda: None):
    """Runs task(link, **arguments[i]) in a process each and returns their Outcomes. Between two calls of Link.turn only one
    of them works: first in their order, then in rounds, each in a random order, so that what slows the machine slows all.
    `settle` is called before every turn. An interruption asks all of them to stop, waits for them and raises Interrupted.
    """
    workers, turns, last, draw = [], [], None, random.Random(0)
    stopping = Stopping(interrupt)
    try:
        for one in arguments:
            workers.append(Worker(task, one, interrupt, takes_turns=True))
        while any(worker.outcome is None for worker in workers):
            working = [index for index, worker in enumerate(workers) if worker.outcome is None]
            stopping.check([workers[index] for index in working])
            busy = [index for index in working if not workers[index].waiting]
            for index in busy:
                workers[index].hear(listeners[index])
            if busy or interrupt.asked:
                continue
            turns = [index for index in turns if index in working]
            if not turns:
                turns = working if last is None else next_order(working, [last], draw)
            settle()
            last = turns.pop(0)
            workers[last].tell("go")
    finally:
        for worker in workers:
            worker.end()
    if interrupt.asked:
        raise Interrupted
    return [worker.outcome for worker in workers]


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
