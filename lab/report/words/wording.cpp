#include "lab/report/words/wording.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "lab/report/figure/naming.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

// Smaller differences are left out: two digits show them as 1.0 times, and many measurements spread
// that far.
constexpr double kSame = 0.05;

// Symbols that are counts: "8 heads", not "heads = 8".
constexpr std::array<std::string_view, 6> kCountSymbols = {"heads",  "kv heads",      "keys",
                                                           "layers", "keys per tile", "threads"};

bool is_count(const Axis& axis) {
  return std::find(kCountSymbols.begin(), kCountSymbols.end(), axis.quantity.symbol) != kCountSymbols.end();
}

}  // namespace

bool alike(double a, double b) { return a == b || std::fabs(a / b - 1) < kSame; }

Verdict compare(const Mark& a, const Mark& b) {
  const bool measured = a.low < a.high || b.low < b.high;
  if (measured && a.low <= b.high && b.low <= a.high) return Verdict::unclear;
  if (alike(*a.y, *b.y)) return Verdict::alike;
  return *a.y < *b.y ? Verdict::less : Verdict::more;
}

std::string capitalised(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::string listed(const std::vector<std::string>& items) {
  if (items.size() < 2) return items.empty() ? "" : items.front();
  const std::vector<std::string> first(items.begin(), items.end() - 1);
  return fmt::format("{} and {}", fmt::join(first, ", "), items.back());
}

std::string times(double ratio) { return significant(ratio, ratio < 10 ? 2 : 3) + " times"; }

std::string where(const Axis& axis, const std::string& label) {
  const std::string& symbol = axis.quantity.symbol;
  if (!axis.numeric) return label;
  if (is_count(axis)) return fmt::format("{} {}", label, symbol);
  return symbol.size() <= 3 ? fmt::format("{} = {}", symbol, label) : fmt::format("{} {}", symbol, label);
}

std::string at(const Axis& axis, std::size_t x) {
  const char* preposition = !axis.numeric ? "for" : is_count(axis) ? "with" : "at";
  return fmt::format("{} {}", preposition, where(axis, axis.labels[x]));
}

std::string value_with_spread(const Quantity& quantity, const Mark& mark) {
  const std::string text = quantity_text(quantity, *mark.y);
  if (mark.high <= mark.low || *mark.y <= 0) return text;
  return fmt::format("{} ± {} %", text, significant(50 * (mark.high - mark.low) / *mark.y, 2));
}

std::string sentence(std::string text) {
  const std::string first = text.substr(0, text.find_first_of(" ,("));
  const bool word = std::all_of(first.begin(), first.end(), [](char c) { return c >= 'a' && c <= 'z'; });
  return algorithm_color(first) || !word ? text : capitalised(std::move(text));
}

std::string comparison_words(const Quantity& quantity, const std::vector<InContext>& all,
                             const std::string& baseline) {
  const bool speed = quantity.measure == Measure::time || quantity.measure == Measure::rate;
  std::vector<std::string> parts;
  for (const InContext& one : all) {
    const Verdict verdict = compare(*one.mine, *one.theirs);
    const double ratio = *one.mine->y / *one.theirs->y;
    const bool first = &one == &all.front();
    const std::string than = first ? " as " + baseline : "",
                      of = first ? fmt::format(" of {}", baseline) : "";
    std::string part;
    if (verdict == Verdict::unclear) {
      part = "not found to differ" + (first ? " from " + baseline : "");
    } else if (speed) {
      const double faster = quantity.measure == Measure::time ? 1 / ratio : ratio;
      part = (verdict == Verdict::alike ? "as fast"
              : faster > 1              ? times(faster) + " as fast"
                                        : times(1 / faster) + " as slow") +
             than;
    } else if (quantity.field == "q_length") {
      part = (verdict == Verdict::alike ? "as long" : times(ratio) + " as long") + than;
    } else if (verdict == Verdict::alike) {
      part = fmt::format("the same {}{}", first ? quantity.symbol : "amount", than);
    } else if (ratio < 1) {
      const std::string share = "1/" + significant(1 / ratio, 1 / ratio < 10 ? 2 : 3);
      part = first ? fmt::format("{} of the {}{}", share, quantity.symbol, of) : share;
    } else {
      part = first ? fmt::format("{} the {}{}", times(ratio), quantity.symbol, of) : times(ratio);
    }
    parts.push_back(one.context.empty() ? part : fmt::format("{} ({})", part, one.context));
  }
  const bool takes_memory =
      quantity.measure == Measure::memory && quantity.symbol.find("traffic") == std::string::npos;
  const char* verb = speed                          ? "is"
                     : quantity.field == "q_length" ? "fits sequences"
                     : takes_memory                 ? "needs"
                                                    : "has";
  return fmt::format("{} {}", verb, listed(parts));
}

}  // namespace tessera::lab::report
