"""Draws docs/figures/cpu-peers.svg and writes the measured parts of docs/guides/benchmarks-cpu.md, from a result of
peers_cpu.py. Only the standard library is needed.

    python3 benchmarks/cpu_page.py benchmarks/results/2026-11-19-peers-cpu-zen5.json
"""

import argparse
import json
import pathlib
import re

from cpu_cells import PEERS
from roofline import Drawing

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/guides/benchmarks-cpu.md"
FIGURE = ROOT / "docs/figures/cpu-peers.svg"

# --- the figure
#   ---------------------------------------------------------------------------------------

PANELS = (("fp32", "forward"), ("bf16", "forward"), ("fp32", "backward"), ("bf16", "backward"))
LEFT, TOP, LINE, HEAD, GAP, COLUMN, RIGHT = 150, 96, 15, 34, 22, 370, 20
COLOURS = {  # on light pages, on dark ones
    "tessera": ("#1d6f8f", "#4fb3d9"), "pytorch": ("#d9541e", "#ff8c5a"), "zentorch": ("#8a3ffc", "#be95ff"),
    "openvino": ("#14865c", "#3fb98a"), "onnxruntime": ("#b28600", "#e3b341"),
}  # fmt: skip


def style():
    light = "".join(f".{name} {{ fill: {pair[0]}; stroke: {pair[0]} }} " for name, pair in COLOURS.items())
    dark = "".join(f".{name} {{ fill: {pair[1]}; stroke: {pair[1]} }} " for name, pair in COLOURS.items())
    return f"<style>{light}@media (prefers-color-scheme: dark) {{ {dark}}}</style>"


def shares(cell):
    """The share of the peak by library. A peer's follows from its ratio, which is of one process."""
    found = {"tessera": cell["fraction"]}
    return found | {peer: cell["fraction"] / ratio for peer, ratio in cell["peers"].items() if isinstance(ratio, float)}


