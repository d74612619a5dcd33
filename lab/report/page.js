// Draws the charts of a report from the JSON beside them. Sentences and tables are already in the page.
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("charts").textContent);
  // Curves that should coincide: each is dashed over those before it.
  for (const figure of Object.values(figures).filter((one) => one.overlaid)) {
    for (const panel of figure.panels) panel.series.forEach((series, index) => { series.dash = index; series.order = -index; });
  }
  const root = document.documentElement;
  const dashes = [[], [7, 4], [2, 3], [10, 3, 2, 3], [4, 6], [14, 4]];
  const colorCount = 13;  // --c0 to --c12
  const shapes = ["circle", "rect", "triangle", "rectRot", "star", "crossRot"];
  const words = {out_of_memory: "out of memory", no_value: "nothing recorded", zero: "zero"};
  const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const colorOf = (series) => series.theory ? style("--soft") : style(`--c${series.color % colorCount}`);
  // A colour that comes around again gets other dashes.
  const dashIndex = (series) => (series.dash + 3 * Math.floor(series.color / colorCount)) % dashes.length;
  const dashOf = (series) => dashes[dashIndex(series)];
  const mostTicks = 16;  // of an axis that names every value
  const number = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e7 || size < 1e-3) return value.toExponential(0).replace("e+", "e");
    return String(Number(value.toPrecision(3)));
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

  function dataset(figure, series) {
    const bars = figure.kind === "bars" && !series.theory;
    const color = colorOf(series);
    const place = (mark) => figure.x.numeric && !bars ? figure.x.values[mark.x] : figure.x.labels[mark.x];
    const present = series.marks.filter((mark) => mark.y !== null);
    const absent = series.marks.filter((mark) => mark.y === null).map((mark) => ({...mark, at: place(mark)}));
    const shared = {
      label: series.name, absent, order: series.order || 0, type: bars ? "bar" : "line", borderColor: color,
      data: series.marks.map((mark) => ({x: place(mark), y: mark.y, detail: mark.detail})),
    };
    if (bars) {
      return {...shared, backgroundColor: color + (series.dash ? "77" : "dd"), borderWidth: series.dash ? 1.5 : 0, borderRadius: 3,
              data: figure.x.labels.map((label, index) => {
                const mark = series.marks.find((one) => one.x === index);
                return {x: label, y: mark ? mark.y : null, detail: mark && mark.detail};
              })};
    }
    const lone = present.length === 1;  // no line shows it
    return {...shared, backgroundColor: color, borderDash: dashOf(series), borderWidth: series.theory ? 1.3 : 2.2,
            pointRadius: lone ? 5 : series.theory ? 0 : present.length > 40 ? 1.5 : 3.5, pointHoverRadius: 6,
            pointBorderWidth: lone ? 2 : 1, pointStyle: shapes[dashIndex(series)], spanGaps: false, tension: 0};
  }

  function horizontalAxis(figure) {
    const common = {title: {display: true, text: figure.x.label, color: style("--soft")},
                    ticks: {color: style("--soft"), maxRotation: 45}, grid: {color: style("--line"), drawOnChartArea: false}};
    if (!figure.x.numeric || figure.kind === "bars") return {...common, type: "category", offset: true, labels: figure.x.labels};
    const {values} = figure.x;
    const low = values[0], high = values[values.length - 1];
    const every = figure.x.log || values.length <= mostTicks;
    const pad = figure.x.log ? Math.pow(high / low, 0.03) : (high - low) * 0.03;
    return {
      ...common, type: figure.x.log ? "logarithmic" : "linear",
      min: figure.x.log ? low / pad : low - pad, max: figure.x.log ? high * pad : high + pad,
      ...(every && {afterBuildTicks: (axis) => { axis.ticks = values.map((value) => ({value})); }}),
      ticks: {...common.ticks, autoSkip: true, includeBounds: every,
              callback: (value) => every ? figure.x.labels[values.indexOf(value)] ?? "" : number(value)},
    };
  }

  function verticalAxis(figure) {
    // All panels of a figure share one range, so that they can be compared.
    const all = figure.panels.flatMap((panel) => panel.series).flatMap((series) => series.marks)
      .map((mark) => mark.y).filter((value) => value !== null);
    // A logarithmic axis names 1, 10, 100; over less than two decades also 2 and 5.
    const wide = all.length > 0 && Math.max(...all) / Math.min(...all) > 100;
    const named = (value) => (wide ? [1] : [1, 2, 5])
      .includes(Math.round(value / Math.pow(10, Math.floor(Math.log10(value) + 1e-9))));
    return {
      type: figure.y.log ? "logarithmic" : "linear", beginAtZero: !figure.y.log && !figure.overlaid,
      suggestedMin: figure.y.log && all.length ? Math.min(...all) * 0.7 : undefined,
      suggestedMax: all.length ? Math.max(...all) : undefined,
      title: {display: true, text: figure.y.label, color: style("--soft")},
      grid: {color: (line) => !figure.y.log || (line.tick && named(line.tick.value)) ? style("--line") : "transparent"},
      ticks: {color: style("--soft"), callback: (value) => figure.y.log && !named(value) ? "" : number(value)},
    };
  }

  // With a size, for paper: drawn once, in that many pixels, where otherwise it follows the window.
  function drawPanel(canvas, figure, panel, size) {
    if (size) [canvas.width, canvas.height] = size;
    return new Chart(canvas, {
      type: figure.kind === "bars" ? "bar" : "line",
      data: {datasets: panel.series.map((series) => dataset(figure, series))},
      plugins: [absentPoints],
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
              label: (item) => `${item.dataset.label}: ${number(item.parsed.y)} ${figure.y.unit}`,
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

  function swatch(figure, series) {
    const color = colorOf(series);
    return figure.kind === "bars" && !series.theory
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
    for (const details of document.querySelectorAll("details")) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "save as CSV";
      button.addEventListener("click", () => {
        const quoted = (text) => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
        const lines = Array.from(details.querySelectorAll("tr"), (row) =>
          Array.from(row.cells, (cell) => quoted(cell.textContent)).join(","));
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob([lines.join("\r\n") + "\r\n"], {type: "text/csv"}));
        link.download = `${details.closest("figure").id}.csv`;
        link.click();
        URL.revokeObjectURL(link.href);
      });
      details.append(button);
    }
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
})();
