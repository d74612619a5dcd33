"""The page of `tessera report`: from the command line, and opened in a browser without a window.

The pages and their screenshots stay in report-pages beside the build's test results, to be looked at.
"""

import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
from html import unescape

import pytest

BINARY = os.environ.get("TESSERA_BINARY", "tessera")
DATA = pathlib.Path(__file__).parent / "data" / "report"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(not CHROMIUM, reason="no Chromium (tools/setup test installs it)")

# Runs before the page's own scripts, and after them.
WATCH = """<script>
window.problems = [];
window.addEventListener("error", (event) => problems.push(String(event.message)));
window.addEventListener("securitypolicyviolation", (event) => problems.push("blocked: " + event.blockedURI));
console.error = console.warn = (...words) => problems.push(words.join(" "));
</script>"""
PROBE = """<script>
window.addEventListener("load", () => setTimeout(() => {
  const charts = Array.from(document.querySelectorAll("canvas"), (canvas) => {
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const colors = new Set();
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) colors.add(data.slice(i, i + 3).join());
    const chart = Chart.getChart(canvas);
    return {figure: canvas.closest("figure").id, series: chart.data.datasets.length, colors: colors.size,
            absent: chart.data.datasets.reduce((sum, set) => sum + set.absent.length, 0),
            lone: chart.data.datasets.filter((set) => set.data.filter((one) => one.y !== null).length === 1)
              .map((set) => [set.label, set.type === "bar" || set.pointRadius > 0])};
  });
  const axes = [];  // ticks with names that overlap
  for (const canvas of document.querySelectorAll("canvas")) {
    const chart = Chart.getChart(canvas);
    for (const scale of Object.values(chart.scales)) {
      const names = scale.ticks.filter((tick) => tick.label !== "" && tick.label !== undefined);
      const places = names.map((tick) => scale.getPixelForValue(scale.type === "category" ? names.indexOf(tick) : tick.value));
      const least = scale.isHorizontal() ? 12 : 9;
      const close = places.some((place, i) => i > 0 && Math.abs(place - places[i - 1]) < least);
      if (close || !names.length) axes.push([canvas.closest("figure").id, scale.id, names.map((tick) => tick.label).join("|")]);
    }
  }
  const report = {problems, charts, axes, from_zero: Array.from(document.querySelectorAll("canvas"), (canvas) => Chart.getChart(canvas))
    .filter((chart) => chart.config.type === "bar" && chart.scales.y.type === "linear").every((chart) => chart.scales.y.min <= 0), width: document.documentElement.scrollWidth, view: innerWidth};
  parent.postMessage(JSON.stringify(report), "*");
}, 500));
</script>"""


# Paper: light, each chart at the shape that it is drawn in, and the screen as before once it is over.
PAPER = """<script>
window.addEventListener("load", () => setTimeout(() => {
  const shapes = () => Array.from(document.querySelectorAll("canvas"), (canvas) => {
    const chart = Chart.getChart(canvas);
    return [chart.width, chart.height, chart.options.responsive];
  });
  const theme = () => document.documentElement.dataset.theme;
  const screen = {theme: theme(), shapes: shapes()};
  dispatchEvent(new Event("beforeprint"));
  const paper = {theme: theme(), shapes: shapes(), problems};
  dispatchEvent(new Event("afterprint"));
  setTimeout(() => parent.postMessage(JSON.stringify({screen, paper, after: {theme: theme(), shapes: shapes()}}), "*"), 300);
}, 500));
</script>"""


def report(*arguments, env=None):
    return subprocess.run([BINARY, "report", *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})})  # fmt: skip


def rows():
    return [json.loads(line) for line in (DATA / "results.jsonl").read_text().splitlines()]


