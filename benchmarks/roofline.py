"""Draws the result of peers_cpu.py as a roofline: docs/kernels/cpu-roofline.svg.

    python3 benchmarks/roofline.py result.json [--out FILE] [--threads N] [--layout bhnd] [--mask full]

A point is a cell: how many FLOPs it does per byte that must be moved (every tensor once), and at which rate. The
lines are what the machine can do at best, as `tessera peak` measured them in the same run: no point can lie above
them. Tessera and PyTorch on the same cell are joined by a line. Only the standard library is needed.
"""

import argparse
import json
import math
import pathlib
from xml.sax.saxutils import escape

WIDTH, PANEL_HEIGHT = 960, 330
LEFT, RIGHT, TOP, BOTTOM, GAP = 76, 28, 124, 64, 82  # around the panels, and between them
LETTER = 6.5  # the width of one, more or less
PANELS = ("fp32", "bf16")
DECODE_KEYS = 32768
CEILINGS = {"fp32_fma": "fp32 FMA", "bf16_dot": "bf16 dot product", "bf16_amx": "bf16 AMX"}
SERIES = {"forward": "forward", "backward": "backward", "decode": "decode (1 query, 32 Ki keys)"}

# Colours for light pages, and for dark ones where the reader's system asks for them.
STYLE = """
  .page { fill: #ffffff; stroke: #d8d8d4 } .ink { fill: #1f2328 } .soft { fill: #59636e }
  .grid { stroke: #e6e6e2 } .axis { stroke: #8b949e } .roof { stroke: #1f2328 } .minor-roof { stroke: #8b949e }
  .forward { fill: #2a78d6; stroke: #2a78d6 } .backward { fill: #d9541e; stroke: #d9541e }
  .decode { fill: #14865c; stroke: #14865c } .either { fill: #1f2328; stroke: #1f2328 } .hollow { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #30363d } .ink { fill: #e6edf3 } .soft { fill: #9198a1 }
    .grid { stroke: #21262d } .axis { stroke: #6e7681 } .roof { stroke: #e6edf3 } .minor-roof { stroke: #6e7681 }
    .forward { fill: #58a6ff; stroke: #58a6ff } .backward { fill: #ff8c5a; stroke: #ff8c5a }
    .decode { fill: #3fb98a; stroke: #3fb98a } .either { fill: #e6edf3; stroke: #e6edf3 } .hollow { fill: #0d1117 }
  }
  text { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 12px }
  .title { font-size: 16px; font-weight: 600 } .small { font-size: 11px }
"""


class Axis:
    """A logarithmic scale from values to pixels."""

    def __init__(self, lowest, highest, begin, end):
        self.lowest, self.highest = lowest, highest
        self.begin, self.end = begin, end

    def at(self, value):
        share = math.log(value / self.lowest) / math.log(self.highest / self.lowest)
        return self.begin + share * (self.end - self.begin)

    def ticks(self):
        """1, 2, 5, 10, ... within the scale."""
        powers = range(math.floor(math.log10(self.lowest)), math.ceil(math.log10(self.highest)) + 1)
        values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        return [value for value in values if self.lowest <= value <= self.highest]


class Drawing:
    def __init__(self, height):
        self.height = height
        self.parts = []

    def line(self, x1, y1, x2, y2, css, width=1.0, more=""):
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}" '
            f'stroke-width="{width}" {more}/>'
        )

    def text(self, x, y, content, css="ink", anchor="start", turn=None):
        turned = f' transform="rotate({turn:.1f} {x:.1f} {y:.1f})"' if turn is not None else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}"{turned}>{escape(content)}</text>'
        )

    def point(self, x, y, series, ours):
        """Filled for Tessera, hollow for PyTorch."""
        css = series if ours else f"{series} hollow"
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" class="{css}" stroke-width="1.5"/>')

    def svg(self, label):
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" '
            f'height="{self.height}" role="img" aria-label="{escape(label)}">\n<style>{STYLE}</style>\n'
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{self.height - 1}" rx="8" class="page"/>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def cells_against_pytorch(result, layout):
    """The cells of a result. One with several peers has rows; those against PyTorch are what this figure shows."""
    if "rows" not in result:
        return result["cells"]
    cells = []
    for row in result["rows"]:
        if row["peer"] == "pytorch" and row["supported"] and row["group"] in ("attention", "decode"):
            theirs = {"torch_gflops": row["peer_gflops"], "torch_gbps": row["peer_gflops"] * row["minimum_bytes"] / row["flops"]}
            cells.append(row | theirs | {"kind": row["group"], "length": row["keys"], "layout": layout})
    return [cell for cell in cells if cell["kind"] != "decode" or cell["keys"] == DECODE_KEYS]


