"""What the benchmarks against peers share: measured rows, the bars they are held to, and the report. No PyTorch.

A row is a dictionary: one measured cell and what was derived from it. A bar reads one of its fields.
"""

import argparse
import importlib.util
import json
import math
import os
import pathlib
import statistics
import subprocess
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIRECTIONS = ("forward", "backward")


def load_compare():
    """The harness of the lab, from its file: the package need not be installed for the benchmarks."""
    path = ROOT / "python/tessera/lab/compare.py"
    spec = importlib.util.spec_from_file_location("tessera_lab_compare", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compare = load_compare()

STATES = {True: "met", False: "MISSED", None: "not measured"}

# --- bars
#   ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """What rows must reach. `where` and `machine` name what a row and the machine must have for it to apply."""

    text: str
    value: str  # the field of a row
    least: float = -math.inf
    most: float = math.inf
    where: dict = field(default_factory=dict)
    machine: dict = field(default_factory=dict)
    mean: bool = False  # the geometric mean over all rows instead of each


def judge(bar, rows, machine):
    """What became of a bar: None where it does not apply here."""
    if any(machine[key] != value for key, value in bar.machine.items()):
        return None
    chosen = [
        row
        for row in rows
        if row.get(bar.value) is not None and all(row.get(key) == value for key, value in bar.where.items())
    ]
    verdict = {"bar": bar.text, "cells": len(chosen)}
    if math.isfinite(bar.least):
        verdict["least"] = bar.least
    if math.isfinite(bar.most):
        verdict["most"] = bar.most
    if not chosen:
        return verdict | {"met": None, "worst": None, "missed": []}
    if bar.mean:
        worst = statistics.geometric_mean(row[bar.value] for row in chosen)
        missed = [] if bar.least <= worst <= bar.most else ["geometric mean"]
    else:
        chosen.sort(key=lambda row: row[bar.value], reverse=not math.isfinite(bar.least))  # the worst first
        worst = chosen[0][bar.value]
        missed = [
            f"{row['name']}: {row[bar.value]:.3g}"
            for row in chosen
            if not bar.least <= row[bar.value] <= bar.most
        ]
    return verdict | {"met": not missed, "worst": worst, "missed": missed}


def judge_all(bars, rows, machine):
    return [verdict for bar in bars if (verdict := judge(bar, rows, machine))]


def show(verdict):
    bound = f">= {verdict['least']}" if "least" in verdict else f"<= {verdict['most']}"
    worst = "" if verdict["worst"] is None else f": {verdict['worst']:.3g} over {verdict['cells']} cells"
    print(f"{STATES[verdict['met']]:<13} {verdict['bar']} {bound}{worst}")
    for cell in verdict["missed"]:
        print(f"              - {cell}")


# --- rows
#   ---------------------------------------------------------------------------------------------


class Sheet:
    """The rows measured so far. A wrong result has no speed: its `measured` fields are taken away."""

    def __init__(self, tolerance, measured):
        self.tolerance, self.measured, self.rows = tolerance, measured, []

    def add(self, row, text):
        """Keeps a row and prints it. An `error` is held against the tolerance of the row's type."""
        if row.get("error") is not None:
            row["error_share"] = row["error"] / self.tolerance[row["dtype"]]
            if row["error_share"] > 1:
                text = f"WRONG: differs by {row['error']:.1e} (allowed: {self.tolerance[row['dtype']]:.0e})"
                row.update({key: None for key in self.measured if key in row})
        self.rows.append(row)
        print(f"{row['name']:<54} {text}", flush=True)


# --- the report
#   ---------------------------------------------------------------------------------------


def listed(allowed, kind=str):
    """Parses "a,b" out of `allowed`."""

    def parse(text):
        words = [word.strip() for word in text.split(",")]
        for word in words:
            if word not in [str(value) for value in allowed]:
                raise argparse.ArgumentTypeError(f"'{word}': must be one of {', '.join(map(str, allowed))}")
        return [kind(word) for word in words]

    return parse


def commit():
    """Of the sources the library was built from: TESSERA_COMMIT, else what the repository knows, else None."""
    if named := os.environ.get("TESSERA_COMMIT"):
        return named
    try:
        result = subprocess.run(
            ["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True
        )
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def rounded(value):
    """Numbers to five significant digits: times have no more."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return value


def conclude(result, verdicts, out, brief=False):
    """Prints the bars and, as the last line, `result` with them as one JSON object; writes it to the file `out`, if
    there is one. Brief: the line has the ratios of the bars, the cells are in the file alone. Returns the exit code."""
    print()
    for verdict in verdicts:
        show(verdict)
    met = all(verdict["met"] is not False for verdict in verdicts)
    whole = rounded({**result, "bars": verdicts, "met": met})
    if out:
        out.write_text(json.dumps(whole, indent=1) + "\n")
    if brief:
        for key in ("cells", "rows", "bars"):
            whole.pop(key, None)
        whole["missed"] = [verdict["bar"] for verdict in verdicts if verdict["met"] is False]
        whole["ratios"] = rounded({verdict["bar"]: verdict["worst"] for verdict in verdicts})
    print(json.dumps(whole))
    return 0 if met else 1
