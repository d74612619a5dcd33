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
    if (column.y.measure != Measure::other && !bound && measured_points(column) > 0) columns.push_back(&column);
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
        if (!mark.y && !mark.reason.empty() && why.empty()) why = fmt::format(" ({})", short_reason(mark.reason));
      }
    }
  }
  return fmt::format("Only {} {} measured, so there is nothing to compare{}.", counted(count, "point"),
                     count == 1 ? "was" : "were", why);
}

void append(Sentences& all, Sentences more) {
  for (std::string& one : more) {
    if (all.size() < kMostSentences && !one.empty()) all.push_back(std::move(one));
  }
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
    if (reading.baseline.empty() && !contexts.empty()) reading.baseline = baseline_of(contexts.front().members).primary;
  }
  return reading;
}

}  // namespace

Reading reading_of(const DrawnFigure& figure) {
  Reading reading;
  const std::vector<Context> contexts = contexts_of(figure);
  if (figure.spec.kind == FigureKind::heatmap) {
    append(reading.sentences, cell_sentences(figure));
  } else if (figure.y.measure == Measure::loss) {
    append(reading.sentences, loss_sentences(figure));
  } else if (figure.y.measure == Measure::saving) {
    append(reading.sentences, saving_sentences(figure));
  } else if (figure.spec.kind == FigureKind::table) {
    reading = read_table(figure);
  } else {
    append(reading.sentences, bound_sentence(figure));
    append(reading.sentences, sentence_along_axis(figure, contexts));
    append(reading.sentences, comparison_sentence(figure, contexts));
    append(reading.sentences, missing_sentence(figure, contexts));
    append(reading.sentences, crossing_sentence(figure, contexts));
    append(reading.sentences, shape_sentence(figure, contexts));
    reading.comparisons = comparisons_of(figure, contexts);
    if (!contexts.empty()) reading.baseline = baseline_of(contexts.front().members).primary;
  }
  if (reading.sentences.empty()) reading.sentences.push_back(nothing_to_compare(figure));
  return reading;
}

}  // namespace tessera::lab::report
