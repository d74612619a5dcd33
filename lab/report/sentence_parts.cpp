#include "lab/report/sentence_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/report/sentences.h"
#include "lab/report/wording.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

std::optional<double> value_at(const Series& series, std::size_t x) {
  const Mark* mark = series.at(x);
  return mark == nullptr ? std::nullopt : mark->y;
}

std::optional<std::size_t> last_common(const Series& a, const Series& b) {
  std::optional<std::size_t> last;
  for (const Mark& mark : a.marks) {
    if (mark.y && value_at(b, mark.x)) last = mark.x;
  }
  return last;
}

// The series others are measured against: standard, or the first one.
const Series* baseline_of(const Group& group) {
  for (const Series* series : group) {
    if (series->primary == "standard") return series;
  }
  return group.front();
}

bool more_is_better(const DrawnFigure& figure) { return figure.y.measure == Measure::rate; }

// "12.0 ms ± 8 %"
std::string with_spread(const DrawnFigure& figure, const Mark& mark) {
  return fmt::format("{} ± {:.0f} %", quantity_text(figure.y, *mark.y), 100 * mark.spread);
}

// One sentence about two series at a place where both have a value.
std::string comparison(const DrawnFigure& figure, const Series& series, const Series& base, std::size_t x) {
  const Mark &mine = *series.at(x), &theirs = *base.at(x);
  const double value = *mine.y, other = *theirs.y;
  const std::string place = at(figure.x, x);
  const std::string both =
      fmt::format("({} against {})", quantity_text(figure.y, value), quantity_text(figure.y, other));
  if (figure.y.field == "speedup_over_standard") {
    const std::string factor = alike(value, 1) ? "" : times(value) + " ";
    return fmt::format("{} is {}as fast as standard {}.", series.primary, factor, place);
  }
  if (value <= 0 || other <= 0) {
    return fmt::format("{} of {} and {} {}: {} and {}.", capitalised(figure.y.label), series.primary,
                       base.primary, place, quantity_text(figure.y, value), quantity_text(figure.y, other));
  }
  if (noisy(mine, theirs)) {
    return fmt::format("The measurements of {} and {} {} are too noisy to tell apart ({} against {}).",
                       series.primary, base.primary, place, with_spread(figure, mine),
                       with_spread(figure, theirs));
  }
  if (figure.y.field == "q_length") {
    const std::string factor = alike(value, other) ? "" : significant(value / other, 2) + " times ";
    return fmt::format("{} fits sequences {}as long as {} {} {}.", series.primary, factor, base.primary,
                       place, both);
  }
  const Relation to = relation(figure.y, value, other);
  if (to.verb == "needs" && value < other && !alike(value, other)) {
    return fmt::format("{} {} needs {} of {} and {} {}, {} times as much.", capitalised(place),
                       series.primary, quantity_text(figure.y, value), figure.y.symbol, base.primary,
                       quantity_text(figure.y, other), significant(other / value));
  }
  return fmt::format("{} {} {} {} {} {} {}.", series.primary, to.verb, to.text, to.preposition, base.primary,
                     place, both);
}

// The series against the baseline, the best first.
void compare_with_baseline(const DrawnFigure& figure, const Group& group, Sentences& sentences) {
  const Series* base = baseline_of(group);
  struct Found {
    const Series* series;
    std::size_t x;
    double value;
  };
  std::vector<Found> found;
  for (const Series* series : group) {
    const auto x = last_common(*series, *base);
    if (series == base || !x) continue;
    found.push_back({series, *x, *value_at(*series, *x)});
  }
  std::sort(found.begin(), found.end(), [&](const Found& a, const Found& b) {
    return more_is_better(figure) ? a.value > b.value : a.value < b.value;
  });
  for (const Found& one : found) {
    sentences.push_back(comparison(figure, *one.series, *base, one.x));
  }
}

// Where two series cross: the place from which on their order is that of the end.
void find_crossings(const DrawnFigure& figure, const Group& group, Sentences& sentences) {
  const Series* base = baseline_of(group);
  if (!figure.x.numeric || figure.y.measure == Measure::error || figure.y.measure == Measure::other) return;
  for (const Series* series : group) {
    std::optional<bool> ahead;
    std::optional<std::size_t> since;  // the first point of the present order
    bool changed = false;
    for (const Mark& mark : series->marks) {
      const auto other = value_at(*base, mark.x);
      if (series == base || !mark.y || !other || alike(*mark.y, *other)) continue;
      const bool now = more_is_better(figure) ? *mark.y > *other : *mark.y < *other;
      if (ahead && *ahead != now) changed = true;
      if (ahead != now) since = mark.x;
      ahead = now;
    }
    if (!changed) continue;
    const std::string& winner = *ahead ? series->primary : base->primary;
    const std::string& loser = *ahead ? base->primary : series->primary;
    const bool memory = figure.y.measure == Measure::memory;
    sentences.push_back(
        fmt::format("From {} on, {} {} {}.", where(figure.x, figure.x.labels[*since]), winner,
                    memory ? fmt::format("needs less {} than", figure.y.symbol) : "is faster than", loser));
  }
}