def points_of(result, dtype, options):
    """(series, (N, D), FLOP per byte, our rate, PyTorch's rate) of the cells to draw; decode has no (N, D)."""
    points = []
    for cell in cells_against_pytorch(result, options.layout):
        wanted = cell.get("dtype") == dtype and cell["threads"] == options.threads
        if not wanted or cell.get("layout") != options.layout or cell.get("tessera_gflops") is None:
            continue
        intensity = cell["flops"] / cell["minimum_bytes"]
        if cell["kind"] == "decode":
            theirs = cell["torch_gbps"] * intensity
            points.append(("decode", None, intensity, cell["tessera_gflops"], theirs))
        elif cell["kind"] == "attention" and cell["causal"] == (options.mask == "causal"):
            size = cell["length"], cell["dim"]
            points.append((cell["direction"], size, intensity, cell["tessera_gflops"], cell["torch_gflops"]))
    return points


def draw_ceilings(drawing, x, y, peaks, dtype):
    """The reading bandwidth as a slope up to the highest rate, and the rates as levels from there on."""
    reading = peaks["memory_read"]
    names = [name for name in CEILINGS if name in peaks and (dtype == "bf16" or name == "fp32_fma")]
    top = max(peaks[name] for name in names)
    for name in names:
        rate = peaks[name]
        start, main = max(x.lowest, rate / reading), rate == top
        css, width = ("roof", 1.8) if main else ("minor-roof", 1.2)
        dashes = "" if main else 'stroke-dasharray="5 4"'
        drawing.line(x.at(start), y.at(rate), x.end, y.at(rate), css, width, dashes)
        text = f"{CEILINGS[name]}  {rate:.0f} GFLOP/s"
        drawing.text(x.end - 4, y.at(rate) - 6, text, "ink small" if main else "soft small", "end")
    low, high = max(x.lowest, y.lowest / reading), top / reading
    ends = x.at(low), y.at(low * reading), x.at(high), y.at(top)
    drawing.line(*ends, "roof", 1.8)
    slope = math.degrees(math.atan2(ends[3] - ends[1], ends[2] - ends[0]))
    middle = (ends[0] + ends[2]) / 2, (ends[1] + ends[3]) / 2
    drawing.text(middle[0] - 6, middle[1] - 6, f"reading memory  {reading:.0f} GB/s", "ink small", "middle", slope)


def draw_cells(drawing, x, y, points):
    """Each cell as two joined points, with its N and D below them, or above where the axis is near."""
    places = {}
    for series, size, intensity, ours, theirs in points:
        at, ends = x.at(intensity), sorted((y.at(ours), y.at(theirs)))
        drawing.line(at, ends[0], at, ends[1], series, 1.2, 'stroke-opacity="0.6"')
        drawing.point(at, y.at(theirs), series, ours=False)
        drawing.point(at, y.at(ours), series, ours=True)
        sizes, tops, bottoms = places.setdefault((series, round(at)), (set(), [], []))
        sizes.add(size)
        tops.append(ends[0])
        bottoms.append(ends[1])
    for (series, at), (sizes, tops, bottoms) in places.items():
        text = series if None in sizes else f"{min(sizes)[0]}\u00d7{', '.join(str(D) for _, D in sorted(sizes))}"
        if max(bottoms) + 12 + LETTER * len(text) < y.begin:
            drawing.text(at + 4, max(bottoms) + 10, text, "soft small", "end", -90)
        else:
            drawing.text(at + 4, min(tops) - 10, text, "soft small", "start", -90)