def write_results(folder, changed):
    folder.mkdir(exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
    shutil.copy(DATA / "experiments.json", folder)
    return folder


@pytest.fixture(scope="module")
def pages():
    folder = pathlib.Path(BINARY).resolve().parent.parent / "report-pages"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def page(pages):
    result = report(DATA, "--out", pages / "one.html")
    assert result.returncode == 0, result.stderr
    return pages / "one.html"


@pytest.fixture(scope="module")
def comparison(pages):
    """The fixture's rows and the same as if another machine were three times as fast."""
    faster = []
    for row in rows():
        row["machine"] = "Imagined CPU, 8 CPUs"
        for field in row:
            if field.endswith("_ms") and row[field]:
                row[field] /= 3
        faster.append(row)
    result = report(DATA, write_results(pages / "faster", faster), "--out", pages / "two.html")
    assert result.returncode == 0, result.stderr
    return pages / "two.html"


# --- the file -----------------------------------------------------------------------------------------


def test_page_needs_nothing_else(page):
    text = page.read_text()
    assert page.stat().st_size <= 2_000_000
    assert not re.search(r"<(script|link|img)[^>]*\s(src|href)=", text)
    assert "{{" not in text.split('<script type="application/json"')[0]


def test_page_links_to_the_rows(page):
    for link in re.findall(r'<a href="([^"#][^"]*)">', page.read_text()):
        assert (page.parent / link).resolve().exists(), link


def test_origins_are_words_and_explained_once(page):
    text = page.read_text().split('<script type="application/json"')[0]
    origins = re.findall(r'<p class="origin">After (.*)\.</p>', text)
    assert len(origins) == text.count("<section id=") > 0
    assert not re.search(r"\bS[0-9]\b", text)
    assert text.count('id="studies"') == 1
    explained = re.findall(r"<li><b>([^<]*?)</b>: ", text[text.index('id="studies"') :])
    assert len(explained) == 5
    for origin in origins:
        assert any(study in origin for study in explained), origin


def test_every_figure_has_sentences_and_its_rows(page):
    experiments = json.loads((DATA / "experiments.json").read_text())["experiments"]
    figures = sum(len(experiment["figures"]) for experiment in experiments)
    text = page.read_text()
    assert text.count("<figure") == text.count('class="sentences"') == figures
    assert text.count('<details class="rows">') == figures - 1  # the one that is a table itself
    numbers = [int(number) for number in re.findall(r'<h3><a href="#[\w-]+">Figure (\d+)</a>', text)]
    assert numbers == list(range(1, figures + 1))
    for sentences in re.findall(r'<p class="sentences">(.*?)</p>', text):
        assert 1 <= sentences.count("<span>") <= 2, sentences


def test_every_experiment_answers_its_question(page):
    text = page.read_text()
    sections = re.findall(r'<section id="(\w+)">(.*?)</section>', text, re.DOTALL)
    assert len(sections) > 5
    for name, section in sections:
        assert section.count('<p class="question">') == 1, name
        answer = re.search(r'<p class="answer">(.*?)</p>', section)
        assert answer and answer[1].endswith("."), name
    assert 'href="#sequence">Sequence' in text.split("<header>")[0], "the contents stand before the page"
    assert 1 <= text.count('<a class="card"') <= 5


def test_studies_stand_beside_ours(page):
    text = unescape(page.read_text())
    assert "on a T4 (figure 4): FlashAttention-1 ran at 0.78 times the speed of PyTorch at N = 512" in text
    studies = [series["name"] for panel in drawn(page)["sequence-1"]["panels"] for series in panel["series"] if series.get("points")]
    assert "standard on a T4 (study)" in " ".join(studies)


def test_two_runs_of_one_commit_are_not_mixed(tmp_path):
    later = [row | {"date": "2030-01-01", "median_ms": row["median_ms"] and 2 * row["median_ms"]} for row in rows()]
    other = write_results(tmp_path / "later", later)
    result = report(DATA, other, "--out", tmp_path / "report.html")
    assert result.returncode == 0, result.stderr
    text = unescape((tmp_path / "report.html").read_text())
    assert f"Drawn is the later, {other}/results.jsonl" in text and f"{DATA}/results.jsonl" in text
    result = report(DATA, other, "--prefer", DATA, "--out", tmp_path / "report.html")
    assert result.returncode == 0, result.stderr
    assert f"Drawn is the preferred, {DATA}/results.jsonl" in unescape((tmp_path / "report.html").read_text())
    result = report(DATA, other, "--prefer", tmp_path, "--out", tmp_path / "no.html")
    assert result.returncode == 2 and "--prefer" in result.stderr


def test_two_runs_are_compared(tmp_path):
    slower = [row | {"commit": "fedcba987654"} for row in rows()]
    changed = next(row for row in slower if row["status"] == "ok" and row["algorithm"] == "flash2")
    for field in ("median_ms", "lower_quartile_ms", "upper_quartile_ms"):
        changed[field] = 10 * changed[field]
    new = write_results(tmp_path / "new", slower)
    result = report("--compare", DATA, new, "--out", tmp_path / "report.html", env={"COLUMNS": "200"})
    assert result.returncode == 1, result.stderr
    assert "1 slower" in result.stdout and re.search(r"flash2 .* 10\.0 \(.* to .*\) +slower", result.stdout), result.stdout
    assert 'id="difference"' in (tmp_path / "report.html").read_text()
    assert report("--compare", DATA, DATA, "--out", tmp_path / "same.html").returncode == 0
    assert report(DATA, new, "--out", tmp_path / "report.html").returncode == 0, "only --compare judges"
    assert "needs two results" in report("--compare", DATA).stderr


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"schema": 1, "experim', "line 2: is not JSON"),
        ('{"hello": "world"}', "line 2: has no field 'schema'"),
        ('{"schema": 99}', "line 2: schema 99 is unknown; this version reads schema 1"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    first = json.dumps(rows()[0])
    (tmp_path / "results.jsonl").write_text(f"{first}\n{line}\n")
    shutil.copy(DATA / "experiments.json", tmp_path)
    result = report(tmp_path, "--out", tmp_path / "report.html")
    assert result.returncode == 2
    assert message in result.stderr and str(tmp_path / "results.jsonl") in result.stderr
    assert not (tmp_path / "report.html").exists()


def test_what_is_missing_is_named(tmp_path):
    assert report().returncode == 2
    assert "cannot be read" in report(tmp_path / "none.jsonl").stderr
    (tmp_path / "results.jsonl").write_text(json.dumps(rows()[0] | {"experiment": "someone's own"}) + "\n")
    result = report(tmp_path)
    assert result.returncode == 2 and "someone's own" in result.stderr and "experiments.json" in result.stderr


def test_rows_alone_are_drawn_as_this_version_does(tmp_path):
    everything = [row for row in rows() if row["experiment"] == "sequence"]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in everything))
    result = report(tmp_path, "--out", tmp_path / "report.html")
    assert result.returncode == 0 and "1 experiment, " in result.stdout, result.stderr


