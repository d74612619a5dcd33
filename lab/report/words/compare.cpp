// Comparisons of methods: the table, and the sentence that sums it up.
#include <fmt/format.h>

#include <algorithm>

#include "lab/report/words/parts.h"
#include "lab/report/words/wording.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {

bool more_is_better(const DrawnFigure& figure) {
  return figure.y.measure == Measure::rate || figure.y.field == "q_length";
}

namespace {

bool better(const DrawnFigure& figure, Verdict verdict) {
  return verdict == (more_is_better(figure) ? Verdict::more : Verdict::less);
}

// Two series at the last place where both have a value.
struct Pair {
  const Context* context;
  const Series *mine, *base;
  const Mark *value, *other;
};

// The methods of a context against its baseline, the best first.
std::vector<Pair> pairs_of(const DrawnFigure& figure, const Context& context) {
  const Series& base = baseline_of(context.members);
  std::vector<Pair> pairs;
  for (const Series* series : context.members) {
    const auto x = last_common(*series, base);
    if (series != &base && x) pairs.push_back({&context, series, &base, series->at(*x), base.at(*x)});
  }
  std::stable_sort(pairs.begin(), pairs.end(), [&](const Pair& a, const Pair& b) {
    // Relative to the baseline, because the last common places may differ.
    const double mine = *a.value->y * std::max(*b.other->y, 1e-300),
                 theirs = *b.value->y * std::max(*a.other->y, 1e-300);
    return more_is_better(figure) ? mine > theirs : mine < theirs;
  });
  return pairs;
}

// The two values and what they mean: "flash2 takes 16.0 ms and standard 64.0 ms, so flash2 is …".
std::string values_text(const DrawnFigure& figure, const Pair& pair) {
  const std::string &mine = pair.mine->primary, &base = pair.base->primary;
  const std::string value = value_with_spread(figure.y, *pair.value);
  const std::string other = value_with_spread(figure.y, *pair.other);
  const Verdict verdict = compare(*pair.value, *pair.other);
  const double ratio = *pair.value->y / *pair.other->y;
  if (verdict == Verdict::unclear) {
    return fmt::format("no difference is found between {} ({}) and {} ({}), because their quartiles overlap",
                       mine, value, base, other);
  }
  if (figure.y.field == "speedup_over_standard")
    return fmt::format("{} {}", mine, comparison_words(figure.y, {{pair.value, pair.other, ""}}, base));
  if (figure.y.field == "q_length") {
    return verdict == Verdict::alike
               ? fmt::format("{} and {} fit sequences of the same length ({})", mine, base, value)
               : fmt::format("{} fits sequences of {} and {} of {}", mine, value, base, other);
  }
  if (figure.y.measure == Measure::time || figure.y.measure == Measure::rate) {
    const char* verb = figure.y.measure == Measure::time ? "takes" : "reaches";
    return fmt::format(
        "{} {} {} and {} {}, so {} is {}", mine, verb, value, base, other, mine,
        verdict == Verdict::alike ? "as fast" : verdict_text(figure.y, *pair.value, *pair.other));
  }
  std::string tail;
  if (verdict == Verdict::alike) tail = value == other ? "" : ", within 5 % of each other";
  else if (*pair.value->y > 0 && *pair.other->y > 0)
    tail = verdict == Verdict::less ? fmt::format(", {} as much", times(1 / ratio))
                                    : fmt::format(", so {} needs {} as much", mine, times(ratio));
  if (figure.y.measure == Measure::memory && figure.y.symbol.find("traffic") == std::string::npos) {
    return fmt::format("{} needs {} of {} and {} {}{}", mine, value, figure.y.symbol, base, other, tail);
  }
  if (verdict == Verdict::more && *pair.other->y > 0)
    tail = fmt::format(", so that of {} is {} as large", mine, times(ratio));
  else if (verdict == Verdict::less && *pair.value->y > 0)
    tail = fmt::format(", {} as large", times(1 / ratio));
  return fmt::format("the {} of {} is {} and that of {} {}{}", figure.y.symbol, mine, value, base, other,
                     tail);
}

// How often a method is ahead of its baseline, behind it, or neither.
struct Tally {
  std::string method, base;
  std::vector<double> ahead{}, behind{};  // by which factors; 0 where one of the values is 0
  std::size_t alike = 0, unclear = 0;

