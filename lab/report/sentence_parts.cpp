#include "lab/report/sentence_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/report/sentences.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

// Differences below this share are not worth a sentence: two digits show them as 1.0x, and they are within the spread of
// many measurements.
constexpr double kSame = 0.05;

bool alike(double a, double b) { return std::fabs(a / b - 1) < kSame; }

// For words of ours; names such as flash2 keep their spelling.
std::string capitalised(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::string times(double ratio) { return significant(ratio, ratio < 10 ? 2 : 3) + "×"; }

std::string where(const Axis& axis, const std::string& label) {
  return axis.numeric ? fmt::format("{} = {}", axis.quantity.symbol, label) : label;
}

std::string at(const DrawnFigure& figure, std::size_t x) {
  return fmt::format("{} {}", figure.x.numeric ? "at" : "for", where(figure.x, figure.x.labels[x]));
}

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

// What one value is to another: "3.1x as fast" and the word before the other's name, "as".
struct Relation {
  std::string text;
  const char* preposition;
};

Relation relation(const DrawnFigure& figure, double value, double base) {
  const double ratio = value / base;
  const bool same = alike(value, base);
  const std::string& what = figure.y.symbol;
  switch (figure.y.measure) {
    case Measure::time:
      if (same) return {"as fast", "as"};
      return {ratio < 1 ? times(1 / ratio) + " as fast" : times(ratio) + " as slow", "as"};
    case Measure::error:
      if (same) return {"as accurate", "as"};
      return {fmt::format("at {} the error", times(ratio)), "of"};
    case Measure::memory:
      if (ratio < 1 && !same) {
        return {fmt::format("at 1/{} of the {}", significant(1 / ratio, ratio > 0.1 && ratio < 0.9 ? 2 : 3),
                            what),
                "of"};
      }
      break;
    case Measure::rate:
    case Measure::loss:
    case Measure::saving:
    case Measure::other: break;
  }
  return {same ? fmt::format("at the same {}", what) : fmt::format("at {} the {}", times(ratio), what),
          same ? "as" : "of"};
}

// "flash2 is 3.1x as fast as standard at N = 2048 (92.8 ms against 151 ms)."
void compare_with_baseline(const DrawnFigure& figure, const Group& group, Sentences& sentences) {
  const Series* base = baseline_of(group);
  struct Found {
    const Series* series;
    std::size_t x;
    double value, base;
  };
  std::vector<Found> found;
  for (const Series* series : group) {
    const auto x = last_common(*series, *base);
    if (series == base || !x) continue;
    found.push_back({series, *x, *value_at(*series, *x), *value_at(*base, *x)});
  }
  std::sort(found.begin(), found.end(), [&](const Found& a, const Found& b) {
    return more_is_better(figure) ? a.value > b.value : a.value < b.value;
  });
  for (const Found& one : found) {
    const std::string both =
        fmt::format("({} against {})", quantity_text(figure.y, one.value), quantity_text(figure.y, one.base));
    const std::string place = at(figure, one.x);
    if (figure.y.field == "speedup_over_standard") {
      const std::string factor = alike(one.value, 1) ? "" : times(one.value) + " ";
      sentences.push_back(fmt::format("{} is {}as fast as standard {}.", one.series->primary, factor, place));
    } else if (one.value <= 0 || one.base <= 0) {
      sentences.push_back(fmt::format("{} and {} {}: {} {}.", one.series->primary, base->primary, place,
                                      figure.y.label, both));
    } else {
      const Relation to = relation(figure, one.value, one.base);
      sentences.push_back(fmt::format("{} is {} {} {} {} {}.", one.series->primary, to.text, to.preposition,
                                      base->primary, place, both));
    }
  }
}

// From where on the order of two series is what it is at the end, where it was another one before.
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
        fmt::format("From {} on {} {} {}.", where(figure.x, figure.x.labels[*since]), winner,
                    memory ? fmt::format("needs less {} than", figure.y.symbol) : "is ahead of", loser));
  }
}