def test_a_page_that_cannot_be_written_is_an_error(tmp_path):
    result = report(DATA, "--out", tmp_path / "no" / "folder.html")
    assert result.returncode == 2 and "--out" in result.stderr


# --- in a browser -------------------------------------------------------------------------------------


FRAME = """<!doctype html><body style="margin:0">
<iframe src="{name}" style="border:0;width:{width}px;height:{height}px"></iframe>
<script>
addEventListener("message", (event) => {{
  const place = document.createElement("pre");
  place.id = "probe";
  place.textContent = event.data;
  document.body.append(place);
}});
</script>"""


def browse(html, width, *options, height=9000):
    """Opens a page in a frame: a window has a least width, a frame can be as narrow as a phone."""
    frame = html.with_suffix(".frame.html")
    frame.write_text(FRAME.format(name=html.name, width=width, height=height))
    return subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
         "--virtual-time-budget=6000", f"--window-size={max(width, 600)},{height}", *options,
         frame.resolve().as_uri()],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip


def variant(page, name, theme, watcher=PROBE):
    """A copy of the page that watches itself."""
    text = page.read_text().replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">')
    text = text.replace("<style>", WATCH + "<style>", 1).replace("</body>", watcher + "</body>")
    copy = page.with_name(name + ".html")
    copy.write_text(text)
    return copy