  [[nodiscard]] std::size_t all() const { return ahead.size() + behind.size() + alike + unclear; }
};

std::vector<Tally> tallies_of(const DrawnFigure& figure, const std::vector<Context>& contexts) {
  std::vector<Tally> tallies;
  for (const Context& context : contexts) {
    for (const Pair& pair : pairs_of(figure, context)) {
      auto found = std::find_if(tallies.begin(), tallies.end(),
                                [&](const Tally& one) { return one.method == pair.mine->primary; });
      if (found == tallies.end())
        found = tallies.insert(found, Tally{pair.mine->primary, pair.base->primary});
      const Verdict verdict = compare(*pair.value, *pair.other);
      const double a = *pair.value->y, b = *pair.other->y;
      const double factor = a > 0 && b > 0 ? std::max(a / b, b / a) : 0;
      if (verdict == Verdict::unclear) ++found->unclear;
      else if (verdict == Verdict::alike) ++found->alike;
      else (better(figure, verdict) ? found->ahead : found->behind).push_back(factor);
    }
  }
  return tallies;
}

// " (by factors of 1.2 to 1.9)"
std::string factors_text(const std::vector<double>& factors) {
  const auto [low, high] = std::minmax_element(factors.begin(), factors.end());
  if (factors.empty() || *low <= 0) return {};
  const std::string least = significant(*low, 2), most = significant(*high, 2);
  return least == most ? fmt::format(" (by a factor of {})", least)
                       : fmt::format(" (by factors of {} to {})", least, most);
}

// Many contexts, counted for the method that is ahead, or behind, most often.
std::string counted_text(const DrawnFigure& figure, const std::vector<Context>& contexts) {
  const std::vector<Tally> tallies = tallies_of(figure, contexts);
  if (tallies.empty()) return {};
  auto ahead = [](const Tally& a, const Tally& b) { return a.ahead.size() < b.ahead.size(); };
  const Tally& tally = *std::max_element(tallies.begin(), tallies.end(), ahead);
  const bool fast = figure.y.measure == Measure::time || figure.y.measure == Measure::rate;
  const bool length = figure.y.field == "q_length";
  const std::string subject =
      fast || length ? tally.method : fmt::format("the {} of {}", figure.y.symbol, tally.method);
  const std::string object = fast || length ? tally.base : "that of " + tally.base;
  const std::string all = counted(tally.all(), "combination");
  if (tally.unclear == tally.all())
    return fmt::format("No difference is found between {} and {} in any of {}.", subject, object, all);
  if (tally.alike == tally.all())
    return sentence(fmt::format("{} and {} agree within 5 % in all of {}.", subject, object, all));
  const std::string more = fast ? "faster" : length ? "longer" : "lower";
  const std::string less = fast ? "slower" : length ? "shorter" : "higher";
  const bool leads = tally.ahead.size() >= tally.behind.size();
  const std::vector<double>& first = leads ? tally.ahead : tally.behind;
  const std::vector<double>& second = leads ? tally.behind : tally.ahead;
  std::vector<std::string> others;
  if (!second.empty())
    others.push_back(fmt::format("{} in {}{}", leads ? less : more, second.size(), factors_text(second)));
  if (tally.alike > 0) others.push_back(fmt::format("within 5 % in {}", tally.alike));
  if (tally.unclear > 0) others.push_back(fmt::format("not found to differ in {}", tally.unclear));
  const std::string verb = length ? fmt::format("fits {} sequences than", leads ? more : less)
                                  : fmt::format("is {} than", leads ? more : less);
  return sentence(fmt::format("{} {} {} in {} of {}{}{}.", subject, verb, object, first.size(), all,
                              factors_text(first), others.empty() ? "" : ", " + listed(others)));
}

}  // namespace

std::vector<Context> contexts_of(const DrawnFigure& figure) {
  std::vector<Context> contexts;
  for (const Panel& panel : figure.panels) {
    std::vector<std::pair<std::string, Group>> groups;  // by what they share, in order of appearance
    for (const Series& series : panel.series) {
      if (series.theory || !series.points.empty()) continue;
      auto found = std::find_if(groups.begin(), groups.end(),
                                [&](const auto& one) { return one.first == series.rest; });
      if (found == groups.end()) found = groups.insert(found, {series.rest, {}});
      found->second.push_back(&series);
    }
    for (auto& [rest, group] : groups) {
      const std::string comma = panel.title.empty() || rest.empty() ? "" : ", ";
      contexts.push_back({panel.title + comma + rest, std::move(group)});
    }
  }
  return contexts;
}

const Series& baseline_of(const Group& group) {
  for (const char* name : {"standard", "tessera"}) {
    for (const Series* series : group) {
      if (series->primary == name) return *series;
    }
  }
  return *group.front();
}

std::optional<std::size_t> last_common(const Series& a, const Series& b) {
  std::optional<std::size_t> last;
  for (const Mark& mark : a.marks) {
    const Mark* other = b.at(mark.x);
    if (mark.y && other != nullptr && other->y) last = mark.x;
  }
  return last;
}

