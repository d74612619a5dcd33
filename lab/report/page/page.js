// Draws the charts of a report from the JSON beside them. Sentences and tables are already in the page.
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("charts").textContent);
  // Curves of a loss should coincide: each is dashed over those before it.
  for (const figure of Object.values(figures).filter((one) => one.overlaid)) {
    for (const panel of figure.panels) panel.series.forEach((series, index) => { series.dash = index; series.order = -index; });
  }
  const root = document.documentElement;
  const dashes = [[], [7, 4], [2, 3], [10, 3, 2, 3], [4, 6], [14, 4]];
  const methodColors = 13;  // --c0 to --c12 are methods, those behind anything else
  const otherColors = 6;
  const shapes = ["circle", "rect", "triangle", "rectRot", "star", "crossRot"];
  const words = {out_of_memory: "out of memory", no_value: "nothing recorded"};
  const mostTicks = 16;  // of an axis that names every value
  const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const colorIndex = (color) => color < methodColors ? color : methodColors + (color - methodColors) % otherColors;
  const colorOf = (series) => series.theory ? style("--soft") : style(`--c${colorIndex(series.color)}`);
  // A colour that comes around again gets other dashes.
  const dashIndex = (series) => (series.dash + 3 * Math.floor(Math.max(0, series.color - methodColors) / otherColors)) % dashes.length;
  const dashOf = (series) => series.twin ? [5, 6] : dashes[dashIndex(series)];

  // --- numbers as people read them ---------------------------------------------------------------------
  const number = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e7 || size < 1e-3) return value.toExponential(0).replace("e+", "e");
    return String(Number(value.toPrecision(3)));
  };
  // "16k" for a length of 16384 tokens, "1.5k" for 1536.
  const short = (label) => {
    const value = Number(label);
    if (!(value >= 1024) || value !== Math.round(value)) return label;
    if (value % 1024 === 0) return `${value / 1024}k`;
    return value % 512 === 0 ? `${value / 1024}k` : label;
  };
  // Of a logarithmic axis: "16 MiB", "100 µs"; `scale` converts the row's bytes and milliseconds.
  const withUnit = (value, axis) => {
    const raw = value / axis.scale;
    const named = (units, base) => {
      let index = 0;
      while (index + 1 < units.length && raw >= units[index + 1][1] * base * 0.999) ++index;
      return `${Number((raw / (units[index][1] * base)).toPrecision(3))} ${units[index][0]}`;
    };
    if (axis.measure === "memory") return named([["B", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30], ["TiB", 2 ** 40]], 1);
    if (axis.measure === "time") return named([["ns", 1e-6], ["µs", 1e-3], ["ms", 1], ["s", 1e3]], 1);
    return number(value);
  };

  // --- zero on a logarithmic axis ----------------------------------------------------------------------
  // Zero has a place of its own, below everything else: a floor that the axis calls 0.
  const valuesOf = (figure) => figure.panels.flatMap((panel) => panel.series)
    .flatMap((series) => [...series.marks.flatMap((mark) => [mark.y, mark.low, mark.high]), ...(series.points || []).map((point) => point.y)])
    .filter((value) => value !== null && value !== undefined);
  for (const figure of Object.values(figures)) {
    const all = valuesOf(figure);
    const positive = all.filter((value) => value > 0);
    figure.range = all.length ? [Math.min(...all), Math.max(...all)] : [0, 1];
    figure.least = positive.length ? Math.min(...positive) : 1;
    figure.floor = figure.y.log && all.some((value) => value <= 0) ? figure.least / 8 : 0;
  }
  const height = (figure, value) => value === null || !figure.y.log || value > 0 ? value : figure.floor;

  // --- plugins: what Chart.js does not draw -------------------------------------------------------------
  // Quartiles: a band behind lines, whiskers on bars and noisy points; "~" over noisy points.
  const spread = {
    id: "spread",
    beforeDatasetsDraw(chart) {
      const {ctx, scales} = chart;
      chart.data.datasets.forEach((set, index) => {
        if (!chart.isDatasetVisible(index) || set.type === "bar" || set.theory) return;
        const points = set.data.map((mark, i) => ({mark, point: chart.getDatasetMeta(index).data[i]}))
          .filter(({mark, point}) => mark.low !== undefined && mark.y !== null && point);
        if (points.length < 2) return;
        ctx.save();
        ctx.globalAlpha = 0.16;
        ctx.fillStyle = set.borderColor;
        ctx.beginPath();
        points.forEach(({mark, point}, i) => ctx[i ? "lineTo" : "moveTo"](point.x, scales.y.getPixelForValue(mark.high)));
        points.reverse().forEach(({mark, point}) => ctx.lineTo(point.x, scales.y.getPixelForValue(mark.low)));
        ctx.fill();
        ctx.restore();
      });
    },
    afterDatasetsDraw(chart) {
      const {ctx, scales} = chart;
      ctx.save();
      ctx.textAlign = "center";
      ctx.font = `700 13px ${Chart.defaults.font.family}`;
      const marked = new Set();  // one "~" where several would lie on one another
      chart.data.datasets.forEach((set, index) => {
        if (!chart.isDatasetVisible(index)) return;
        set.data.forEach((mark, i) => {
          const point = chart.getDatasetMeta(index).data[i];
          if (mark.low === undefined || mark.y === null || !point) return;
          const top = scales.y.getPixelForValue(mark.high), bottom = scales.y.getPixelForValue(mark.low);
          if (bottom - top >= 3) {
            ctx.strokeStyle = set.type === "bar" ? style("--ink") : set.borderColor;
            ctx.lineWidth = 1.2;
            ctx.beginPath();
            ctx.moveTo(point.x, top);
            ctx.lineTo(point.x, bottom);
            for (const end of [top, bottom]) { ctx.moveTo(point.x - 3, end); ctx.lineTo(point.x + 3, end); }
            ctx.stroke();
          }
          const above = Math.max(top - 3, chart.chartArea.top + 9), key = `${Math.round(point.x / 6)} ${Math.round(above / 9)}`;
          if (mark.noisy && !marked.has(key)) {
            marked.add(key);
            ctx.fillStyle = set.type === "bar" ? style("--ink") : set.borderColor;
            ctx.fillText("~", point.x, above);
          }
        });
      });
      ctx.restore();
    },
  };

  // Points that were tried and have no value: hollow, on the horizontal axis, one above the other.
  const absentPoints = {
    id: "absentPoints",
    afterDatasetsDraw(chart) {
      const used = new Map();
      const {ctx, chartArea, scales} = chart;
      chart.data.datasets.forEach((dataset, index) => {
        if (!chart.isDatasetVisible(index)) return;
        for (const mark of dataset.absent) {
          const bar = chart.getDatasetMeta(index).data[mark.x];
          const x = dataset.type === "bar" && bar ? bar.x : scales.x.getPixelForValue(mark.at);
          const key = Math.round(x);
          const above = used.get(key) || 0;
          used.set(key, above + 1);
          const y = chartArea.bottom - 7 - 13 * above;
          ctx.save();
          ctx.strokeStyle = dataset.borderColor;
          ctx.fillStyle = style("--card");
          ctx.lineWidth = 2;
          ctx.beginPath();
          if (mark.status === "out_of_memory") ctx.arc(x, y, 5, 0, 2 * Math.PI);
          else ctx.rect(x - 4.5, y - 4.5, 9, 9);
          ctx.fill();
          ctx.stroke();
          ctx.restore();
        }
      });
    },
  };

  // --- data ---------------------------------------------------------------------------------------------
  function dataset(figure, series) {
    const dots = figure.kind === "dots" && !series.theory && !series.points;  // side by side, as bars are
    const bars = dots || figure.kind === "bars" && !series.theory && !series.points;
    const color = colorOf(series);
    const numeric = figure.x.numeric && figure.kind === "lines";
    const place = (mark) => numeric ? figure.x.values[mark.x] : figure.x.labels[mark.x];
    if (series.points) {  // a study
      return {label: series.name, absent: [], theory: true, type: "line", borderColor: color, backgroundColor: style("--card"), borderWidth: 1.2,
              borderDash: [1, 4], pointStyle: "rectRot", pointRadius: 6, pointBorderWidth: 2, pointHoverRadius: 7, order: -10,
              data: series.points.map((point) => ({x: numeric ? point.x : String(point.x), y: height(figure, point.y), value: point.y}))
                .filter((point) => numeric || figure.x.labels.includes(point.x))};
    }
    const thin = Math.pow(Math.max(figure.range[1], figure.least) / figure.least, 0.012);
    const drawn = (y) => dots && y !== null ? [height(figure, y) / thin, height(figure, y) * thin] : height(figure, y);
    const value = (mark) => mark && {y: drawn(mark.y), value: mark.y, low: mark.low, high: mark.high, noisy: mark.noisy, detail: mark.detail};
    const present = series.marks.filter((mark) => mark.y !== null);
    const absent = series.marks.filter((mark) => mark.y === null).map((mark) => ({...mark, at: place(mark)}));
    const shared = {
      label: series.name, absent, theory: series.theory, order: series.twin ? -1 : series.order || 0, type: bars ? "bar" : "line", borderColor: color,
      data: series.marks.map((mark) => ({x: place(mark), ...value(mark)})),
    };
    if (bars) {
      return {...shared, backgroundColor: color + (series.dash ? "77" : "dd"), borderWidth: series.dash ? 1.5 : 0, borderSkipped: !dots && "start", borderRadius: figure.stack ? 0 : 3,
              stack: figure.stack ? "all" : undefined,
              data: figure.x.labels.map((label, index) => ({x: label, y: null, ...value(series.marks.find((one) => one.x === index))}))};
    }
    const lone = present.length === 1;  // no line shows it
    return {...shared, backgroundColor: color, borderDash: dashOf(series), borderWidth: series.theory ? 1.3 : series.twin ? 2.6 : 2.2,
            pointRadius: lone ? 5 : series.theory ? 0 : present.length > 40 ? 1.5 : 3.5, pointHoverRadius: 6,
            pointBorderWidth: lone ? 2 : 1, pointStyle: shapes[dashIndex(series)], spanGaps: false, tension: 0};
  }

  // --- axes ---------------------------------------------------------------------------------------------
  function horizontalAxis(figure) {
    const common = {title: {display: true, text: figure.x.label, color: style("--soft")},
                    ticks: {color: style("--soft"), maxRotation: 45, autoSkipPadding: 10},
                    grid: {color: style("--line"), drawOnChartArea: false}};
    if (!figure.x.numeric || figure.kind !== "lines") {
      return {...common, type: "category", offset: true, labels: figure.x.labels, stacked: figure.stack,
              ticks: {...common.ticks, callback(value) { return short(this.getLabelForValue(value)); }}};
    }
    const {values} = figure.x;
    const places = [...values, ...figure.panels.flatMap((panel) => panel.series).flatMap((series) => (series.points || []).map((point) => point.x))];
    const low = Math.min(...places), high = Math.max(...places);
    const every = figure.x.log || values.length <= mostTicks;
    const pad = figure.x.log ? Math.pow(high / low, 0.03) : (high - low) * 0.03;
    return {
      ...common, type: figure.x.log ? "logarithmic" : "linear",
      min: figure.x.log ? low / pad : Math.min(low, low - pad), max: figure.x.log ? high * pad : high + pad,
      ...(every && {afterBuildTicks: (axis) => { axis.ticks = [...new Set(places)].sort((a, b) => a - b).map((value) => ({value})); }}),
      ticks: {...common.ticks, autoSkip: true, includeBounds: every,
              callback: (value) => every ? short(figure.x.labels[values.indexOf(value)] ?? String(value)) : number(value)},
    };
  }

  // Places of a logarithmic axis that have a name: powers of ten, or of two for bytes, at most seven.
  function namedPlaces(figure, low, high) {
    const memory = figure.y.measure === "memory";
    const base = memory ? 2 : 10, unit = memory ? 1 / figure.y.scale : 1;
    const first = Math.floor(Math.log(low * unit) / Math.log(base)), last = Math.ceil(Math.log(high * unit) / Math.log(base));
    const step = Math.max(1, Math.ceil((last - first) / 7));
    const places = [];
    for (let power = Math.ceil(first / step) * step; power <= last; power += step) {
      for (const digit of !memory && last - first <= 2 ? [1, 2, 5] : [1]) places.push(digit * Math.pow(base, power) / unit);
    }
    return places.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  }

  function verticalAxis(figure) {
    // All panels of a figure share one range, so that they can be compared.
    const [low, high] = figure.range;
    const common = {title: {display: true, text: figure.y.label, color: style("--soft")}, grid: {color: style("--line")},
                    stacked: figure.stack};
    if (!figure.y.log) {
      return {...common, type: "linear", beginAtZero: !figure.overlaid, ...(figure.stack ? {} : {suggestedMin: low, suggestedMax: high}),
              ticks: {color: style("--soft"), maxTicksLimit: 8, callback: (value) => number(value)}};
    }
    const bottom = (figure.floor || figure.least) / 1.5, top = Math.max(high, figure.least) * 1.5;
    const places = namedPlaces(figure, figure.floor ? figure.least : bottom, top);
    return {
      ...common, type: "logarithmic", min: bottom, max: top,
      afterBuildTicks: (axis) => { axis.ticks = [...(figure.floor ? [figure.floor] : []), ...places].map((value) => ({value})); },
      ticks: {color: style("--soft"), autoSkip: false, callback: (value) => value === figure.floor ? "0" : withUnit(value, figure.y)},
    };
  }

  // With a size, for paper: drawn once, in that many pixels, where otherwise it follows the window.
  function drawPanel(canvas, figure, panel, size) {
    if (size) [canvas.width, canvas.height] = size;
    return new Chart(canvas, {
      type: figure.kind === "lines" ? "line" : "bar",
      data: {datasets: panel.series.map((series) => dataset(figure, series))},
      plugins: [spread, absentPoints],
      options: {
        animation: false, responsive: !size, maintainAspectRatio: false, devicePixelRatio: size ? 3 : undefined,
        parsing: {xAxisKey: "x", yAxisKey: "y"},
        interaction: {mode: "nearest", axis: "x", intersect: false},
        font: {family: "inherit"},
        scales: {x: horizontalAxis(figure), y: verticalAxis(figure)},
        plugins: {
          legend: {display: false},
          tooltip: {
            itemSort: (a, b) => b.parsed.y - a.parsed.y,
            callbacks: {
              title: (items) => items.length ? `${figure.x.symbol} ${items[0].raw.x}` : "",
              label: (item) => `${item.dataset.label}: ${number(item.raw.value)} ${figure.y.unit}${item.raw.noisy ? " (noisy)" : ""}`,
              afterLabel: (item) => item.raw.detail || "",
              footer: (items) => items.length === 0 ? "" : items[0].chart.data.datasets.flatMap((set) =>
                set.absent.filter((mark) => mark.at === items[0].raw.x)
                  .map((mark) => `${set.label}: ${words[mark.status] || mark.status}`)),
            },
          },
        },
      },
    });
  }

  // --- legend -------------------------------------------------------------------------------------------
  function swatch(figure, series) {
    const color = colorOf(series);
    if (series.points)
      return `<svg width="14" height="14"><path d="M7 1.5 12.5 7 7 12.5 1.5 7Z" fill="none" stroke="${color}" stroke-width="2"/></svg>`;
    if (figure.kind === "dots") return `<svg width="14" height="12"><rect y="4" width="14" height="5" rx="2" fill="${color}"/></svg>`;
    return figure.kind !== "lines" && !series.theory
      ? `<svg width="14" height="12"><rect width="14" height="12" rx="2" fill="${color}" fill-opacity="${series.dash ? 0.47 : 0.87}"
           stroke="${color}" stroke-width="${series.dash ? 2 : 0}"/></svg>`
      : `<svg width="28" height="12"><line x1="0" x2="28" y1="6" y2="6" stroke="${color}" stroke-width="2.2"
           stroke-dasharray="${dashOf(series).join(" ")}"/></svg>`;
  }

  // One legend for all panels of a figure; a click hides a series in each of them.
  function drawLegend(place, figure, charts) {
    const hidden = new Set(Array.from(place.children).filter((b) => b.ariaPressed === "false").map((b) => b.textContent));
    place.replaceChildren();
    const seen = new Set();
    const apply = (name, visible) => {
      for (const chart of charts) {
        chart.data.datasets.forEach((set, index) => { if (set.label === name) chart.setDatasetVisibility(index, visible); });
        chart.update();
      }
    };
    for (const series of figure.panels.flatMap((panel) => panel.series)) {
      if (seen.has(series.name)) continue;
      seen.add(series.name);
      const button = document.createElement("button");
      button.type = "button";
      button.innerHTML = swatch(figure, series);
      button.append(series.name);
      button.ariaPressed = String(!hidden.has(series.name));
      if (hidden.has(series.name)) apply(series.name, false);
      button.addEventListener("click", () => {
        button.ariaPressed = String(button.ariaPressed === "false");
        apply(series.name, button.ariaPressed === "true");
      });
      place.append(button);
    }
  }

  // One panel takes the width of a page, two share it.
  const paperSize = (figure) => figure.panels.length === 1 ? [680, 215] : [335, 190];

  let charts = [];
  function drawAll(paper) {
    for (const chart of charts) chart.destroy();
    charts = [];
    for (const [id, figure] of Object.entries(figures)) {
      const element = document.getElementById(id);
      const own = Array.from(element.querySelectorAll("canvas"), (canvas, index) =>
        drawPanel(canvas, figure, figure.panels[index], paper && paperSize(figure)));
      drawLegend(element.querySelector(".legend"), figure, own);
      charts.push(...own);
    }
  }

  function offerTables() {
    for (const details of document.querySelectorAll("details.rows")) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "save as CSV";
      button.addEventListener("click", () => {
        const quoted = (text) => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
        const lines = Array.from(details.querySelectorAll("tr"), (row) =>
          Array.from(row.cells, (cell) => quoted(cell.title || cell.textContent)).join(","));
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob([lines.join("\r\n") + "\r\n"], {type: "text/csv"}));
        link.download = `${details.closest("figure").id}.csv`;
        link.click();
        URL.revokeObjectURL(link.href);
      });
      details.append(button);
    }
  }

  // The contents show which section is read.
  function followReading() {
    const links = new Map(Array.from(document.querySelectorAll("nav li a"), (link) => [link.hash.slice(1), link]));
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const link = links.get(entry.target.id);
        if (!link || !entry.isIntersecting) continue;
        for (const other of links.values()) other.classList.toggle("here", other === link);
        const list = link.closest("ol");
        list.scrollLeft = link.offsetLeft - list.offsetLeft - 20;
      }
    }, {rootMargin: "-20% 0px -70% 0px"});
    for (const section of document.querySelectorAll("section[id]")) watcher.observe(section);
  }

  // The system's choice of light or dark, until the reader makes another one. Paper is always light.
  function followTheme() {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const button = document.getElementById("theme");
    let chosen = root.dataset.theme || "";
    const apply = (theme, paper = false) => {
      root.dataset.theme = theme;
      root.style.colorScheme = theme;
      button.textContent = theme === "dark" ? "light" : "dark";
      drawAll(paper);
    };
    const current = () => chosen || (system.matches ? "dark" : "light");
    button.hidden = false;
    button.addEventListener("click", () => { chosen = current() === "dark" ? "light" : "dark"; apply(chosen); });
    system.addEventListener("change", () => apply(current()));
    addEventListener("beforeprint", () => apply("light", true));
    addEventListener("afterprint", () => apply(current()));
    apply(current());
  }

  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  followTheme();
  offerTables();
  followReading();
})();
