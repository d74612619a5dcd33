#include "lab/readings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lab/units.h"

namespace tessera::lab {
namespace {

// Differences below this share are not worth a sentence: they are within the spread of most measurements.
constexpr double kSame = 0.03;
// Sentences of one kind in one reading; more would not be read.
constexpr std::size_t kMostSentences = 3;

using Group = std::vector<const Series*>;

std::string times(double ratio) { return significant(ratio, ratio < 10 ? 2 : 3) + "×"; }

std::string where(const Figure& figure, std::size_t x) {
  const std::string& symbol = figure.x.quantity.symbol;
  if (!figure.x.numeric) return figure.x.labels[x];
  return fmt::format("{} = {}", symbol, figure.x.labels[x]);
}

std::string at(const Figure& figure, std::size_t x) {
  return fmt::format("{} {}", figure.x.numeric ? "at" : "for", where(figure, x));
}

// Series that differ only in their colour: what can be compared fairly.
std::map<std::string, Group> comparable(const Panel& panel) {
  std::map<std::string, Group> groups;
  for (const Series& series : panel.series) {
    if (!series.theory) groups[series.rest].push_back(&series);
  }
  return groups;
}

std::optional<std::size_t> last_common(const Series& a, const Series& b) {
  std::optional<std::size_t> last;
  for (const Mark& mark : a.marks) {
    const Mark* other = b.at(mark.x);
    if (mark.y && other != nullptr && other->y) last = mark.x;
  }
  return last;
}

// The series others are measured against: standard, or the first one.
const Series* baseline_of(const Group& group) {
  for (const Series* series : group) {
    if (series->primary == "standard") return series;
  }
  return group.empty() ? nullptr : group.front();
}

// "flash2 is 3.1x as fast as standard", for values of `series` and of what it is compared with.
std::string compare(const Figure& figure, const std::string& name, double value, const std::string& other,
                    double base) {
  const std::string both =
      fmt::format("{} against {}", quantity_text(figure.y, value), quantity_text(figure.y, base));
  if (value <= 0 || base <= 0) return fmt::format("{}: {} for {} and {}", figure.y.label, both, name, other);
  const double ratio = value / base;
  const bool same = std::fabs(ratio - 1) < kSame;
  switch (figure.y.measure) {
    case Measure::time:
      if (same) return fmt::format("{} is as fast as {} ({})", name, other, both);
      return ratio < 1 ? fmt::format("{} is {} as fast as {} ({})", name, times(1 / ratio), other, both)
                       : fmt::format("{} takes {} the time of {} ({})", name, times(ratio), other, both);
    case Measure::rate:
      if (same) return fmt::format("{} reaches the {} of {} ({})", name, figure.y.symbol, other, both);
      return fmt::format("{} reaches {} the {} of {} ({})", name, times(ratio), figure.y.symbol, other, both);
    case Measure::memory:
      if (same) return fmt::format("{} needs as much {} as {} ({})", name, figure.y.symbol, other, both);
      return ratio < 1 ? fmt::format("{} needs {} less {} than {} ({})", name, times(1 / ratio),
                                     figure.y.symbol, other, both)
                       : fmt::format("{} needs {} the {} of {} ({})", name, times(ratio), figure.y.symbol,
                                     other, both);
    case Measure::error:
      return fmt::format("the error of {} is {} that of {} ({})", name, times(ratio), other, both);
    case Measure::other: break;
  }
  return fmt::format("{} of {} is {} that of {} ({})", figure.y.label, name, times(ratio), other, both);
}

// Better first: less time, memory or error, a higher rate.
bool better(const Figure& figure, double a, double b) {
  return figure.y.measure == Measure::rate ? a > b : a < b;
}

void compare_with_baseline(const Figure& figure, const Group& group, std::vector<std::string>& sentences) {
  const Series* base = baseline_of(group);
  if (base == nullptr || group.size() < 2) return;
  struct Found {
    const Series* series;
    std::size_t x;
    double value, base;
  };
  std::vector<Found> found;
  for (const Series* series : group) {
    if (series == base) continue;
    if (const auto x = last_common(*series, *base))
      found.push_back({series, *x, *series->at(*x)->y, *base->at(*x)->y});
  }
  std::sort(found.begin(), found.end(), [&](const Found& a, const Found& b) {
    return better(figure, a.value / std::max(a.base, 1e-300), b.value / std::max(b.base, 1e-300));
  });
  if (found.size() > kMostSentences) found.resize(kMostSentences);
  for (const Found& one : found) {
    sentences.push_back(compare(figure, one.series->name, one.value, base->name, one.base) + " " +
                        at(figure, one.x));
  }
}

// Where the order of two series changes along the axis.
void find_crossing(const Figure& figure, const Group& group, std::vector<std::string>& sentences) {
  const Series* base = baseline_of(group);
  if (base == nullptr || !figure.x.numeric || figure.y.measure == Measure::error) return;
  for (const Series* series : group) {
    if (series == base) continue;
    std::optional<std::size_t> before;
    for (const Mark& mark : series->marks) {
      const Mark* other = base->at(mark.x);
      if (!mark.y || other == nullptr || !other->y) continue;
      if (before) {
        const bool was = better(figure, *series->at(*before)->y, *base->at(*before)->y);
        const bool is = better(figure, *mark.y, *other->y);
        if (was != is) {
          sentences.push_back(fmt::format("{} {} {} between {} and {}", series->name,
                                          is ? "overtakes" : "falls behind", base->name,
                                          where(figure, *before), figure.x.labels[mark.x]));
          break;
        }
      }
      before = mark.x;
    }
  }
}

std::string growth_word(double exponent) {
  if (std::fabs(exponent) < 0.12) return "does not grow";
  if (std::fabs(exponent - 1) < 0.12) return "grows linearly";
  if (std::fabs(exponent - 2) < 0.15) return "grows quadratically";
  return exponent < 0 ? "shrinks" : "grows";
}

// How time, memory or traffic grow along the axis; where a rate is highest.
void describe_shape(const Figure& figure, const Series& series, std::vector<std::string>& sentences) {
  if (!figure.x.numeric || figure.spec.kind != FigureKind::lines || series.theory) return;
  if (figure.y.measure == Measure::rate || figure.y.measure == Measure::error) {
    const Mark* top = nullptr;
    for (const Mark& mark : series.marks) {
      if (mark.y && (top == nullptr || *mark.y > *top->y)) top = &mark;
    }
    if (top != nullptr) {
      sentences.push_back(fmt::format("{} is highest at {}, {}", series.name, where(figure, top->x),
                                      quantity_text(figure.y, *top->y)));
    }
    return;
  }
  const auto exponent = growth_exponent(figure.x, series);
  if (!exponent) return;
  const std::string word = growth_word(*exponent);
  std::string sentence =
      fmt::format("{} of {} {} with {}", figure.y.symbol, series.name, word, figure.x.quantity.symbol);
  if (word != "does not grow") sentence += fmt::format(", as {}^{:.2f}", figure.x.quantity.symbol, *exponent);
  if (const auto slope = linear_slope(figure.x, series); slope && word == "grows linearly") {
    const std::string each =
        figure.x.quantity.unit == "tokens" ? "token" : "unit of " + figure.x.quantity.symbol;
    const std::string amount = figure.y.measure == Measure::time
                                   ? duration_text(*slope / figure.y.scale / 1e3)
                                   : quantity_text(figure.y, *slope);
    sentence += fmt::format(", slope {} per {}", amount, each);
  }
  sentences.push_back(sentence);
}

// Which series ends first, and where.
void describe_missing(const Figure& figure, const Series& series, std::vector<std::string>& sentences) {
  std::vector<std::size_t> places;
  for (const Mark& mark : series.marks) {
    if (mark.status == "out_of_memory") places.push_back(mark.x);
  }
  if (places.empty()) return;
  const bool to_the_end = figure.x.numeric && places.size() == figure.x.labels.size() - places.front();
  sentences.push_back(fmt::format("{} runs out of memory {}{}", series.name, at(figure, places.front()),
                                  places.size() == 1 ? ""
                                  : to_the_end       ? " and beyond"
                                               : fmt::format(" and {} other points", places.size() - 1)));
}

// The same algorithm on different machines, or in different directions: series that share a colour.
void compare_rests(const Figure& figure, const Panel& panel, std::vector<std::string>& sentences) {
  std::map<std::string, Group> groups;
  for (const Series& series : panel.series) {
    if (!series.theory) groups[series.primary].push_back(&series);
  }
  std::size_t added = 0;
  for (const auto& [primary, group] : groups) {
    if (group.size() < 2 || added >= kMostSentences) continue;
    const auto x = last_common(*group[0], *group[1]);
    if (!x) continue;
    sentences.push_back(
        compare(figure, group[1]->name, *group[1]->at(*x)->y, group[0]->name, *group[0]->at(*x)->y) + " " +
        at(figure, *x));
    ++added;
  }
}

void read_cells(const Figure& figure, const Panel& panel, std::vector<std::string>& sentences) {
  struct Cell {
    const Series* series;
    const Mark* mark;
  };
  std::vector<Cell> cells;
  std::size_t missing = 0, total = 0;
  for (const Series& series : panel.series) {
    for (const Mark& mark : series.marks) {
      ++total;
      if (mark.y) cells.push_back({&series, &mark});
      else if (mark.status == "out_of_memory") ++missing;
    }
  }
  auto place = [&](const Cell& cell) {
    return fmt::format("{} at {}, {} = {}", quantity_text(figure.y, *cell.mark->y),
                       where(figure, cell.mark->x), figure.rows.quantity.symbol, cell.series->name);
  };
  if (!cells.empty()) {
    const auto [low, high] = std::minmax_element(
        cells.begin(), cells.end(), [](const Cell& a, const Cell& b) { return *a.mark->y < *b.mark->y; });
    sentences.push_back(fmt::format("{} goes from {} to {}", figure.y.label, place(*low), place(*high)));
  }
  if (missing > 0) sentences.push_back(fmt::format("{} of {} points run out of memory", missing, total));
}

void read_panel(const Figure& figure, const Panel& panel, std::vector<std::string>& sentences) {
  if (figure.spec.kind == FigureKind::heatmap) {
    read_cells(figure, panel, sentences);
    return;
  }
  const auto groups = comparable(panel);
  for (const auto& [rest, group] : groups) compare_with_baseline(figure, group, sentences);
  if (groups.size() > 1) compare_rests(figure, panel, sentences);
  for (const auto& [rest, group] : groups) find_crossing(figure, group, sentences);
  std::size_t shapes = 0;
  for (const Series& series : panel.series) {
    if (shapes++ < kMostSentences) describe_shape(figure, series, sentences);
    describe_missing(figure, series, sentences);
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

std::vector<std::string> readings(const Figure& figure) {
  std::vector<std::string> sentences;
  for (const Panel& panel : figure.panels) {
    std::vector<std::string> own;
    read_panel(figure, panel, own);
    for (const std::string& sentence : own) {
      sentences.push_back((panel.title.empty() ? sentence : fmt::format("{}: {}", panel.title, sentence)) +
                          ".");
    }
  }
  if (sentences.empty()) {
    std::size_t measured = 0;
    for (const Panel& panel : figure.panels) {
      for (const Series& series : panel.series) {
        for (const Mark& mark : series.marks) measured += mark.y ? 1 : 0;
      }
    }
    sentences.push_back(measured == 0 ? "Nothing could be measured here; the notes say why."
                                      : fmt::format("{} points; nothing to compare them with.", measured));
  }
  return sentences;
}

}  // namespace tessera::lab
