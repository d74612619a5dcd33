"""What the command prints follows the width of the terminal and the locale."""

import os
import subprocess

import pytest

BINARY = os.environ.get("TESSERA_BINARY", "tessera")


def run(*arguments, **env):
    environment = {key: value for key, value in os.environ.items() if key not in ("LC_ALL", "LC_CTYPE", "LANG", "COLUMNS")}
    return subprocess.run([BINARY, *arguments], capture_output=True, timeout=60, env={**environment, **env})


def on_terminal(columns, *arguments):
    """The output on a terminal of that many columns."""
    import fcntl
    import pty
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen([BINARY, *arguments], stdout=slave, stderr=slave,
                               env={**os.environ, "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "TERM": "xterm"})  # fmt: skip
    os.close(slave)
    output = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        output += part
    assert process.wait(timeout=60) == 0
    return output.decode().replace("\r\n", "\n")


def widest_of_paragraphs(text):
    """Of the lines that the command wraps: all but those that name another command."""
    return max(len(line) for line in text.splitlines()[:-1] if "python -m" not in line)


@pytest.mark.parametrize("columns", (50, 80, 200))
def test_lines_follow_the_terminal(columns):
    wide = widest_of_paragraphs(on_terminal(columns, "lab", "--list"))
    assert wide <= columns
    assert wide > columns - 25, "the width is used"


@pytest.mark.parametrize("columns", (50, 80, 200))
def test_lines_follow_columns_where_there_is_no_terminal(columns):
    text = run("lab", "--list", COLUMNS=str(columns), LC_ALL="C.UTF-8").stdout.decode()
    assert columns - 25 < widest_of_paragraphs(text) <= columns


@pytest.mark.parametrize("arguments", (["info"], ["explain", "--seq", "512"], ["lab", "--list"], ["bench", "--seq", "32"]))
def test_the_c_locale_gets_ascii(arguments):
    plain = run(*arguments, LC_ALL="C")
    assert plain.returncode == 0
    assert plain.stdout.isascii()
    assert b"?" not in plain.stdout.replace(b"--seq", b"") or arguments == ["lab", "--list"], "every character has a plain form"


def test_utf8_gets_its_rules():
    assert "─" in run("bench", "--seq", "32", LC_ALL="C.UTF-8").stdout.decode()
    assert "---" in run("bench", "--seq", "32", LANG="C").stdout.decode()
    assert "─" in run("bench", "--seq", "32", LC_ALL="", LANG="de_DE.utf8").stdout.decode()
