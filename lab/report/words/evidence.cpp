#include "lab/report/words/evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lab/report/figure/fields.h"
#include "lab/report/figure/marks.h"
#include "lab/report/figure/naming.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {

using nlohmann::json;

Evidence Evidence::with(const Where& where) const {
  Rows chosen;
  for (const json* row : rows_) {
    const bool all = std::all_of(where.begin(), where.end(), [&](const auto& one) {
      return value_text(field_value(*row, one.first)) == one.second;
    });
    if (all) chosen.push_back(row);
  }
  return Evidence(chosen);
}

Evidence Evidence::measured() const {
  Rows chosen;
  for (const json* row : rows_) {
    if ((*row)["status"] == "ok") chosen.push_back(row);
  }
  return Evidence(chosen);
}

std::string Evidence::ours() const {
  const Evidence ok = measured();
  for (const char* name : {"flash3", "flash2", "flash1", "flash", "tessera"}) {
    if (!ok.with({{"algorithm", name}}).rows().empty()) return name;
  }
  return {};
}

std::vector<RowPair> Evidence::pairs(const std::string& of, const std::string& a, const std::string& b,
                                     const std::string& field, const std::string& order) const {
  std::vector<std::string> point;
  for (const Field& known : fields()) {
    const bool follows = of == "mask" && known.name == "kept_share";
    if (known.role == Role::key && known.name != of && !follows) point.push_back(known.name);
  }
  const Evidence bases = with({{of, b}});
  std::vector<RowPair> found;
  for (const json* row : with({{of, a}}).rows()) {
    const auto value = measured_mark(*row, field);
    for (const json* other : bases.rows()) {
      const auto base = measured_mark(*other, field);
      if (!value || !base || key_of(*row, point) != key_of(*other, point)) continue;
      found.push_back({row, other, *value, *base});
      break;
    }
  }
  std::stable_sort(found.begin(), found.end(), [&](const RowPair& x, const RowPair& y) {
    return number_of(*x.a, order).value_or(0) < number_of(*y.a, order).value_or(0);
  });
  return found;
}

std::pair<Axis, Series> Evidence::curve(const std::string& x, const std::string& y) const {
  Axis axis;
  axis.quantity = quantity_of(x, "", 0);
  std::set<double> places;
  for (const json* row : rows_) {
    if (const auto value = number_of(*row, x)) places.insert(*value);
  }
  axis.values.assign(places.begin(), places.end());
  for (const double value : axis.values) axis.labels.push_back(value_text(json(value)));
  Series series;
  std::vector<std::optional<double>> rates;
  for (std::size_t place = 0; place < axis.values.size(); ++place) {
    for (const json* row : rows_) {
      auto mark = measured_mark(*row, y);
      if (!mark || number_of(*row, x) != axis.values[place]) continue;
      mark->x = place;
      series.marks.push_back(*mark);
      rates.push_back(number_of(*row, "tflops"));
      break;
    }
  }
  if (y == "median_ms") mark_overhead(series, rates);
  return {axis, series};
}

std::string place_of(const json& row, const std::string& field) { return named_value_text(row, field); }

std::string text_of(const std::string& field, double value) {
  const Quantity quantity = quantity_of(field, "", value);
  return quantity_text(quantity, value * quantity.scale);
}

std::string range_text(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::string low = significant(values.front(), 2), high = significant(values.back(), 2);
  return low == high ? low : fmt::format("{} to {}", low, high);
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

SmallChart::Curve small_curve(const Evidence& evidence, const std::string& method, const std::string& x,
                              const std::string& y) {
  SmallChart::Curve curve{method, algorithm_color(method).value_or(13), {}};
  const auto [axis, series] = evidence.with({{"algorithm", method}}).curve(x, y);
  for (const Mark& mark : series.marks) curve.points.emplace_back(axis.values[mark.x], *mark.y);
  return curve;
}

SmallChart::Curve small_bar(const std::string& name, double value, std::size_t place) {
  const int other = 13 + static_cast<int>(place);
  return {name, algorithm_color(name).value_or(other), {{static_cast<double>(place), value}}};
}

}  // namespace tessera::lab::report