def draw_panel(drawing, top, dtype, points, peaks):
    bottom = top + PANEL_HEIGHT
    rates = [rate for point in points for rate in point[3:]]
    highest = max(rate for name, rate in peaks.items() if not name.endswith("_read"))
    x = Axis(1, 10_000, LEFT, WIDTH - RIGHT)
    y = Axis(min([highest / 30] + [rate / 2 for rate in rates]), highest * 1.4, bottom, top)
    for value in x.ticks():
        drawing.line(x.at(value), top, x.at(value), bottom, "grid")
        drawing.text(x.at(value), bottom + 18, f"{value:g}", "soft", "middle")
    for value in y.ticks():
        drawing.line(x.begin, y.at(value), x.end, y.at(value), "grid")
        drawing.text(x.begin - 8, y.at(value) + 4, f"{value:g}", "soft", "end")
    drawing.line(x.begin, bottom, x.end, bottom, "axis")
    drawing.line(x.begin, top, x.begin, bottom, "axis")
    drawing.text(x.begin, top - 10, dtype, "ink title")
    drawing.text(22, (top + bottom) / 2, "GFLOP/s", "soft", "middle", -90)
    drawing.text((x.begin + x.end) / 2, bottom + 38, "FLOP per byte (every tensor moved once)", "soft", "middle")
    draw_ceilings(drawing, x, y, peaks, dtype)
    draw_cells(drawing, x, y, points)


def draw_legend(drawing, y):
    at = LEFT
    for series, text in SERIES.items():
        drawing.point(at + 5, y - 4, series, ours=True)
        drawing.text(at + 16, y, text)
        at += 40 + LETTER * len(text)
    at += 12
    for ours, text in ((True, "Tessera"), (False, "PyTorch, same buffers and threads")):
        drawing.point(at + 5, y - 4, "either", ours)
        drawing.text(at + 16, y, text)
        at += 40 + LETTER * len(text)


def draw(result, options):
    threads = f"{options.threads} thread{'s' if options.threads > 1 else ''}"
    peaks = {peak["name"]: peak["rate"] for peak in result["peaks"] if peak["threads"] == options.threads}
    panels = [(dtype, points) for dtype in PANELS if (points := points_of(result, dtype, options))]
    height = TOP + len(panels) * PANEL_HEIGHT + (len(panels) - 1) * GAP + BOTTOM
    drawing = Drawing(height)
    title = f"Attention on {result['machine'].split(', ')[0]}, {threads}"
    drawing.text(LEFT, 32, title, "ink title")
    versions = result["versions"]
    facts = f"{options.mask} attention, points are N\u00d7D, layout {options.layout}; "
    facts += f"Tessera {versions['tessera']} ({result['commit']}), PyTorch {versions['torch']}, {result['date']}"
    drawing.text(LEFT, 51, facts, "soft small")
    draw_legend(drawing, 74)
    for index, (dtype, points) in enumerate(panels):
        draw_panel(drawing, TOP + index * (PANEL_HEIGHT + GAP), dtype, points, peaks)
    return drawing.svg(title)


def parse_options():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("result", type=pathlib.Path, help="what peers_cpu.py --out wrote")
    add("--out", type=pathlib.Path, default=root / "docs/kernels/cpu-roofline.svg", help="the figure")
    add("--threads", type=int, help="which number of threads [the largest]")
    add("--layout", choices=("bhnd", "bnhd"), default="bhnd", help="which layout [bhnd]")
    add("--mask", choices=("full", "causal"), default="full", help="which mask [full]")
    options = parser.parse_args()
    try:
        result = json.loads(options.result.read_text())
    except (OSError, ValueError) as error:
        parser.error(f"result '{options.result}': {error}")
    counts = sorted({peak["threads"] for peak in result["peaks"]})
    options.threads = counts[-1] if options.threads is None else options.threads
    if options.threads not in counts:
        parser.error(f"--threads {options.threads}: the result has {', '.join(str(count) for count in counts)}")
    return result, options


def main():
    result, options = parse_options()
    options.out.write_text(draw(result, options))


if __name__ == "__main__":
    main()
