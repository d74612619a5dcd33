"""Every sentence of a page, checked against the rows: each must have a known form, and what it claims must hold.

The rows have every oddity that a run may have: one point, ties, noise, zero memory, all out of memory, failures,
no baseline, negative savings.
"""

import itertools
import json
import math
import os
import pathlib
import random
import re
import subprocess
from html import unescape

import pytest

BINARY = os.environ.get("TESSERA_BINARY", "tessera")
DATA = pathlib.Path(__file__).parent / "data" / "report"
LENGTHS = (128, 256, 512, 1024)
METHODS = ("standard", "flash1", "flash2")
FIELDS = {"takes": "median_ms", "reaches": "tflops", "needs": "peak_extra_bytes"}
UNITS = {"ns": 1e-6, "µs": 1e-3, "ms": 1, "s": 1e3, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
         "MFLOP/s": 1e-6, "GFLOP/s": 1e-3, "TFLOP/s": 1}  # fmt: skip
SETTINGS = {"kind": "lines", "x": "q_length", "series": "algorithm", "facets": [], "log_x": True, "log_y": True}
FIGURES = [SETTINGS | {"title": title, "y": field}
           for title, field in (("Time", "median_ms"), ("Speed", "tflops"), ("Memory", "peak_extra_bytes"))]  # fmt: skip
BASE = json.loads((DATA / "results.jsonl").read_text().splitlines()[0])


def row(method, length, ms, spread=0.01, **changes):
    memory = length * length * 4 if method == "standard" else length * 64
    return BASE | {
        "experiment": "lengths", "algorithm": method, "q_length": length, "k_length": length, "direction": "forward",
        "status": "ok", "reason": None, "median_ms": ms, "lower_quartile_ms": ms * (1 - spread), "upper_quartile_ms": ms * (1 + spread),
        "tflops": length * length / ms / 1e6, "peak_extra_bytes": memory, "speedup_over_standard": None, "commit": "0123456789ab",
    } | changes  # fmt: skip


def missing(method, length, status, reason="CUDA out of memory.\nTried to allocate 4 GiB. " + 40 * "more words "):
    return row(method, length, 1) | {"status": status, "reason": reason} | dict.fromkeys(
        ("median_ms", "lower_quartile_ms", "upper_quartile_ms", "tflops", "peak_extra_bytes"))  # fmt: skip


def grid(time, spread=0.01):
    return [row(method, length, time(method, length), spread) for length, method in itertools.product(LENGTHS, METHODS)]


def plain(method, length):
    return length * length / 1e4 / (1 + METHODS.index(method))


def drawn_at_random(seed):
    """Values, spreads, zeros and failures without any order."""
    random.seed(seed)
    made = []
    for length, method in itertools.product(LENGTHS, METHODS):
        status = random.choice(("ok",) * 6 + ("out_of_memory", "unsupported", "failed"))
        made.append(missing(method, length, status) if status != "ok" else row(
            method, length, plain("standard", length) * random.choice((0.3, 0.97, 1, 1.02, 1.5, 4)) + 1e-3,
            random.choice((0.001, 0.03, 0.2)), peak_extra_bytes=random.choice((0, 1, length * 64, length**2))))  # fmt: skip
    return made


CASES = {
    "ordinary": grid(plain),
    "one point": [row("flash2", 512, 3)],
    "one method": [row("flash2", length, length / 100) for length in LENGTHS],
    "no baseline": [one for one in grid(plain) if one["algorithm"] != "standard"],
    "ties": grid(lambda method, length: length * length / 1e4),
    "noise": grid(lambda method, length: length * length / 1e4 * (1 + METHODS.index(method) / 10), spread=0.3),
    "slower": grid(lambda method, length: length * length / 1e4 * (1 + METHODS.index(method))),
    "crossing": grid(lambda method, length: length * length / 1e4 if method == "standard" else length / 30),
    "all out of memory": [missing(method, length, "out_of_memory") for length, method in itertools.product(LENGTHS, METHODS)],
    "nothing ran": [missing("flash2", 512, "failed"), missing("standard", 512, "unsupported")],
    "standard ends": [one if one["algorithm"] != "standard" or one["q_length"] < 512 else missing("standard", one["q_length"], "out_of_memory")
                      for one in grid(plain)],
    "no memory": [one | {"peak_extra_bytes": 0 if one["algorithm"] == "flash2" else one["peak_extra_bytes"]} for one in grid(plain)],
    "launches": [row(method, length, 0.02 + length / 1e9, 0.01, tflops=length * length / 1e9) for length, method in itertools.product(LENGTHS, METHODS)],
} | {f"random {seed}": drawn_at_random(seed) for seed in range(12)}  # fmt: skip

VALUE = r"([\d.e+-]+) (ns|µs|ms|s|B|KiB|MiB|GiB|[MGT]FLOP/s)(?: ± [\d.e-]+ %)?"
PLACE = r"At N = (\d+), "