std::string growth_text(const DrawnFigure& figure, const Series& series, double exponent) {
  const std::string power = fmt::format("{}^{:.2f}", figure.x.quantity.symbol, exponent);
  if (std::fabs(exponent) < 0.12) {
    const auto least = std::min_element(
        series.marks.begin(), series.marks.end(),
        [](const Mark& a, const Mark& b) { return a.y.value_or(1e300) < b.y.value_or(1e300); });
    return fmt::format("flat for {} (least {} at {})", series.primary, quantity_text(figure.y, *least->y),
                       where(figure.x, figure.x.labels[least->x]));
  }
  if (std::fabs(exponent - 2) < 0.15) return fmt::format("quadratic for {} ({})", series.primary, power);
  const auto slope = linear_slope(figure.x, series);
  if (std::fabs(exponent - 1) < 0.12 && slope) {
    const std::string each =
        figure.x.quantity.unit == "tokens" ? "token" : "unit of " + figure.x.quantity.symbol;
    return fmt::format("linear for {} ({}, slope {} per {})", series.primary, power,
                       quantity_text(figure.y, *slope), each);
  }
  return fmt::format("{} for {}", power, series.primary);
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
    const Relation to = relation(figure, *best->y, *standard);
    sentences.push_back(fmt::format("{}: {} is {} {} standard ({} against {}).", series->primary,
                                    figure.x.labels[best->x], to.text, to.preposition,
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
  sentences.push_back(more_is_better(figure) ? fmt::format("Highest {}: {}.", figure.y.symbol, listed(parts))
                                             : fmt::format("{} against {}: {}.", capitalised(figure.y.symbol),
                                                           figure.x.quantity.symbol, listed(parts)));
}

// How far above the lower bound a series ends and, where the panel is of one series alone, what else is known of its
// traffic: theory, prediction and measurement are told apart.
void compare_with_bound(const DrawnFigure& figure, const Panel& panel, const Group& group,
                        Sentences& sentences) {
  for (const Series& bound : panel.series) {
    if (!bound.theory || bound.name.rfind("lower bound", 0) != 0) continue;
    std::vector<std::string> parts;
    for (const Series* series : group) {
      const auto x = last_common(*series, bound);
      if (!x || *value_at(bound, *x) <= 0) continue;
      parts.push_back(fmt::format("{} for {} ({})", times(*value_at(*series, *x) / *value_at(bound, *x)),
                                  series->primary, where(figure.x, figure.x.labels[*x])));
    }
    if (parts.empty()) continue;
    sentences.push_back(
        fmt::format("{} in multiples of the lower bound: {}.", capitalised(figure.y.symbol), listed(parts)));
    const auto drawn = std::count_if(panel.series.begin(), panel.series.end(),
                                     [](const Series& series) { return !series.theory; });
    for (const Series& line : panel.series) {
      if (drawn != 1 || !line.theory || line.name.rfind("memory traffic", 0) != 0) continue;
      const Mark* last = nullptr;
      for (const Mark& mark : line.marks) {
        if (value_at(*group.front(), mark.x) && value_at(bound, mark.x).value_or(0) > 0) last = &mark;
      }
      if (last == nullptr) continue;
      sentences.push_back(fmt::format("{}: {} ({}).", capitalised(line.primary),
                                      times(*last->y / *value_at(bound, last->x)),
                                      where(figure.x, figure.x.labels[last->x])));
    }
  }
}

}  // namespace

std::string listed(const std::vector<std::string>& items) {
  if (items.size() < 2) return items.empty() ? "" : items.front();
  const std::vector<std::string> first(items.begin(), items.end() - 1);
  return fmt::format("{} and {}", fmt::join(first, ", "), items.back());
}

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
        fmt::format("{} runs out of memory {}{}.", series->primary, at(figure, places.front()), more));
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
      relations.push_back(relation(figure, *value_at(*series, *x), *value_at(*other, *x)).text);
      parts.push_back(fmt::format("{} is {}", series->primary, relations.back()));
    }
  }
  if (!place) return;
  const bool all_same =
      parts.size() > 1 && std::count(relations.begin(), relations.end(), relations.front()) ==
                              static_cast<std::ptrdiff_t>(relations.size());
  if (all_same) parts = {"each is " + relations.front()};
  sentences.push_back(fmt::format("Compared with {}, {}: {}.", context, at(figure, *place), listed(parts)));
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
        const Relation to = relation(*column, mine, theirs);
        const std::string own = quantity_text(column->y, mine), other = quantity_text(column->y, theirs);
        const std::string both =
            own == other ? fmt::format("({})", own) : fmt::format("({} against {})", own, other);
        if (column == &first) {
          parts.push_back(
              fmt::format("{} {} {} {} {}", to.text, to.preposition, base.primary, at(first, x), both));
        } else {
          (same ? unchanged : parts).push_back(fmt::format("{} {}", to.text, both));
        }
      }
      parts.insert(parts.end(), unchanged.begin(), unchanged.end());
      if (!parts.empty() && value(first, *series) > 0 && value(first, base) > 0)
        sentences.push_back(fmt::format("{} is {}.", series->primary, listed(parts)));
    }
  };
  if (!first.x.numeric) {
    for (std::size_t x = 0; x < first.x.labels.size(); ++x) compare_at(x);
  }
  // A numeric axis may be long: what it comes to is at its end, or where the last pair was measured.
  for (std::size_t x = first.x.numeric ? first.x.labels.size() : 0; x > 0 && sentences.empty(); --x) {
    compare_at(x - 1);
  }
}

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
  if (figure.y.field == "status") {
    sentences.push_back(fmt::format("{} of {} points fit.", cells.size(), total));
    const auto longest = std::max_element(
        cells.begin(), cells.end(), [](const auto& a, const auto& b) { return a.second->x < b.second->x; });
    if (missing > 0 && longest != cells.end()) {
      sentences.push_back(fmt::format("The farthest is {}, with {}.",
                                      where(figure.x, figure.x.labels[longest->second->x]),
                                      where(figure.rows, longest->first->name)));
    }
    return;
  }
  if (!cells.empty()) {
    const auto [low, high] = std::minmax_element(
        cells.begin(), cells.end(), [](const auto& a, const auto& b) { return *a.second->y < *b.second->y; });
    const double spread = *low->second->y > 0 ? *high->second->y / *low->second->y : 0;
    sentences.push_back(fmt::format("The {} is lowest with {} and highest with {}{}.", figure.y.symbol,
                                    place(*low), place(*high),
                                    spread > 0 ? fmt::format(", {} as much", times(spread)) : ""));
  }
  if (missing > 0) sentences.push_back(fmt::format("{} of {} points run out of memory.", missing, total));
}

}  // namespace tessera::lab::report
