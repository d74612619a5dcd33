#include "lab/report/wording.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

// Smaller differences are left out: two digits show them as 1.0×, and many measurements spread that
// far.
constexpr double kSame = 0.05;

// Symbols that are counts: "8 heads", not "heads = 8".
constexpr std::array<std::string_view, 6> kCountSymbols = {"heads",  "kv heads",      "keys",
                                                           "layers", "keys per tile", "threads"};

bool is_count(const Axis& axis) {
  return std::find(kCountSymbols.begin(), kCountSymbols.end(), axis.quantity.symbol) != kCountSymbols.end();
}

// "1/8", "1/2.5", "1/180".
std::string fraction(double ratio) {
  std::string text = significant(1 / ratio, 1 / ratio < 10 ? 2 : 3);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return "1/" + text;
}

}  // namespace

bool alike(double a, double b) { return std::fabs(a / b - 1) < kSame; }

bool noisy(const Mark& a, const Mark& b) {
  if (!a.y || !b.y || *b.y <= 0 || alike(*a.y, *b.y)) return false;
  return std::fabs(*a.y / *b.y - 1) < a.spread + b.spread;
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

std::string times(double ratio) { return significant(ratio, ratio < 10 ? 2 : 3) + "×"; }

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

std::string axis_words(const Axis& axis) {
  const std::string& symbol = axis.quantity.symbol;
  if (is_count(axis)) return "the number of " + symbol;
  return symbol.size() <= 3 ? symbol : "the " + symbol;
}

Relation relation(const Quantity& quantity, double value, double base) {
  const double ratio = value / base;
  const std::string& what = quantity.symbol;
  if (quantity.measure == Measure::time) {
    if (alike(value, base)) return {"is", "as fast", "as"};
    return {"is", ratio < 1 ? times(1 / ratio) + " as fast" : times(ratio) + " as slow", "as"};
  }
  const bool takes_memory = quantity.measure == Measure::memory && what.find("traffic") == std::string::npos;
  const std::string verb = takes_memory ? "needs" : "has";
  if (alike(value, base)) return {verb, fmt::format("the same {}", what), "as"};
  if (ratio < 1 && quantity.measure == Measure::memory) {
    return {verb, fmt::format("{} of the {}", fraction(ratio), what), "of"};
  }
  return {verb, fmt::format("{} the {}", times(ratio), what), "of"};
}

}  // namespace tessera::lab::report