class Rows:
    def __init__(self, made):
        self.made = made

    def at(self, method, length, field):
        found = [one for one in self.made if one["algorithm"] == method and one["q_length"] == int(length) and one["status"] == "ok"]
        assert len(found) == 1, (method, length)
        return found[0][field]

    def interval(self, method, length, field):
        value = self.at(method, length, field)
        if field == "peak_extra_bytes":
            return value, value
        low, middle, high = (self.at(method, length, name) for name in ("lower_quartile_ms", "median_ms", "upper_quartile_ms"))
        return (low, high) if field == "median_ms" else (value * middle / high, value * middle / low)

    def overlap(self, a, b, length, field):
        (a_low, a_high), (b_low, b_high) = self.interval(a, length, field), self.interval(b, length, field)
        return a_low <= b_high and b_low <= a_high

    def says(self, method, length, field, number, unit):
        """The number of a sentence is that of the row, to three digits."""
        value = self.at(method, length, field)
        assert float(number) * UNITS[unit] == pytest.approx(value, rel=6e-3, abs=0.5), (method, length, field)

    def last_common(self, a, b, field):
        return max(length for length in LENGTHS if all(
            any(one["algorithm"] == method and one["q_length"] == length and one["status"] == "ok" and one[field] is not None
                for one in self.made) for method in (a, b)))  # fmt: skip


def check_speed(rows, found):
    length, mine, verb, value, unit, base, other, other_unit, subject, words = found.groups()
    field = FIELDS[verb]
    assert subject == mine and int(length) == rows.last_common(mine, base, field)
    rows.says(mine, length, field, value, unit)
    rows.says(base, length, field, other, other_unit)
    assert not rows.overlap(mine, base, length, field), "quartiles overlap"
    ratio = rows.at(mine, length, field) / rows.at(base, length, field)
    speed = ratio if field == "tflops" else 1 / ratio
    if words == "as fast":
        assert abs(ratio - 1) < 0.05
    else:
        factor, direction = re.fullmatch(r"([\d.]+) times as (fast|slow)", words).groups()
        assert float(factor) == pytest.approx(speed if direction == "fast" else 1 / speed, rel=0.05) and float(factor) > 1.0


def check_overlap(rows, found):
    length, mine, value, unit, base, other, other_unit = found.groups()
    field = "tflops" if unit.endswith("FLOP/s") else "median_ms"
    rows.says(mine, length, field, value, unit)
    rows.says(base, length, field, other, other_unit)
    assert rows.overlap(mine, base, length, field), "quartiles do not overlap"


def check_memory(rows, found):
    length, mine, value, unit, base, other, other_unit, tail = found.groups()
    field = "peak_extra_bytes"
    rows.says(mine, length, field, value, unit)
    rows.says(base, length, field, other, other_unit)
    a, b = rows.at(mine, length, field), rows.at(base, length, field)
    if match := re.fullmatch(r", ([\d.]+) times as much", tail):
        assert float(match[1]) == pytest.approx(b / a, rel=0.05)
    elif match := re.fullmatch(rf", so {mine} needs ([\d.]+) times as much", tail):
        assert float(match[1]) == pytest.approx(a / b, rel=0.05)
    elif tail:
        assert tail == ", within 5 % of each other" and abs(a / b - 1) < 0.05
    else:
        assert a == b or a == 0 or b == 0


def check_missing(rows, found):
    for part in re.split(r" and (?=\w+ runs out)|, (?=\w+ runs out)| and (?=\d+ other curve)", found[0].rstrip(".")):
        if re.fullmatch(r"\d+ other curves? (does|do) as well", part):
            continue
        method, length, more = re.fullmatch(r"(\w+) runs out of memory at N = (\d+)(.*)", part).groups()
        gone = sorted(one["q_length"] for one in rows.made if one["algorithm"] == method and one["status"] == "out_of_memory")
        assert gone[0] == int(length)
        if more == "":
            assert len(gone) == 1
        elif more == " and beyond":
            assert gone == [one for one in sorted({one["q_length"] for one in rows.made}) if one >= int(length)] and len(gone) > 1
        else:
            assert int(re.fullmatch(r" and at (\d+) other points?", more)[1]) == len(gone) - 1


def check_crossing(rows, found):
    loser, verb, until, winner, since = found.groups()
    field = "median_ms" if verb == "is faster" else "peak_extra_bytes"
    assert int(until) < int(since)
    for first, second, length in ((loser, winner, until), (winner, loser, since)):
        for field_name in (field,):
            a, b = rows.at(first, length, field_name), rows.at(second, length, field_name)
            assert a < b and not (field_name == "median_ms" and rows.overlap(first, second, length, field_name))


def check_growth(rows, found):
    field = {"Time": "median_ms", "Memory": "peak_extra_bytes"}[found[1]]
    for exponent, uncertainty, method in re.findall(r"N\^(-?[\d.]+) ± ([\d.]+) for (\w+)", found[2]):
        points = [(one["q_length"], one[field], one["tflops"]) for one in rows.made
                  if one["algorithm"] == method and one["status"] == "ok" and one[field] > 0]  # fmt: skip
        if field == "median_ms":  # not dominated by the launch
            fastest = max(points, key=lambda point: point[2])
            points = [point for point in points if point[1] >= fastest[1] or point[2] >= fastest[2] / 2]
        assert len(points) >= 3 and float(uncertainty) <= 0.3
        slopes = [math.log(b[1] / a[1]) / math.log(b[0] / a[0]) for a, b in itertools.combinations(points, 2)]
        assert min(slopes) - float(uncertainty) - 0.06 <= float(exponent) <= max(slopes) + float(uncertainty) + 0.06


