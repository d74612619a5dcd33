#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <map>

#include "lab/report/figure/fields.h"
#include "lab/report/figure/figure.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

// Elements a row's attention moves, up to a factor; nothing where the row does not say enough.
using Bound = std::function<std::optional<double>(const json& row)>;

std::optional<double> product(const json& row, std::initializer_list<const char*> fields) {
  double value = 1;
  for (const char* field : fields) {
    const auto factor = number_of(row, field);
    if (!factor) return std::nullopt;
    value *= *factor;
  }
  return value;
}

std::optional<double> standard_bound(const json& row) {
  const auto linear = product(row, {"batch", "q_heads", "q_length", "qk_dim"});
  const auto square = product(row, {"batch", "q_heads", "q_length", "k_length"});
  if (!linear || !square) return std::nullopt;
  return *linear + *square;
}

std::optional<double> flash_bound(const json& row) {
  const auto work = product(row, {"batch", "q_heads", "q_length", "k_length", "qk_dim", "qk_dim"});
  const auto memory = product(row, {"qk_dim", "block_k"});
  if (!work || !memory || *memory <= 0) return std::nullopt;
  return *work / (4 * *memory);
}

// The factor that brings `bound` nearest to what the series shows, as a ratio: the mean of the
// logarithms.
double fitted_factor(const Series& series, const std::map<std::size_t, double>& bound) {
  double sum = 0;
  int count = 0;
  for (const Mark& mark : series.marks) {
    const auto found = bound.find(mark.x);
    if (!mark.y || *mark.y <= 0 || found == bound.end() || found->second <= 0) continue;
    sum += std::log(*mark.y / found->second);
    ++count;
  }
  return count > 0 ? std::exp(sum / count) : 0;
}

std::map<std::size_t, double> evaluate(const DrawnFigure& figure, const std::vector<json>& rows,
                                       const std::string& algorithm, const Bound& bound) {
  std::map<std::size_t, double> values;
  for (const json& row : rows) {
    const auto x = number_of(row, figure.x.quantity.field);
    if (!x || (!algorithm.empty() && row.value("algorithm", "") != algorithm)) continue;
    const auto at = std::find(figure.x.values.begin(), figure.x.values.end(), *x * figure.x.quantity.scale);
    if (const auto value = bound(row); value && at != figure.x.values.end()) {
      values[static_cast<std::size_t>(at - figure.x.values.begin())] = *value;
    }
  }
  return values;
}

const Series* find_series(const Panel& panel, const std::string& algorithm) {
  for (const Series& series : panel.series) {
    if (series.primary == algorithm) return &series;
  }
  return nullptr;
}

void draw(Panel& panel, const std::string& name, int dash, const std::map<std::size_t, double>& values,
          double factor) {
  if (values.empty() || factor <= 0) return;
  Series line;
  line.name = line.primary = name;
  line.dash = dash;
  line.theory = true;
  for (const auto& [x, value] : values) line.marks.push_back({.x = x, .y = value * factor});
  panel.series.push_back(std::move(line));
}

}  // namespace

void add_theory(DrawnFigure& figure, const std::vector<json>& rows) {
  const bool traffic = figure.y.field.find("traffic_bytes") != std::string::npos;
  if (!traffic || !figure.x.numeric || figure.spec.kind != FigureKind::lines) return;
  bool drawn = false;
  for (Panel& panel : figure.panels) {
    auto explain = [&](const char* algorithm, const char* name, int dash, const Bound& bound) {
      const Series* series = find_series(panel, algorithm);
      if (series == nullptr) return;
      const auto values = evaluate(figure, rows, algorithm, bound);
      const double factor = fitted_factor(*series, values);
      draw(panel, fmt::format("{}, fitted to {}", name, algorithm), dash, values, factor);
      drawn = drawn || factor > 0;
    };
    explain("standard", "Θ(Nd + N²)", 1, standard_bound);
    explain(find_series(panel, "flash1") != nullptr ? "flash1" : "flash2", "Θ(N²d²/M)", 2, flash_bound);
    const auto least =
        evaluate(figure, rows, "", [](const json& row) { return number_of(row, "minimum_traffic_bytes"); });
    draw(panel, "lower bound: Q, K, V, O once", 3, least, figure.y.scale);
  }
  if (drawn) {
    figure.notes.emplace_back(
        "Θ leaves the constant factor open, so each of these lines is scaled to the series it is fitted to. "
        "M is 4·d·(keys per tile), the numbers that a tile of the row keeps in fast memory");
  }
}

}  // namespace tessera::lab::report