// "grows quadratically for standard (N^2.00)"
std::string growth_text(const DrawnFigure& figure, const Series& series, double exponent) {
  const std::string& symbol = figure.x.quantity.symbol;
  const bool words = symbol.find(' ') != std::string::npos;
  const std::string power = fmt::format(fmt::runtime(words ? "({})^{:.2f}" : "{}^{:.2f}"), symbol, exponent);
  if (std::fabs(exponent) < 0.12) {
    const auto least = std::min_element(
        series.marks.begin(), series.marks.end(),
        [](const Mark& a, const Mark& b) { return a.y.value_or(1e300) < b.y.value_or(1e300); });
    return fmt::format("hardly changes for {} (lowest: {} {})", series.primary,
                       quantity_text(figure.y, *least->y), at(figure.x, least->x));
  }
  if (std::fabs(exponent - 2) < 0.15)
    return fmt::format("grows quadratically for {} ({})", series.primary, power);
  const auto slope = linear_slope(figure.x, series);
  if (std::fabs(exponent - 1) < 0.12 && slope) {
    const std::string each = figure.x.quantity.unit == "tokens" ? "token" : "unit of " + symbol;
    return fmt::format("grows linearly for {} ({}, {} per {})", series.primary, power,
                       quantity_text(figure.y, *slope), each);
  }
  return fmt::format("{} as {} for {}", exponent > 0 ? "grows" : "falls", power, series.primary);
}

// Where the axis holds the algorithms: the best of them against standard, for every series.
void compare_along_axis(const DrawnFigure& figure, const Group& group, Sentences& sentences) {
  const auto found = std::find(figure.x.labels.begin(), figure.x.labels.end(), "standard");
  if (figure.x.numeric || found == figure.x.labels.end()) return;
  const auto base = static_cast<std::size_t>(found - figure.x.labels.begin());
  for (const Series* series : group) {
    const auto standard = value_at(*series, base);
    const Mark* best = nullptr;
    for (const Mark& mark : series->marks) {
      if (mark.x == base || !mark.y || *mark.y <= 0) continue;
      if (best == nullptr || (more_is_better(figure) ? *mark.y > *best->y : *mark.y < *best->y)) best = &mark;
    }
    if (!standard || *standard <= 0 || best == nullptr) continue;
    const Relation to = relation(figure.y, *best->y, *standard);
    sentences.push_back(fmt::format("{}: {} {} {} {} standard ({} against {}).", series->primary,
                                    figure.x.labels[best->x], to.verb, to.text, to.preposition,
                                    quantity_text(figure.y, *best->y), quantity_text(figure.y, *standard)));
  }
}

// How time, memory or traffic grow along the axis; where a rate is highest.
void describe_shape(const DrawnFigure& figure, const Group& group, Sentences& sentences) {
  if (!figure.x.numeric || figure.spec.kind == FigureKind::table || figure.y.measure == Measure::error)
    return;
  std::vector<std::string> parts;
  for (const Series* series : group) {
    if (more_is_better(figure)) {
      const bool trivial = figure.y.field == "speedup_over_standard" && series->primary == "standard";
      const auto top =
          std::max_element(series->marks.begin(), series->marks.end(),
                           [](const Mark& a, const Mark& b) { return a.y.value_or(-1) < b.y.value_or(-1); });
      if (trivial || top == series->marks.end() || !top->y) continue;
      parts.push_back(fmt::format("{} for {} ({})", quantity_text(figure.y, *top->y), series->primary,
                                  where(figure.x, figure.x.labels[top->x])));
    } else if (const auto exponent = growth_exponent(figure.x, *series)) {
      parts.push_back(growth_text(figure, *series, *exponent));
    }
  }
  if (parts.empty()) return;
  if (more_is_better(figure)) {
    sentences.push_back(fmt::format("The highest {} is {}.", figure.y.symbol, listed(parts)));
    return;
  }
  for (std::size_t i = parts.size(); --i > 0;) {  // the verb once, where the parts share it
    const std::string verb = parts[i].substr(0, parts[i].find(' ') + 1);
    if (parts[i - 1].starts_with(verb)) parts[i].erase(0, verb.size());
  }
  sentences.push_back(fmt::format("With {}, {} {}.", axis_words(figure.x), figure.y.symbol, listed(parts)));
}

