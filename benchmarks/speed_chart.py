"""Draws the speed chart of the README: docs/figures/h200-speed.svg, from two results of peers_gpu.py.

    python3 benchmarks/speed_chart.py
"""

import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
PANELS = (("forward", "2026-11-16-peers-hopper-h200.json"), ("backward", "2026-11-16-peers-hopper-backward-h200.json"))
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
DIM, TOP, LEFT, PANEL, GAP, HEIGHT = 128, 92, 52, 330, 70, 240
LARGEST = 800  # TFLOP/s at the top of a panel
SERIES = ((False, "tessera_tflops", "#1d6f8f", ""), (False, "torch_tflops", "#d9822b", ""),
          (True, "tessera_tflops", "#1d6f8f", "6 4"), (True, "torch_tflops", "#d9822b", "6 4"))


def rates(file, direction, causal, field):
    """TFLOP/s by sequence length, from the rows of interleaved calls."""
    cells = json.loads((RESULTS / file).read_text())["cells"]
    found = {c["length"]: c[field] for c in cells
             if c["direction"] == direction and c["dtype"] == "bf16" and c["dim"] == DIM and c["causal"] == causal
             and c["section"] in ("cells", "backward") and c.get("protocol", "interleaved") == "interleaved"}
    return [found[length] for length in LENGTHS]


def text(x, y, words, size=12, anchor="start", weight="normal", fill="#1f2430"):
    return (f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
            f'fill="{fill}">{words}</text>')


def panel(left, direction, file):
    def x(index):
        return left + 18 + index * (PANEL - 36) / (len(LENGTHS) - 1)

    def y(rate):
        return TOP + HEIGHT * (1 - rate / LARGEST)

    yield text(left, TOP - 12, direction, 14, weight="bold")
    for rate in range(0, LARGEST + 1, 200):
        yield f'<line x1="{left}" y1="{y(rate):.1f}" x2="{left + PANEL}" y2="{y(rate):.1f}" stroke="#dfe3e8"/>'
        yield text(left - 8, y(rate) + 4, rate, 11, "end", fill="#5b6470")
    for index, length in enumerate(LENGTHS):
        label = f"{length // 1024}k" if length >= 1024 else length
        yield text(round(x(index), 1), TOP + HEIGHT + 18, label, 11, "middle", fill="#5b6470")
    for causal, field, colour, dash in SERIES:
        points = [(x(i), y(rate)) for i, rate in enumerate(rates(file, direction, causal, field))]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2" stroke-dasharray="{dash}"/>'
        for a, b in points:
            yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>'


def main():
    width, height = LEFT + 2 * PANEL + GAP + 20, TOP + HEIGHT + 46
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
           text(LEFT, 24, f"Attention on an H200, bf16, head_dim {DIM}: TFLOP/s by sequence length", 15, weight="bold")]
    for at, (colour, words) in enumerate((("#1d6f8f", "Tessera"), ("#d9822b", "cuDNN 9.19 through PyTorch 2.11"))):
        out.append(f'<rect x="{LEFT + at * 90}" y="36" width="12" height="12" fill="{colour}"/>')
        out.append(text(LEFT + at * 90 + 18, 46, words))
    out.append(text(LEFT + 340, 46, "solid: full; dashed: causal (half the work is counted)", fill="#5b6470"))
    for at, (direction, file) in enumerate(PANELS):
        out.extend(panel(LEFT + at * (PANEL + GAP), direction, file))
    out.append(text(LEFT, TOP + HEIGHT + 38, "16384 tokens, 2048 channels; calls alternate in one process; "
                    "2026-11-16, commits 07a72ea (forward), eb868af (backward)", 10.5, fill="#5b6470"))
    target = ROOT / "docs/figures/h200-speed.svg"
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(out) + "\n</svg>\n", encoding="utf-8")
    print(target.relative_to(ROOT))


if __name__ == "__main__":
    main()
