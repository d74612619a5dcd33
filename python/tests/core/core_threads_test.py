"""Threads, processes and Ctrl-C: the GIL is free while the library works, and Python stays in charge."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tessera


def inputs(length=64, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((1, length, 2, 32)).astype(np.float32) for _ in range(3)]


def test_other_threads_run_meanwhile():
    """A thread that only counts gets on while a long call runs in another."""
    q, k, v = inputs(4096)
    counted = done = 0
    running = threading.Event()

    def call():
        nonlocal done
        running.set()
        tessera.attention(q, k, v, threads=1, algorithm="flash1")
        done = 1

    thread = threading.Thread(target=call)
    thread.start()
    running.wait()
    while not done:
        counted += 1
        time.sleep(0.001)
    thread.join()
    assert counted >= 3  # holding the GIL for the whole call would leave one round


def test_many_threads_at_once():
    problems = [inputs(50 + i, seed=i) for i in range(8)]
    expected = [tessera.attention(*p, causal=True) for p in problems]

    def call(i):
        return i % 8, tessera.attention(*problems[i % 8], causal=True)

    with ThreadPoolExecutor(6) as pool:
        for which, out in pool.map(call, range(120)):
            np.testing.assert_array_equal(out, expected[which])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_after_fork():
    """A child of a process that has used the thread pool can compute too (multiprocessing, data loaders)."""
    code = """
import os, numpy as np, tessera
q = np.random.default_rng(0).standard_normal((1, 512, 4, 32)).astype(np.float32)
expected = tessera.attention(q, q, q)
child = os.fork()
if child == 0:
    os._exit(0 if (tessera.attention(q, q, q) == expected).all() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert (tessera.attention(q, q, q) == expected).all()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_ctrl_c_ends_a_loop_of_calls():
    code = """
import numpy as np, signal, tessera
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let what they start in the background ignore it
q = np.ones((1, 256, 2, 32), dtype=np.float32)
tessera.attention(q, q, q)
try:
    print("ready", flush=True)
    while True:
        tessera.attention(q, q, q)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