// The further lines of a panel of one series, in multiples of the lower bound, each at its last
// common place.
std::vector<std::string> lines_over_bound(const DrawnFigure& figure, const Panel& panel, const Series& series,
                                          const Series& bound, std::size_t at_series) {
  std::vector<std::string> parts;
  for (const Series& line : panel.series) {
    if (!line.theory || line.name.rfind("memory traffic", 0) != 0) continue;
    const Mark* last = nullptr;
    for (const Mark& mark : line.marks) {
      if (value_at(series, mark.x) && value_at(bound, mark.x).value_or(0) > 0) last = &mark;
    }
    if (last == nullptr) continue;
    const std::string ratio = times(*last->y / *value_at(bound, last->x));
    const std::string place = last->x == at_series ? "" : fmt::format(" ({})", at(figure.x, last->x));
    parts.push_back(fmt::format("{} is {}{}", line.primary, ratio, place));
  }
  return parts;
}

// How far above the lower bound each series ends. In a panel of one series also what else is known
// of its traffic: theory, prediction and measurement.
void compare_with_bound(const DrawnFigure& figure, const Panel& panel, const Group& group,
                        Sentences& sentences) {
  const auto drawn = std::count_if(panel.series.begin(), panel.series.end(),
                                   [](const Series& series) { return !series.theory; });
  for (const Series& bound : panel.series) {
    if (!bound.theory || bound.name.rfind("lower bound", 0) != 0) continue;
    for (const Series* series : group) {
      const auto x = last_common(*series, bound);
      if (!x || *value_at(bound, *x) <= 0) continue;
      std::string text =
          fmt::format("{} the {} of {} is {} the lower bound", capitalised(at(figure.x, *x)), figure.y.symbol,
                      series->primary, times(*value_at(*series, *x) / *value_at(bound, *x)));
      if (drawn == 1) {
        const auto more = lines_over_bound(figure, panel, *series, bound, *x);
        if (!more.empty()) text += "; " + listed(more);
      }
      sentences.push_back(text + ".");
    }
  }
}

}  // namespace

void describe_missing(const DrawnFigure& figure, const Group& group, Sentences& sentences) {
  for (const Series* series : group) {
    std::vector<std::size_t> places;
    for (const Mark& mark : series->marks) {
      if (mark.status == "out_of_memory") places.push_back(mark.x);
    }
    if (places.empty()) continue;
    const bool to_the_end = figure.x.numeric && places.size() == figure.x.labels.size() - places.front();
    const std::string more = places.size() == 1 ? ""
                             : to_the_end       ? " and beyond"
                                                : " and at " + counted(places.size() - 1, "other point");
    sentences.push_back(
        fmt::format("{} runs out of memory {}{}.", series->primary, at(figure.x, places.front()), more));
  }
}

Sentences sentences_about(const DrawnFigure& figure, const Panel& panel, const Group& group) {
  Sentences sentences;
  compare_along_axis(figure, group, sentences);
  compare_with_baseline(figure, group, sentences);
  find_crossings(figure, group, sentences);
  describe_shape(figure, group, sentences);
  compare_with_bound(figure, panel, group, sentences);
  describe_missing(figure, group, sentences);
  return sentences;
}

void compare_contexts(const DrawnFigure& figure, const Group& group, const Group& first,
                      const std::string& context, Sentences& sentences) {
  std::vector<std::string> parts, relations;
  std::optional<std::size_t> place;
  for (const Series* series : group) {
    for (const Series* other : first) {
      if (series->primary != other->primary) continue;
      const auto x = last_common(*series, *other);
      if (!x || (place && *place != *x) || *value_at(*series, *x) <= 0 || *value_at(*other, *x) <= 0)
        continue;
      place = x;
      const Relation to = relation(figure.y, *value_at(*series, *x), *value_at(*other, *x));
      relations.push_back(fmt::format("{} {}", to.verb, to.text));
      parts.push_back(fmt::format("{} {}", series->primary, relations.back()));
    }
  }
  if (!place) return;
  const bool all_same =
      parts.size() > 1 && std::count(relations.begin(), relations.end(), relations.front()) ==
                              static_cast<std::ptrdiff_t>(relations.size());
  if (all_same) parts = {"each " + relations.front()};
  sentences.push_back(fmt::format("Compared with {} {}, {}.", context, at(figure.x, *place), listed(parts)));
}

namespace {

// The value of a table's column for one of its series at a place.
std::optional<double> column_value(const DrawnFigure& column, const Panel& panel, const Series& series,
                                   std::size_t x) {
  for (const Panel& other : column.panels) {
    for (const Series& same : other.series) {
      if (other.title == panel.title && same.name == series.name) return value_at(same, x);
    }
  }
  return std::nullopt;
}

}  // namespace