def probe(html, width):
    result = browse(html, width, "--dump-dom")
    found = re.search(r'<pre id="probe">(.*?)</pre>', result.stdout, re.DOTALL)
    assert found, result.stderr[-2000:]
    return json.loads(unescape(found[1]))


def drawn(html):
    return json.loads(re.search(r'id="charts">(.*?)</script>', html.read_text(), re.DOTALL)[1])


def expected_series(html):
    """Figure and number of series of every panel, from the data in the page."""
    data = drawn(html)
    return [(figure, len(panel["series"])) for figure, all in data.items() for panel in all["panels"]]


@needs_browser
@pytest.mark.parametrize("theme, width", [("light", 1200), ("dark", 1200), ("light", 390)])
@pytest.mark.parametrize("which", ["page", "comparison"])
def test_every_chart_is_drawn(request, which, theme, width):
    source = request.getfixturevalue(which)
    seen = probe(variant(source, f"{source.stem}-{theme}-{width}", theme), width)
    assert seen["view"] == width
    assert seen["problems"] == []
    assert [(chart["figure"], chart["series"]) for chart in seen["charts"]] == expected_series(source)
    for chart in seen["charts"]:
        assert chart["colors"] > chart["series"], chart
    assert seen["width"] <= seen["view"], "the page is wider than the window"
    assert seen["axes"] == [], "names of ticks collide"
    assert seen["from_zero"], "bars start at zero"


@needs_browser
def test_series_and_missing_points_are_counted(page, comparison):
    one = dict(expected_series(page))
    ours = lambda html, figure: sum(not series.get("points") for series in drawn(html)[figure]["panels"][0]["series"])  # noqa: E731
    assert ours(page, "sequence-1") == 3 and ours(comparison, "sequence-1") == 6
    assert one["traffic-2"] == 3 + 3, "three algorithms and three lines of theory"
    seen = probe(variant(page, "absent", "light"), 1200)
    absent = {chart["figure"]: chart["absent"] for chart in seen["charts"]}
    assert absent["out_of_memory-1"] == sum(
        row["experiment"] == "out_of_memory" and row["status"] == "out_of_memory" for row in rows()
    )
    assert absent["accuracy-1"] > 0


