#include "lab/report/figure/marks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lab/report/figure/fields.h"
#include "lab/report/figure/rows.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

constexpr double kCoincide = 0.01;

struct Quartiles {
  double low, median, high;
};

std::optional<Quartiles> time_quartiles(const json& row) {
  const auto median = number_of(row, "median_ms"), low = number_of(row, "lower_quartile_ms"),
             high = number_of(row, "upper_quartile_ms");
  if (!median || !low || !high || *median <= 0 || *low <= 0) return std::nullopt;
  return Quartiles{*low, *median, *high};
}

std::string detail_of(const json& row) {
  std::vector<std::string> parts;
  if (row.contains("kernel") && row["kernel"].is_string()) parts.push_back(row["kernel"]);
  if (const auto times = time_quartiles(row)) {
    parts.push_back(
        fmt::format("quartiles {} to {}", duration_text(times->low / 1e3), duration_text(times->high / 1e3)));
  }
  if (const auto count = number_of(row, "repetitions")) parts.push_back(fmt::format("{:.0f} calls", *count));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// The quartiles of a value; of an exact one, twice the value.
void set_quartiles(Mark& mark, const json& row, const Quantity& quantity, const std::string& field) {
  mark.low = mark.high = *mark.y;
  const auto times = time_quartiles(row);
  if (field == "speedup_over_standard") {
    mark.low = number_of(row, "speedup_lower_quartile").value_or(*mark.y / quantity.scale) * quantity.scale;
    mark.high = number_of(row, "speedup_upper_quartile").value_or(*mark.y / quantity.scale) * quantity.scale;
  } else if (!times) {
    return;
  } else if (field == "median_ms") {
    mark.low = times->low * quantity.scale;
    mark.high = times->high * quantity.scale;
  } else if (quantity.measure == Measure::rate) {
    mark.low = *mark.y * times->median / times->high;
    mark.high = *mark.y * times->median / times->low;
  }
}

}  // namespace

bool Mark::noisy() const { return y && *y > 0 && high - low > kNoisyRange * *y; }

const Mark* Series::at(std::size_t place) const {
  for (const Mark& mark : marks) {
    if (mark.x == place) return &mark;
  }
  return nullptr;
}

std::size_t position(const Axis& axis, const json& row) {
  const std::string& field = axis.quantity.field;
  if (!axis.numeric) {
    const std::string text = value_text(field_value(row, field));
    return static_cast<std::size_t>(std::find(axis.labels.begin(), axis.labels.end(), text) -
                                    axis.labels.begin());
  }
  const double value = *number_of(row, field) * axis.quantity.scale;
  return static_cast<std::size_t>(std::lower_bound(axis.values.begin(), axis.values.end(), value) -
                                  axis.values.begin());
}

Mark make_mark(const json& row, const DrawnFigure& figure, const std::string& field) {
  Mark mark{.x = position(figure.x, row), .status = row["status"].get<std::string>()};
  if (row.contains("reason") && row["reason"].is_string())
    mark.reason = one_line(row["reason"].get<std::string>());
  if (mark.status != "ok") {
    // A row may say why in the status itself: "unsupported: no kernel for fp8".
    if (const std::size_t colon = mark.status.find(':'); colon != std::string::npos) {
      if (mark.reason.empty()) mark.reason = one_line(mark.status.substr(colon + 1));
      mark.status.resize(colon);
    }
    return mark;
  }
  mark.detail = detail_of(row);
  const auto value = field == "status" ? std::optional<double>(1) : number_of(row, field);
  if (!value) {
    mark.status = "no_value";
    return mark;
  }
  mark.y = *value * figure.y.scale;
  set_quartiles(mark, row, figure.y, field);
  return mark;
}

std::optional<Mark> measured_mark(const json& row, const std::string& field) {
  const auto value = number_of(row, field);
  if (row["status"] != "ok" || !value) return std::nullopt;
  const Field* known = find_field(field);
  Mark mark{.y = *value};
  Quantity quantity;
  if (known != nullptr) quantity.measure = known->measure;
  set_quartiles(mark, row, quantity, field);
  return mark;
}

void add_speedup_quartiles(std::vector<json>& rows) {
  std::vector<std::string> point = {"run"};
  for (const Field& field : fields()) {
    if (field.role == Role::key && field.name != "algorithm") point.push_back(field.name);
  }
  std::map<std::string, Quartiles> standard;
  for (const json& row : rows) {
    const auto times = time_quartiles(row);
    if (times && row.value("algorithm", json()) == "standard") standard[key_of(row, point)] = *times;
  }
  for (json& row : rows) {
    const auto times = time_quartiles(row);
    const auto base = standard.find(key_of(row, point));
    if (!times || base == standard.end() || !number_of(row, "speedup_over_standard")) continue;
    const bool itself = row.value("algorithm", json()) == "standard";
    row["speedup_lower_quartile"] = itself ? 1 : base->second.low / times->high;
    row["speedup_upper_quartile"] = itself ? 1 : base->second.high / times->low;
  }
}

void mark_overhead(Series& series, const std::vector<std::optional<double>>& rates) {
  const auto best = std::max_element(rates.begin(), rates.end());  // nothing is less than any rate
  if (best == rates.end() || !*best) return;
  const Mark& fastest = series.marks[static_cast<std::size_t>(best - rates.begin())];
  for (std::size_t i = 0; i < series.marks.size(); ++i) {
    Mark& mark = series.marks[i];
    mark.overhead = mark.y && fastest.y && *mark.y < *fastest.y && rates[i] && *rates[i] < **best / 2;
  }
}

void find_twins(Panel& panel) {
  for (std::size_t i = 0; i < panel.series.size(); ++i) {
    Series& series = panel.series[i];
    for (std::size_t j = 0; j < i && series.twin.empty(); ++j) {
      const Series& other = panel.series[j];
      std::size_t common = 0;
      bool equal = !other.theory && !series.theory;
      for (const Mark& mark : series.marks) {
        const Mark* there = other.at(mark.x);
        if (!mark.y || there == nullptr || !there->y) continue;
        ++common;
        equal = equal && std::fabs(*mark.y - *there->y) <= kCoincide * std::fabs(*there->y);
      }
      if (equal && common >= 2) series.twin = other.name;
    }
  }
}

}  // namespace tessera::lab::report