void compare_columns(const std::vector<const DrawnFigure*>& columns, const Panel& panel, const Group& group,
                     Sentences& sentences) {
  const DrawnFigure& first = *columns.front();
  const Series& base = *baseline_of(group);
  Group others = group;
  std::erase(others, &base);
  auto compare_at = [&](std::size_t x) {
    auto value = [&](const DrawnFigure& column, const Series& series) {
      return column_value(column, panel, series, x).value_or(0);
    };
    std::stable_sort(others.begin(), others.end(), [&](const Series* a, const Series* b) {
      return more_is_better(first) ? value(first, *a) > value(first, *b)
                                   : value(first, *a) < value(first, *b);
    });
    for (const Series* series : others) {
      std::vector<std::string> parts, unchanged;
      for (const DrawnFigure* column : columns) {
        const double mine = value(*column, *series), theirs = value(*column, base);
        if (mine <= 0 || theirs <= 0) continue;
        const bool same = alike(mine, theirs);
        const Relation to = relation(column->y, mine, theirs);
        const std::string own = quantity_text(column->y, mine), other = quantity_text(column->y, theirs);
        const std::string both =
            own == other ? fmt::format("({})", own) : fmt::format("({} against {})", own, other);
        if (column == &first) {
          parts.push_back(fmt::format("{} {} {} {} {} {}", to.verb, to.text, to.preposition, base.primary,
                                      at(first.x, x), both));
        } else {
          (same ? unchanged : parts).push_back(fmt::format("{} {} {}", to.verb, to.text, both));
        }
      }
      parts.insert(parts.end(), unchanged.begin(), unchanged.end());
      if (!parts.empty() && value(first, *series) > 0 && value(first, base) > 0)
        sentences.push_back(fmt::format("{} {}.", series->primary, listed(parts)));
    }
  };
  if (!first.x.numeric) {
    for (std::size_t x = 0; x < first.x.labels.size(); ++x) compare_at(x);
  }
  // A numeric axis may be long: compare at its end, or where the last pair was measured.
  for (std::size_t x = first.x.numeric ? first.x.labels.size() : 0; x > 0 && sentences.empty(); --x) {
    compare_at(x - 1);
  }
}

namespace {

// "15 of 16 points fit; only N = 2048 with batch 8 does not."
std::string fits_text(const DrawnFigure& figure, const Panel& panel) {
  std::size_t fitting = 0, total = 0, missing = 0;
  std::string largest, only;
  std::size_t furthest = 0;
  for (const Series& series : panel.series) {
    for (const Mark& mark : series.marks) {
      const std::string& x = figure.x.labels[mark.x];
      const std::string row = where(figure.rows, series.name);
      ++total;
      if (!mark.y) {
        ++missing;
        only = fmt::format("{} with {}", where(figure.x, x), row);
      } else if (++fitting == 1 || mark.x > furthest) {
        furthest = mark.x;
        largest = fmt::format("the largest {} that fits is {}, with {}", figure.x.quantity.symbol, x, row);
      }
    }
  }
  if (missing == 0) return fmt::format("All {} points fit.", total);
  if (fitting == 0) return fmt::format("None of the {} points fits.", total);
  return fmt::format("{} of {} points fit; {}.", fitting, total,
                     missing == 1 ? fmt::format("only {} does not", only) : largest);
}

}  // namespace

void read_cells(const DrawnFigure& figure, const Panel& panel, Sentences& sentences) {
  std::vector<std::pair<const Series*, const Mark*>> cells;
  std::size_t missing = 0, total = 0;
  for (const Series& series : panel.series) {
    for (const Mark& mark : series.marks) {
      ++total;
      if (mark.y) cells.emplace_back(&series, &mark);
      if (mark.status == "out_of_memory") ++missing;
    }
  }
  auto place = [&](const auto& cell) {
    return fmt::format("{} ({}, {})", quantity_text(figure.y, *cell.second->y),
                       where(figure.x, figure.x.labels[cell.second->x]),
                       where(figure.rows, cell.first->name));
  };
  if (figure.y.field == "status") return sentences.push_back(fits_text(figure, panel));
  if (!cells.empty()) {
    const auto [low, high] = std::minmax_element(
        cells.begin(), cells.end(), [](const auto& a, const auto& b) { return *a.second->y < *b.second->y; });
    sentences.push_back(
        fmt::format("{} ranges from {} to {}.", capitalised(figure.y.symbol), place(*low), place(*high)));
  }
  if (missing > 0) sentences.push_back(fmt::format("{} of {} points run out of memory.", missing, total));
}

}  // namespace tessera::lab::report
