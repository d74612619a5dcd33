"""Output of a run on the terminal: one line that changes while the run works, and lines that stay."""

import shutil
import sys
import time


def clock_text(seconds):
    """ "0:07", "12:40", "1:02:03"."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def bytes_text(size):
    """ "512 B", "1.50 KiB", "16.0 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            break
        size /= 1024
    else:
        unit = "TiB"
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.{max(0, 2 - (size >= 10) - (size >= 100))}f} {unit}"


def time_text(milliseconds):
    """ "850 us", "12.3 ms", "4.56 s"."""
    for unit, scale in (("s", 1e3), ("ms", 1)):
        if milliseconds >= scale:
            return f"{milliseconds / scale:.3g} {unit}"
    return f"{milliseconds * 1e3:.3g} us"


def counted(count, noun):
    """ "1 row", "3 rows"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


class Progress:
    """Shows on one changing line what is done, how far, and the time left; only where standard error is a terminal."""

    def __init__(self):
        self._start = None  # time and value of the first share: a resumed run starts in the middle
        self._visible = sys.stderr.isatty()
        self._shown = False

    def show(self, what, share):
        """Shows that `share` of all the work is done."""
        if self._start is None:
            self._start = (time.monotonic(), share)
        if not self._visible:
            return
        since, before = self._start
        done = share - before
        left = f", {clock_text((time.monotonic() - since) * (1 - share) / done)} left" if done > 0.005 else ""
        text = f"{share * 100:3.0f} %  {what}{left}"
        print("\r\033[K" + text[: shutil.get_terminal_size().columns - 1], end="", file=sys.stderr, flush=True)
        self._shown = True

    def clear(self):
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        self._shown = False

    def say(self, text):
        """A line that stays, on standard output."""
        self.clear()
        print(text, flush=True)