def check_highest(rows, found):
    value, unit, method, length = found.groups()
    rows.says(method, length, "tflops", value, unit)
    assert rows.at(method, length, "tflops") == max(one["tflops"] for one in rows.made if one["tflops"] is not None)


def check_one_point(rows, found):
    methods = {one["algorithm"] for one in rows.made if one["status"] == "ok"}
    assert len(methods) <= 1 or "standard" not in methods or len(methods) > 1


def check_nothing(rows, found):
    assert not any(one["status"] == "ok" for one in rows.made)


FORMS = [
    (rf"{PLACE}(\w+) (takes|reaches) {VALUE} and (\w+) {VALUE}, so (\w+) is (.*)\.", check_speed),
    (rf"{PLACE}no difference is found between (\w+) \({VALUE}\) and (\w+) \({VALUE}\), because their quartiles overlap\.", check_overlap),
    (rf"{PLACE}(\w+) needs {VALUE} of memory and (\w+) {VALUE}(.*)\.", check_memory),
    (r"(?:\w+ runs out of memory.*)\.", check_missing),
    (r"(\w+) (is faster|needs less memory) up to N = (\d+) and (\w+) from N = (\d+) on\.", check_crossing),
    (r"(Time|Memory) follows (.*)\.", check_growth),
    (rf"The highest rate is {VALUE} \((\w+), N = (\d+)\)\.", check_highest),
    (r"Only \d+ points? (?:was|were) measured, so there is nothing to compare(?: \(.*\))?\.", check_one_point),
    (r"Nothing could be measured here; the notes say why\.", check_nothing),
]


def sentences_of(html):
    text = re.sub(r"<sup>(.*?)</sup>", r"^\1", html).replace("\u00a0", " ")
    for figure in re.findall(r'<p class="sentences">(.*?)</p>', text):
        found = [unescape(one) for one in re.findall(r"<span>(.*?)</span>", figure)]
        assert 1 <= len(found) <= 2
        yield from found


@pytest.mark.parametrize("case", CASES)
def test_sentences_say_what_the_rows_say(tmp_path, case):
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in CASES[case]))
    experiment = {"name": "lengths", "title": "Lengths", "question": "How long?", "origin": "", "figures": FIGURES}
    (tmp_path / "experiments.json").write_text(json.dumps({"schema": 1, "experiments": [experiment]}))
    result = subprocess.run([BINARY, "report", str(tmp_path), "--out", str(tmp_path / "page.html")],
                            capture_output=True, text=True, timeout=60)  # fmt: skip
    assert result.returncode == 0, result.stderr
    html = (tmp_path / "page.html").read_text()
    said = list(sentences_of(html))
    assert len(said) >= len(FIGURES)
    for sentence in said:
        matches = [(re.fullmatch(form, sentence), check) for form, check in FORMS]
        matches = [(found, check) for found, check in matches if found]
        assert matches, f"a sentence of an unknown form: {sentence}"
        found, check = matches[0]
        check(Rows(CASES[case]), found)
    for note in re.findall(r'<ul class="notes">(.*?)</ul>', html):
        assert all(len(unescape(one)) < 400 for one in re.findall(r"<li>(.*?)</li>", note))
    timed = [one for one in CASES[case] if one["status"] == "ok"]
    noisy = sum(one["upper_quartile_ms"] - one["lower_quartile_ms"] > 0.1 * one["median_ms"] for one in timed)
    assert ("This run is noisy." in html) == (noisy > 0.2 * len(timed))


@pytest.mark.parametrize("percent", (-188, -0.01, 0, 40))
def test_a_negative_saving_is_a_cost(tmp_path, percent):
    made = []
    for length in LENGTHS[:2]:
        for method in ("standard", "flash"):
            saved = percent if method == "flash" else None
            made.append(row(method, length, 1, experiment="training", depth=2, time_saved_percent=saved, memory_saved_percent=saved,
                            peak_bytes=length, memory_used_bytes=length))  # fmt: skip
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in made))
    result = subprocess.run([BINARY, "report", str(tmp_path), "--out", str(tmp_path / "page.html")],
                            capture_output=True, text=True, timeout=60)  # fmt: skip
    assert result.returncode == 0, result.stderr
    said = " ".join(sentences_of((tmp_path / "page.html").read_text()))
    assert "saves -" not in said and "-0.0" not in said
    assert ("takes 188.0 % longer" in said) == (percent == -188)
    assert ("needs 188.0 % more peak memory" in said) == (percent == -188)
    assert ("saves 40.0 % of the time" in said) == (percent == 40)
