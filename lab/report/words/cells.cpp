// Sentences about heat maps.
#include <fmt/format.h>

#include <algorithm>

#include "lab/report/words/parts.h"
#include "lab/report/words/wording.h"
#include "lab/terminal/text.h"

namespace tessera::lab::report {
namespace {

// "15 of 16 points fit, all but N = 2048 with batch 8"
std::string fits_text(const DrawnFigure& figure, const Panel& panel) {
  std::size_t fitting = 0, total = 0, out_of_memory = 0;
  std::string only;
  for (const Series& series : panel.series) {
    for (const Mark& mark : series.marks) {
      ++total;
      if (mark.y) ++fitting;
      else
        only = fmt::format("{} with {}", where(figure.x, figure.x.labels[mark.x]),
                           where(figure.rows, series.name));
      if (mark.status == "out_of_memory") ++out_of_memory;
    }
  }
  if (fitting == total) return total == 1 ? "the only point fits" : fmt::format("all {} points fit", total);
  if (out_of_memory == 0) return fmt::format("{} of {} could be tried", fitting, counted(total, "point"));
  if (fitting == 0) return fmt::format("none of {} fits", counted(total, "point"));
  if (total - fitting == 1) return fmt::format("{} of {} points fit, all but {}", fitting, total, only);
  return fmt::format("{} of {} points fit", fitting, total);
}

Sentences fits_sentences(const DrawnFigure& figure) {
  std::vector<std::string> parts;
  for (const Panel& panel : figure.panels) {
    const std::string text = fits_text(figure, panel);
    parts.push_back(panel.title.empty() ? text : fmt::format("{} ({})", text, panel.title));
  }
  Sentences sentences;
  const std::size_t half = parts.size() > 3 ? (parts.size() + 1) / 2 : parts.size();
  for (std::size_t begin = 0; begin < parts.size() && begin < 2 * half; begin += half) {
    const std::size_t end = std::min({begin + half, begin + 3, parts.size()});
    sentences.push_back(capitalised(listed({parts.begin() + static_cast<std::ptrdiff_t>(begin),
                                            parts.begin() + static_cast<std::ptrdiff_t>(end)})) +
                        ".");
  }
  return sentences;
}

}  // namespace

Sentences cell_sentences(const DrawnFigure& figure) {
  if (figure.y.field == "status") return fits_sentences(figure);
  struct Cell {
    const Panel* panel;
    const Series* series;
    const Mark* mark;
  };
  std::vector<Cell> cells;
  std::size_t missing = 0, total = 0;
  for (const Panel& panel : figure.panels) {
    for (const Series& series : panel.series) {
      for (const Mark& mark : series.marks) {
        ++total;
        if (mark.y) cells.push_back({&panel, &series, &mark});
        if (mark.status == "out_of_memory") ++missing;
      }
    }
  }
  auto place = [&](const Cell& cell) {
    const std::string panel = cell.panel->title.empty() ? "" : cell.panel->title + ", ";
    return fmt::format("{} ({}{}, {})", value_with_spread(figure.y, *cell.mark), panel,
                       where(figure.x, figure.x.labels[cell.mark->x]), where(figure.rows, cell.series->name));
  };
  Sentences sentences;
  if (cells.size() > 1) {
    const auto [low, high] = std::minmax_element(
        cells.begin(), cells.end(), [](const Cell& a, const Cell& b) { return *a.mark->y < *b.mark->y; });
    sentences.push_back(
        fmt::format("{} ranges from {} to {}.", capitalised(figure.y.label), place(*low), place(*high)));
  } else if (cells.size() == 1) {
    sentences.push_back(fmt::format("The only {} measured is {}.", figure.y.symbol, place(cells.front())));
  }
  if (missing > 0)
    sentences.push_back(fmt::format("{} of {} run{} out of memory.", missing, counted(total, "point"),
                                    missing == 1 ? "s" : ""));
  return sentences;
}

}  // namespace tessera::lab::report