std::string verdict_text(const Quantity& quantity, const Mark& mine, const Mark& theirs) {
  const Verdict verdict = compare(mine, theirs);
  if (verdict == Verdict::unclear) return "no difference found";
  if (*mine.y == 0 || *theirs.y == 0)
    return verdict == Verdict::alike ? "the same" : *mine.y == 0 ? "none at all" : "the baseline has none";
  const double ratio = *mine.y / *theirs.y;
  const bool time = quantity.measure == Measure::time;
  if (time || quantity.measure == Measure::rate) {
    const double speed = time ? 1 / ratio : ratio;
    if (verdict == Verdict::alike) return "as fast within 5 %";
    return speed > 1 ? times(speed) + " as fast" : times(1 / speed) + " as slow";
  }
  if (verdict == Verdict::alike) return "the same within 5 %";
  const double more = verdict == Verdict::more ? ratio : 1 / ratio;
  return fmt::format("{}{} the {}", verdict == Verdict::more ? "" : "1/",
                     verdict == Verdict::more ? times(more) : significant(more, more < 10 ? 2 : 3) + " of",
                     quantity.symbol);
}

std::vector<Comparison> comparisons_of(const DrawnFigure& figure, const std::vector<Context>& contexts) {
  std::vector<Comparison> all;
  for (const Context& context : contexts) {
    for (const Pair& pair : pairs_of(figure, context)) {
      const double base = *pair.other->y;
      all.push_back({.context = context.name,
                     .method = pair.mine->primary,
                     .place = where(figure.x, figure.x.labels[pair.value->x]),
                     .value = value_with_spread(figure.y, *pair.value),
                     .baseline = value_with_spread(figure.y, *pair.other),
                     .ratio = base == 0 ? "" : significant(*pair.value->y / base),
                     .verdict = verdict_text(figure.y, *pair.value, *pair.other)});
    }
  }
  return all;
}

Sentences comparison_sentence(const DrawnFigure& figure, const std::vector<Context>& contexts) {
  std::vector<Pair> best;
  for (const Context& context : contexts) {
    const std::vector<Pair> pairs = pairs_of(figure, context);
    if (!pairs.empty()) best.push_back(pairs.front());
  }
  if (best.empty()) return {};
  const Pair& first = best.front();
  const std::string place = capitalised(at(figure.x, first.value->x));
  if (best.size() == 1) {
    const std::string where_said =
        first.context->name.empty() ? place : fmt::format("{} ({})", place, first.context->name);
    return {fmt::format("{}, {}.", where_said, values_text(figure, first))};
  }
  const bool same_methods = std::all_of(best.begin(), best.end(), [&](const Pair& pair) {
    return pair.mine->primary == first.mine->primary && pair.base->primary == first.base->primary &&
           pair.value->x == first.value->x && *pair.value->y > 0 && *pair.other->y > 0;
  });
  if (best.size() > 3 || !same_methods) return {counted_text(figure, contexts)};
  std::vector<InContext> all;
  for (const Pair& pair : best) all.push_back({pair.value, pair.other, pair.context->name});
  return {fmt::format("{}, {} {}.", place, first.mine->primary,
                      comparison_words(figure.y, all, first.base->primary))};
}

Sentences sentence_along_axis(const DrawnFigure& figure, const std::vector<Context>& contexts) {
  const auto found = std::find(figure.x.labels.begin(), figure.x.labels.end(), "standard");
  if (figure.x.numeric || found == figure.x.labels.end()) return {};
  const auto base = static_cast<std::size_t>(found - figure.x.labels.begin());
  std::vector<std::string> parts;
  for (const Context& context : contexts) {
    for (const Series* series : context.members) {
      const Mark* standard = series->at(base);
      const Mark* best = nullptr;
      for (const Mark& mark : series->marks) {
        if (mark.x == base || !mark.y || *mark.y <= 0) continue;
        if (best == nullptr || (more_is_better(figure) ? *mark.y > *best->y : *mark.y < *best->y))
          best = &mark;
      }
      if (standard == nullptr || standard->y.value_or(0) <= 0 || best == nullptr) continue;
      const std::string values =
          fmt::format("{}, {} against {}", series->primary, value_with_spread(figure.y, *best),
                      value_with_spread(figure.y, *standard));
      parts.push_back(fmt::format("{} {}", figure.x.labels[best->x],
                                  comparison_words(figure.y, {{best, standard, values}}, "standard")));
    }
  }
  if (parts.empty()) return {};
  if (parts.size() > 2) parts.resize(2);
  return {fmt::format("{}.", listed(parts))};
}

}  // namespace tessera::lab::report