@needs_browser
def test_a_line_of_one_point_has_a_marker(pages):
    """Traffic counted at one tile size of three, as where tiles are fixed; and as bars beside the predicted one."""
    base = rows()[0] | {"status": "ok", "reason": None, "algorithm": "flash2", "direction": "forward"}
    made = [
        base | {
            "experiment": "block_size", "requested_block_k": keys, "tile_traffic_bytes": 2**30 // keys,
            "bound_traffic_bytes": 2**29 // keys, "measured_traffic_bytes": 2**20 if keys == 64 else None,
        }
        for keys in (32, 64, 128)
    ]  # fmt: skip
    for name in ("standard", "flash2"):
        made.append(base | {"experiment": "traffic", "algorithm": name, "measured_traffic_bytes": 2**20})
    folder = pages / "lone"
    folder.mkdir(exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    result = report(folder, "--out", folder / "report.html")
    assert result.returncode == 0, result.stderr
    seen = probe(variant(folder / "report.html", "lone", "light"), 1200)
    assert seen["problems"] == []
    lone = {chart["figure"]: chart["lone"] for chart in seen["charts"]}
    assert lone["block_size-2"] == [["memory traffic (measured)", True]]
    assert [label for label, _ in lone["traffic-2"]] == [
        f"{name} · {what} traffic" for name in ("standard", "flash2") for what in ("predicted", "measured")
    ]


def rows_of_training():
    """A few of each experiment of `python -m tessera.lab`, as if measured: standard does not fit at the last point."""
    base = rows()[0] | {"status": "ok", "reason": None}
    made = []
    for depth, width, length in itertools.product((2, 4), (128, 256), (512, 1024, 2048)):
        for share, name in enumerate(("standard", "flash"), 1):
            fits = name == "flash" or length * width < 2048 * 256
            made.append(base | {
                "experiment": "training", "algorithm": name, "direction": "forward + backward", "q_length": length,
                "k_length": length, "embedding": width, "depth": depth, "status": "ok" if fits else "out_of_memory",
                "median_ms": length * depth / share, "peak_bytes": length * width * depth, "memory_used_bytes": width * depth,
                "time_saved_percent": 50 if share == 2 else None, "memory_saved_percent": 0 if share == 2 else None,
            })  # fmt: skip
    for step in range(0, 40, 2):
        for name in ("standard", "flash", "block_sparse"):
            made.append(base | {
                "experiment": "gpt", "algorithm": name, "preset": "tiny", "step": step, "loss": 6 - step / 10,
                "train_seconds": step * 1.1, "tokens_per_second": 1000.0, "peak_bytes": 2**20,
            })  # fmt: skip
    for direction, name in itertools.product(("forward", "backward"), ("tessera", "sdpa_flash", "sdpa_cudnn")):
        status = "unsupported" if name == "sdpa_cudnn" else "ok"
        made.append(base | {"experiment": "peers", "algorithm": name, "direction": direction, "status": status})
    return made


@needs_browser
@pytest.mark.parametrize("width", [1200, 360])
def test_experiments_of_python_are_drawn(pages, width):
    folder = pages / "training"
    folder.mkdir(exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of_training()))
    result = report(folder, "--out", folder / "report.html")
    assert result.returncode == 0 and "3 experiments, 14 figures" in result.stdout, result.stderr
    seen = probe(variant(folder / "report.html", f"training-{width}", "light"), width)
    assert seen["problems"] == [] and seen["width"] <= seen["view"]
    assert [(chart["figure"], chart["series"]) for chart in seen["charts"]] == expected_series(folder / "report.html")
    assert sum(chart["absent"] for chart in seen["charts"] if chart["figure"] == "training-1") == 2
    text = unescape(re.sub(r"<[^>]*>", "", (folder / "report.html").read_text()))
    assert "On average over 12 points, training with flash attention saves 50.0 % of the time" in text
    assert "flash fits sequences 2.0 times as long as standard (layers 2)" in text


@needs_browser
@pytest.mark.parametrize("name, theme, width", [("wide", "light", 1200), ("dark", "dark", 1200), ("phone", "light", 390)])
def test_layouts_are_photographed(page, name, theme, width):
    picture = page.with_name(f"{name}.png")
    picture.unlink(missing_ok=True)
    browse(variant(page, name, theme), width, f"--screenshot={picture.resolve()}")
    assert picture.stat().st_size > 50_000


@needs_browser
def test_paper_is_light_and_the_screen_comes_back(page):
    seen = probe(variant(page, "paper", "dark", PAPER), 1200)
    assert seen["screen"]["theme"] == seen["after"]["theme"] == "dark" and seen["paper"]["theme"] == "light"
    assert seen["paper"]["problems"] == []
    panels = [figure for figure, _ in expected_series(page)]
    expected = [[680, 215, False] if panels.count(figure) == 1 else [335, 190, False] for figure in panels]
    assert seen["paper"]["shapes"] == expected
    assert seen["screen"]["shapes"] == seen["after"]["shapes"] != seen["paper"]["shapes"]


@needs_browser
def test_page_prints(page):
    paper = page.with_name("report.pdf")
    paper.unlink(missing_ok=True)
    subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=6000",
         f"--print-to-pdf={paper.resolve()}", page.resolve().as_uri()],
        capture_output=True, timeout=180, check=True,
    )  # fmt: skip
    assert paper.read_bytes().startswith(b"%PDF")
