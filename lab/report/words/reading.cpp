#include "lab/report/words/reading.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/report/figure/notes.h"
#include "lab/report/words/parts.h"
#include "lab/report/words/wording.h"
#include "lab/terminal/text.h"

namespace tessera::lab::report {
namespace {

constexpr std::size_t kMostSentences = 2;

std::size_t measured_points(const DrawnFigure& figure) {
  std::size_t count = 0;
  for (const Panel& panel : figure.panels) {
    for (const Series& series : panel.series) {
      for (const Mark& mark : series.marks) count += mark.y && !series.theory ? 1 : 0;
    }
  }
  return count;
}

// Columns of a table that a comparison mentions: times first, then rates and memory.
std::vector<const DrawnFigure*> telling_columns(const DrawnFigure& figure) {
  std::vector<const DrawnFigure*> columns;
  auto add = [&](const DrawnFigure& column) {
    const bool bound =
        column.y.field == "minimum_traffic_bytes" || column.y.field == "standard_traffic_bytes";
    if (column.y.measure != Measure::other && !bound && measured_points(column) > 0)
      columns.push_back(&column);
  };
  add(figure);
  for (const DrawnFigure& column : figure.columns) add(column);
  std::stable_sort(columns.begin(), columns.end(), [](const DrawnFigure* a, const DrawnFigure* b) {
    return (a->y.measure == Measure::time) > (b->y.measure == Measure::time);
  });
  return columns;
}

// Why a figure has no sentence: nothing was measured, or only points of one series.
std::string nothing_to_compare(const DrawnFigure& figure) {
  const std::size_t count = measured_points(figure);
  if (count == 0) return "Nothing could be measured here; the notes say why.";
  std::string why;
  for (const Panel& panel : figure.panels) {
    for (const Series& series : panel.series) {
      for (const Mark& mark : series.marks) {
        if (!mark.y && !mark.reason.empty() && why.empty())
          why = fmt::format(" ({})", short_reason(mark.reason));
      }
    }
  }
  return fmt::format("Only {} {} measured, so there is nothing to compare{}.", counted(count, "point"),
                     count == 1 ? "was" : "were", why);
}

// "L1 holds 32.0 KiB at 310 GB/s and memory holds 15.6 GiB at 41.0 GB/s."
Sentences hierarchy_sentence(const DrawnFigure& figure) {
  std::vector<std::string> parts;
  auto value = [](const DrawnFigure& one, std::size_t x) -> const Mark* {
    for (const Panel& panel : one.panels) {
      for (const Series& series : panel.series) {
        if (const Mark* mark = series.at(x); mark != nullptr && mark->y) return mark;
      }
    }
    return nullptr;
  };
  for (std::size_t x = 0; x < figure.x.labels.size(); ++x) {
    const Mark* size = value(figure, x);
    const Mark* speed = figure.columns.empty() ? nullptr : value(figure.columns.front(), x);
    if (size == nullptr || speed == nullptr) continue;
    parts.push_back(fmt::format("{} holds {} at {}", figure.x.labels[x], quantity_text(figure.y, *size->y),
                                quantity_text(figure.columns.front().y, *speed->y)));
  }
  if (parts.empty()) return {};
  if (parts.size() > 2) parts = {parts.front(), parts.back()};
  return {sentence(listed(parts)) + "."};
}

void append(Sentences& all, Sentences more) {
  for (std::string& one : more) {
    if (all.size() < kMostSentences && !one.empty()) all.push_back(std::move(one));
  }
}

// Of bars that stand on each other, the whole and its largest part: "standard takes 12.0 ms, of
// which softmax takes 5.00 ms (42 %), and flash2 takes 4.00 ms."
Sentences stack_sentence(const DrawnFigure& figure) {
  if (!figure.spec.stack || figure.panels.empty()) return {};
  std::vector<std::string> parts;
  for (std::size_t x = 0; x < figure.x.labels.size(); ++x) {
    double sum = 0, most = 0;
    std::size_t count = 0;
    std::string largest;
    for (const Series& series : figure.panels.front().series) {
      const Mark* mark = series.at(x);
      if (mark == nullptr || !mark->y) continue;
      sum += *mark->y, ++count;
      if (*mark->y > most) most = *mark->y, largest = series.primary;
    }
    if (count == 0) continue;
    std::string text = fmt::format("{} takes {}", figure.x.labels[x], quantity_text(figure.y, sum));
    if (count > 1)
      text += fmt::format(" in {} parts ({} the largest, {:.0f} %)", count, largest, 100 * most / sum);
    parts.push_back(std::move(text));
  }
  return parts.empty() ? Sentences{} : Sentences{sentence(listed(parts)) + "."};
}

Reading read_table(const DrawnFigure& figure) {
  Reading reading;
  for (const DrawnFigure* column : telling_columns(figure)) {
    const std::vector<Context> contexts = contexts_of(*column);
    append(reading.sentences, comparison_sentence(*column, contexts));
    if (reading.sentences.empty()) append(reading.sentences, missing_sentence(*column, contexts));
    for (Comparison& one : comparisons_of(*column, contexts)) {
      one.context += (one.context.empty() ? "" : ", ") + column->y.symbol;
      reading.comparisons.push_back(std::move(one));
    }
    if (reading.baseline.empty() && !contexts.empty())
      reading.baseline = baseline_of(contexts.front().members).primary;
  }
  return reading;
}

}  // namespace

Reading reading_of(const DrawnFigure& figure) {
  Reading reading;
  const std::vector<Context> contexts = contexts_of(figure);
  if (figure.spec.kind == FigureKind::heatmap) {
    append(reading.sentences, cell_sentences(figure));
  } else if (figure.spec.kind == FigureKind::hierarchy) {
    append(reading.sentences, hierarchy_sentence(figure));
  } else if (figure.y.measure == Measure::loss) {
    append(reading.sentences, loss_sentences(figure));
  } else if (figure.y.measure == Measure::saving) {
    append(reading.sentences, saving_sentences(figure));
  } else if (figure.spec.kind == FigureKind::table) {
    reading = read_table(figure);
  } else {
    append(reading.sentences, stack_sentence(figure));
    append(reading.sentences, bound_sentence(figure));
    if (!figure.spec.stack) {
      append(reading.sentences, sentence_along_axis(figure, contexts));
      append(reading.sentences, comparison_sentence(figure, contexts));
    }
    append(reading.sentences, missing_sentence(figure, contexts));
    append(reading.sentences, crossing_sentence(figure, contexts));
    append(reading.sentences, shape_sentence(figure, contexts));
    if (!figure.spec.stack) reading.comparisons = comparisons_of(figure, contexts);
    if (!contexts.empty()) reading.baseline = baseline_of(contexts.front().members).primary;
  }
  if (reading.sentences.empty()) reading.sentences.push_back(nothing_to_compare(figure));
  return reading;
}

}  // namespace tessera::lab::report
