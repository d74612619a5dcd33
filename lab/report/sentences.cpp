#include "lab/report/sentences.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lab/report/sentence_parts.h"
#include "lab/report/wording.h"
#include "lab/terminal/text.h"

namespace tessera::lab::report {
namespace {

// Paragraphs of one figure; its chart and table show the rest.
constexpr std::size_t kMostParagraphs = 6;

void add(std::vector<Paragraph>& all, Paragraph paragraph) {
  if (!paragraph.sentences.empty()) all.push_back(std::move(paragraph));
}

std::size_t measured_points(const DrawnFigure& figure) {
  std::size_t count = 0;
  for (const Panel& panel : figure.panels) {
    for (const Series& series : panel.series) {
      for (const Mark& mark : series.marks) count += mark.y && !series.theory ? 1 : 0;
    }
  }
  return count;
}

bool telling(const DrawnFigure& column) {
  const bool bound = column.y.field == "minimum_traffic_bytes" || column.y.field == "standard_traffic_bytes";
  return (column.y.measure != Measure::other || column.y.field == "flops") && !bound &&
         measured_points(column) > 0;
}

// The columns that sentences mention, of a table with times; the times come first. Empty for other
// figures. One sentence tells all columns of such a table: how much faster, and at what cost.
std::vector<const DrawnFigure*> columns_beside_times(const DrawnFigure& figure) {
  std::vector<const DrawnFigure*> columns;
  if (figure.spec.kind != FigureKind::table) return columns;
  if (telling(figure)) columns.push_back(&figure);
  for (const DrawnFigure& column : figure.columns) {
    if (telling(column)) columns.push_back(&column);
  }
  std::stable_partition(columns.begin(), columns.end(),
                        [](const DrawnFigure* column) { return column->y.measure == Measure::time; });
  if (columns.empty() || columns.front()->y.measure != Measure::time) columns.clear();
  return columns;
}

// The time with a causal mask against the time without one, where a figure has a panel of each: for
// every series at the last common point.
void compare_masks(const DrawnFigure& figure, Sentences& sentences) {
  auto series_of = [&](const char* title) {
    const auto panel = std::find_if(figure.panels.begin(), figure.panels.end(),
                                    [&](const Panel& one) { return one.title == title; });
    return panel == figure.panels.end() ? std::vector<Series>() : panel->series;
  };
  if (figure.y.measure != Measure::time || figure.spec.kind == FigureKind::heatmap) return;
  std::vector<std::string> parts;
  for (const Series& causal : series_of("causal")) {
    for (const Series& full : series_of("full")) {
      const Mark *with = nullptr, *without = nullptr;
      for (const Mark& mark : causal.marks) {
        const Mark* other = full.at(mark.x);
        if (mark.y && other != nullptr && other->y) with = &mark, without = other;
      }
      if (causal.name != full.name || with == nullptr || *without->y <= 0) continue;
      const double share = *with->y / *without->y;
      const bool whole = causal.primary == "standard" && share > 0.95;
      parts.push_back(fmt::format("{} takes {:.0f} % of its unmasked time ({} against {} {}){}", causal.name,
                                  100 * share, quantity_text(figure.y, *with->y),
                                  quantity_text(figure.y, *without->y), at(figure.x, with->x),
                                  whole ? ", because it computes the whole matrix first" : ""));
    }
  }
  if (!parts.empty()) sentences.push_back(fmt::format("With a causal mask, {}.", fmt::join(parts, "; ")));
}

void read_panel(const DrawnFigure& figure, const Panel& panel, std::vector<Paragraph>& all) {
  if (figure.spec.kind == FigureKind::heatmap) {
    Paragraph paragraph{panel.title, {}};
    read_cells(figure, panel, paragraph.sentences);
    add(all, std::move(paragraph));
    return;
  }
  std::vector<std::pair<std::string, Group>> groups;  // by what they share, in order of appearance
  for (const Series& series : panel.series) {
    if (series.theory) continue;
    auto found =
        std::find_if(groups.begin(), groups.end(), [&](const auto& one) { return one.first == series.rest; });
    if (found == groups.end()) found = groups.insert(found, {series.rest, {}});
    found->second.push_back(&series);
  }
  for (const auto& [rest, group] : groups) {
    Paragraph paragraph{panel.title, {}};
    if (const auto columns = columns_beside_times(figure); !columns.empty()) {
      compare_columns(columns, panel, group, paragraph.sentences);
      describe_missing(*columns.front(), group, paragraph.sentences);
    } else {
      paragraph.sentences = sentences_about(figure, panel, group);
    }
    if (!rest.empty()) paragraph.context += (paragraph.context.empty() ? "" : ", ") + rest;
    if (&group != &groups.front().second) {
      compare_contexts(figure, group, groups.front().second, groups.front().first, paragraph.sentences);
    }
    add(all, std::move(paragraph));
  }
}

// Of the straight line through the points that fits best (least squares).
std::optional<double> fitted_slope(const std::vector<std::pair<double, double>>& points) {
  const auto count = static_cast<double>(points.size());
  double mean_x = 0, mean_y = 0, square = 0, product = 0;
  for (const auto& [x, y] : points) mean_x += x / count, mean_y += y / count;
  for (const auto& [x, y] : points) {
    square += (x - mean_x) * (x - mean_x);
    product += (x - mean_x) * (y - mean_y);
  }
  if (points.size() < 3 || square <= 0) return std::nullopt;
  return product / square;
}

// Why a figure has no sentence: nothing was measured, or only points of one series.
std::string nothing_to_compare(const DrawnFigure& figure) {
  const std::size_t count = measured_points(figure);
  if (count == 0) return "Nothing could be measured here; the notes say why.";
  std::string why;
  for (const Panel& panel : figure.panels) {
    for (const Series& series : panel.series) {
      for (const Mark& mark : series.marks) {
        if (!mark.y && !mark.reason.empty() && why.empty()) {
          why = fmt::format(" ({})", mark.reason.substr(0, mark.reason.find("; ")));
        }
      }
    }
  }
  return fmt::format("Only {} {} measured, so there is nothing to compare{}.", counted(count, "point"),
                     count == 1 ? "was" : "were", why);
}

}  // namespace

std::optional<double> growth_exponent(const Axis& axis, const Series& series) {
  std::vector<std::pair<double, double>> points;
  for (const Mark& mark : series.marks) {
    if (!mark.y || *mark.y <= 0 || axis.values[mark.x] <= 0) continue;
    points.emplace_back(std::log(axis.values[mark.x]), std::log(*mark.y));
  }
  return fitted_slope(points);
}

std::optional<double> linear_slope(const Axis& axis, const Series& series) {
  std::vector<std::pair<double, double>> points;
  for (const Mark& mark : series.marks) {
    if (mark.y) points.emplace_back(axis.values[mark.x], *mark.y);
  }
  return fitted_slope(points);
}

std::vector<Paragraph> paragraphs(const DrawnFigure& figure) {
  std::vector<Paragraph> all;
  if (figure.y.measure == Measure::loss || figure.y.measure == Measure::saving) {
    for (Paragraph& paragraph : training_paragraphs(figure)) add(all, std::move(paragraph));
  } else {
    Paragraph masks;
    compare_masks(figure, masks.sentences);
    add(all, std::move(masks));
    for (const Panel& panel : figure.panels) read_panel(figure, panel, all);
  }
  for (const DrawnFigure& column : figure.columns) {
    if (!telling(column) || !columns_beside_times(figure).empty()) continue;
    for (Paragraph& paragraph : paragraphs(column)) all.push_back(std::move(paragraph));
  }
  if (all.empty()) all.push_back({"", {nothing_to_compare(figure)}});
  if (all.size() > kMostParagraphs) {
    const std::size_t left = all.size() - kMostParagraphs;
    all.resize(kMostParagraphs);
    all.push_back({"", {fmt::format("The chart and the table show {}.", counted(left, "more combination"))}});
  }
  return all;
}

std::string headline(const DrawnFigure& figure) {
  const Paragraph first = paragraphs(figure).front();
  return first.context.empty() ? first.sentences.front()
                               : fmt::format("{}: {}", first.context, first.sentences.front());
}

}  // namespace tessera::lab::report
