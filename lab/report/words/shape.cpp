// What a curve does: how it grows, where it crosses another, where it ends for lack of memory.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lab/report/words/parts.h"
#include "lab/report/words/wording.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

constexpr double kKnown = 0.3;  // an exponent that may be further off is not told
constexpr std::size_t kMostContexts = 4;

// Student's t at 95 %, two-sided, by degrees of freedom.
double student(std::size_t freedom) {
  constexpr std::array kValues = {12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23};
  return freedom <= kValues.size() ? kValues[freedom - 1] : 2.0;
}

// "forward: " in front of what is said about one of several contexts.
std::string prefix(const std::vector<Context>& contexts, const Context& context) {
  return contexts.size() > 1 && !context.name.empty() ? sentence(context.name) + ": " : "";
}

const Mark* highest(const Series& series) {
  const Mark* top = nullptr;
  for (const Mark& mark : series.marks) {
    if (mark.y && (top == nullptr || *mark.y > *top->y)) top = &mark;
  }
  return top;
}

}  // namespace

std::optional<Growth> growth_of(const Axis& axis, const Series& series) {
  std::vector<std::array<double, 3>> points;  // logarithms of x and y, and the noise of the latter
  for (const Mark& mark : series.marks) {
    if (!axis.numeric || !mark.y || *mark.y <= 0 || mark.overhead || axis.values[mark.x] <= 0) continue;
    const double noise = mark.low > 0 ? std::log(mark.high / mark.low) / 2 : 0;
    points.push_back({std::log(axis.values[mark.x]), std::log(*mark.y), noise});
  }
  if (points.size() < 3) return std::nullopt;
  const auto count = static_cast<double>(points.size());
  double mean_x = 0, mean_y = 0, square = 0, product = 0;
  for (const auto& [x, y, noise] : points) mean_x += x / count, mean_y += y / count;
  for (const auto& [x, y, noise] : points) {
    square += (x - mean_x) * (x - mean_x);
    product += (x - mean_x) * (y - mean_y);
  }
  if (square <= 0) return std::nullopt;
  const double slope = product / square;
  double residuals = 0, noises = 0;
  for (const auto& [x, y, noise] : points) {
    const double residual = y - mean_y - slope * (x - mean_x);
    residuals += residual * residual;
    noises += (x - mean_x) * (x - mean_x) * noise * noise;
  }
  const double fit = student(points.size() - 2) * std::sqrt(residuals / (count - 2) / square);
  return Growth{slope, std::hypot(fit, 2 * std::sqrt(noises) / square)};
}

std::string growth_text(const Axis& axis, const Series& series) {
  const auto growth = growth_of(axis, series);
  if (!growth || growth->uncertainty > kKnown) return {};
  const std::string& symbol = axis.quantity.symbol;
  const std::string base = symbol.find(' ') == std::string::npos ? symbol : "(" + symbol + ")";
  // As many digits as the uncertainty leaves.
  const int digits = growth->uncertainty < 0.095 ? 2 : 1;
  const double uncertainty = std::max(growth->uncertainty, 0.01);
  const double exponent = std::fabs(growth->exponent) < 0.005 ? 0 : growth->exponent;
  return fmt::format("{}^{:.{}f} ± {:.{}f}", base, exponent, digits, uncertainty, digits);
}

Sentences missing_sentence(const DrawnFigure& figure, const std::vector<Context>& contexts) {
  std::vector<std::string> parts;
  for (const Context& context : contexts) {
    for (const Series* series : context.members) {
      std::vector<std::size_t> places;
      for (const Mark& mark : series->marks) {
        if (mark.status == "out_of_memory") places.push_back(mark.x);
      }
      if (places.empty()) continue;
      const bool to_the_end =
          figure.x.numeric && places.size() > 1 && places.size() == figure.x.labels.size() - places.front();
      const std::string more = places.size() == 1 ? ""
                               : to_the_end       ? " and beyond"
                                                  : " and at " + counted(places.size() - 1, "other point");
      const std::string said =
          contexts.size() > 1 && !context.name.empty() ? fmt::format(" ({})", context.name) : "";
      parts.push_back(fmt::format("{}{} runs out of memory {}{}", series->primary, said,
                                  at(figure.x, places.front()), more));
    }
  }
  if (parts.empty()) return {};
  const std::size_t all = parts.size();
  if (all > 2)
    parts.resize(2),
        parts.push_back(counted(all - 2, "other curve") + (all == 3 ? " does" : " do") + " as well");
  return {sentence(listed(parts)) + "."};
}