def mark(drawing, x, y, library):
    if library == "tessera":
        drawing.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" class="tessera"/>')
    else:
        drawing.parts.append(f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" class="{library}"/>')


def panel(drawing, left, top, title, cells):
    bottom = top + LINE * len(cells)
    drawing.text(left, top - 8, title, "ink")
    for percent in range(0, 101, 20):
        x = left + percent / 100 * (COLUMN - 30)
        drawing.line(x, top, x, bottom, "grid")
        drawing.text(x, bottom + 13, f"{percent} %", "soft small", "middle")
    for index, cell in enumerate(cells):
        y = top + LINE * (index + 0.5)
        found = shares(cell)
        ends = [left + share * (COLUMN - 30) for share in (min(found.values()), max(found.values()))]
        drawing.line(ends[0], y, ends[1], y, "axis", 0.6)
        for library in sorted(found, key=lambda name: name == "tessera"):
            mark(drawing, left + found[library] * (COLUMN - 30), y, library)
        if left == LEFT:
            drawing.text(left - 8, y + 4, cell["label"], "soft small", "end")


def draw(result):
    cells = [cell for cell in result["cells"] if cell.get("group") == "attention" and cell.get("fraction")]
    counts = sorted({cell["threads"] for cell in cells})
    rows = [(panel_of, [cell for cell in cells if (cell["dtype"], cell["direction"]) == panel_of]) for panel_of in PANELS]
    rows = [(panel_of, found) for panel_of, found in rows if found]
    heights = [LINE * max(sum(cell["threads"] == count for cell in found) for count in counts) for _, found in rows]
    drawing = Drawing(TOP + sum(heights) + len(rows) * (HEAD + GAP))
    drawing.parts.append(style())
    title = f"Share of the arithmetic peak on {machine_name(result)}"
    drawing.text(20, 30, title, "ink title")
    drawing.text(20, 48, f"B,H,N,D; commit {result['commit']}, {result['date']}; causal counts half the work", "soft small")
    x = 20
    for library in COLOURS:
        name = f"{title_of(library)} {version(result, library)}".strip()
        mark(drawing, x + 4, 68, library)
        drawing.text(x + 13, 72, name, "ink small")
        x += 34 + 6.2 * len(name)
    top = TOP
    for ((dtype, direction), found), height in zip(rows, heights):
        for index, count in enumerate(counts):
            threads = f"{count} thread{'s' if count > 1 else ''}"
            chosen = [cell for cell in found if cell["threads"] == count]
            panel(drawing, LEFT + index * (COLUMN + RIGHT), top + HEAD - 14, f"{dtype} {direction}, {threads}", chosen)
        top += height + HEAD + GAP
    return drawing.svg(title)


def title_of(library):
    return "Tessera" if library == "tessera" else PEERS[library]


def version(result, library):
    return result["versions"].get({"pytorch": "torch"}.get(library, library), "")


def machine_name(result):
    return result["machine"].split(", Linux")[0]


# --- the tables
#   ---------------------------------------------------------------------------------------


MISSING = "This result has no such cells."


def by_threads(cells):
    """The cells with one name but for the threads: {name: [cell, ...]}, in order."""
    found = {}
    for cell in cells:
        found.setdefault(cell["name"].rsplit(", ", 1)[0], []).append(cell)
    return found


def ratio_text(cell, peer):
    """The ratio, a dash where the peer does not support the cell, nothing where it was not measured."""
    value = cell["peers"].get(peer)
    return f"{value:.2f}" if isinstance(value, float) else "–" if value else ""


def joined(texts):
    return texts[0] if len(set(texts)) == 1 else " / ".join(text or "?" for text in texts)


def table(cells):
    """A row per problem; several numbers of threads share it."""
    if not cells:
        return MISSING
    peaks = any(cell.get("fraction") for cell in cells)
    head = ["cell", *(["% of peak"] if peaks else []), *PEERS.values()]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, group in by_threads(cells).items():
        values = [name]
        if peaks:
            values.append(joined([f"{100 * cell['fraction']:.0f}" if cell.get("fraction") else "–" for cell in group]))
        values += [joined([ratio_text(cell, peer) for cell in group]) for peer in PEERS]
        lines.append(f"| {' | '.join(values)} |")
    return "\n".join(lines)


def compared(result, group):
    return [cell for cell in result["cells"] if cell.get("group") == group and cell.get("peers")]


def facts(result):
    versions = ", ".join(f"{name} {number}" for name, number in sorted(result["versions"].items()))
    peaks = ", ".join(f"{peak['name']} {peak['rate']:.4g} {peak['unit']} with {peak['threads']}" for peak in result["peaks"])
    load = result["load"]
    return "\n".join([
        f"- Machine: {result['machine']}; {result['usable_cpus']} usable CPUs, governor {result['governor']}, "
        f"load average {load['before'][0]:.1f} before and {load['after'][0]:.1f} after.",
        f"- Commit {result['commit']}, {result['date']}. Versions: {versions}.",
        f"- Peaks by number of threads: {peaks}.",
    ])  # fmt: skip


def lacks(result):
    """What each peer does not support, with the reason and where, and how many cells it was measured in."""
    lines, names = [], {cell["name"] for cell in result["cells"] if cell["peers"]}
    for peer, title in PEERS.items():
        rows = [row for row in result["rows"] if row["peer"] == peer and row["name"] in names]
        reasons = {}
        for row in rows:
            if not row["supported"]:
                where = row["name"].rsplit(", ", 1)[0]
                if "group" in row:
                    where = f"{row['dtype']} {'backward' if row['direction'] == 'backward' else row['group']}"
                reasons.setdefault(row["reason"], {})[where] = True
        text = "; ".join(f"{reason} ({', '.join(where)})" for reason, where in reasons.items())
        count = f"{sum(row['supported'] for row in rows)} of {len(names)} cells measured"
        lines.append(f"- **{title}**: {count}{'; ' + text if text else ''}.")
    return "\n".join(lines)


def alone(result):
    """What was measured of Tessera alone."""
    fields = {"growth": "slowest / fastest time per FLOP", "causal_cost": "causal / full time",
              "bandwidth_share": "share of a plain read", "sparse_cost": "sparse / dense time"}
    lines = ["| cell | value | what |", "|---|---|---|"]
    found = [(cell["name"], cell[field], words) for field, words in fields.items() for cell in result["cells"] if field in cell]
    return "\n".join(lines + [f"| {name} | {value:.2f} | {words} |" for name, value, words in found]) if found else MISSING


def bars(result):
    lines = ["| bar | asked | worst | cells | missed |", "|---|---|---|---|---|"]
    for bar in result["bars"]:
        if bar["met"] is None:
            continue
        asked = f"≥ {bar['least']:g}" if "least" in bar else f"≤ {bar['most']:g}"
        lines.append(f"| {bar['bar']} | {asked} | {bar['worst']:.2f} | {bar['cells']} | {len(bar['missed']) or ''} |")
    return "\n".join(lines)


PARTS = {
    "facts": facts,
    "attention": lambda result: table(compared(result, "attention")),
    "decode": lambda result: table(compared(result, "decode")),
    "short": lambda result: table(compared(result, "short")),
    "features": lambda result: table(compared(result, "features")),
    "lacks": lacks,
    "alone": alone,
    "bars": bars,
}


def filled(page, result):
    """The page with each part between `<!-- measured: name -->` and `<!-- end -->` written anew."""

    def part(match):
        return f"<!-- measured: {match[1]} -->\n\n{PARTS[match[1]](result)}\n\n<!-- end -->"

    return re.sub(r"<!-- measured: (\w+) -->\n.*?<!-- end -->", part, page, flags=re.DOTALL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("result", type=pathlib.Path, help="what peers_cpu.py --out wrote")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE, help="the page")
    parser.add_argument("--figure", type=pathlib.Path, default=FIGURE, help="the figure")
    options = parser.parse_args()
    try:
        result = json.loads(options.result.read_text())
    except (OSError, ValueError) as error:
        parser.error(f"result '{options.result}': {error}")
    options.figure.write_text(draw(result), encoding="utf-8")
    options.page.write_text(filled(options.page.read_text(encoding="utf-8"), result), encoding="utf-8")


if __name__ == "__main__":
    main()