Sentences crossing_sentence(const DrawnFigure& figure, const std::vector<Context>& contexts) {
  if (!figure.x.numeric || figure.y.measure == Measure::error || figure.y.measure == Measure::other)
    return {};
  for (const Context& context : contexts) {
    const Series& base = baseline_of(context.members);
    for (const Series* series : context.members) {
      std::vector<std::pair<std::size_t, bool>> order;  // clear places, and whether the series is ahead
      for (const Mark& mark : series->marks) {
        const Mark* other = base.at(mark.x);
        if (series == &base || !mark.y || other == nullptr || !other->y) continue;
        const Verdict verdict = compare(mark, *other);
        if (verdict == Verdict::less || verdict == Verdict::more)
          order.emplace_back(mark.x, (verdict == Verdict::more) == more_is_better(figure));
      }
      std::size_t changes = 0, since = 0;
      for (std::size_t i = 1; i < order.size(); ++i) {
        if (order[i].second != order[i - 1].second) ++changes, since = i;
      }
      if (changes != 1) continue;  // none, or noise
      const std::string& winner = order.back().second ? series->primary : base.primary;
      const std::string& loser = order.back().second ? base.primary : series->primary;
      const std::string what =
          figure.y.measure == Measure::memory ? "needs less " + figure.y.symbol : "is faster";
      return {fmt::format("{}{} {} up to {} and {} from {} on.", prefix(contexts, context), loser, what,
                          where(figure.x, figure.x.labels[order[since - 1].first]), winner,
                          where(figure.x, figure.x.labels[order[since].first]))};
    }
  }
  return {};
}

Sentences shape_sentence(const DrawnFigure& figure, const std::vector<Context>& contexts) {
  if (!figure.x.numeric || figure.spec.kind == FigureKind::table || figure.y.measure == Measure::error ||
      contexts.empty())
    return {};
  if (more_is_better(figure)) {
    const Series* best = nullptr;
    const Context* of = nullptr;
    for (const Context& context : contexts) {
      for (const Series* series : context.members) {
        const Mark* top = highest(*series);
        if (top != nullptr && (best == nullptr || *top->y > *highest(*best)->y)) best = series, of = &context;
      }
    }
    if (best == nullptr || best->marks.size() < 2) return {};
    const Mark* top = highest(*best);
    const std::string said = contexts.size() > 1 && !of->name.empty() ? ", " + of->name : "";
    return {fmt::format("The highest {} is {} ({}, {}{}).", figure.y.symbol,
                        value_with_spread(figure.y, *top), best->primary,
                        where(figure.x, figure.x.labels[top->x]), said)};
  }
  if (contexts.size() > kMostContexts) return {};  // one of many would say little
  for (const Context& context : contexts) {
    std::vector<std::string> parts;
    for (const Series* series : context.members) {
      if (const std::string text = growth_text(figure.x, *series); !text.empty())
        parts.push_back(fmt::format("{} for {}", text, series->primary));
    }
    if (parts.empty()) continue;
    if (parts.size() > 4) parts.resize(4);
    const std::string what = figure.y.symbol;
    return {fmt::format("{}{} follows {}.", prefix(contexts, context),
                        prefix(contexts, context).empty() ? capitalised(what) : what, listed(parts))};
  }
  return {};
}

Sentences bound_sentence(const DrawnFigure& figure) {
  for (const Panel& panel : figure.panels) {
    const Series *series = nullptr, *bound = nullptr;
    for (const Series& one : panel.series) {
      if (one.theory && one.name.starts_with("lower bound")) bound = &one;
      if (!one.theory && one.points.empty() && series == nullptr) series = &one;
    }
    if (series == nullptr || bound == nullptr) continue;
    const auto x = last_common(*series, *bound);
    if (!x || *bound->at(*x)->y <= 0) continue;
    std::vector<std::string> parts = {fmt::format("the {} of {} is {}", figure.y.symbol, series->primary,
                                                  times(*series->at(*x)->y / *bound->at(*x)->y))};
    for (const Series& line : panel.series) {
      const Mark* mark = line.at(*x);
      if (!line.theory || !line.name.starts_with("memory traffic") || mark == nullptr || !mark->y) continue;
      parts.push_back(fmt::format("the {} {}", line.primary, times(*mark->y / *bound->at(*x)->y)));
    }
    return {fmt::format("{}, {} the lower bound.", capitalised(at(figure.x, *x)), listed(parts))};
  }
  return {};
}

}  // namespace tessera::lab::report
