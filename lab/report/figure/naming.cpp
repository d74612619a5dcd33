#include "lab/report/figure/naming.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lab/report/figure/fields.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

// Methods keep their colour in every figure; those that are never shown together share one. The
// numbers are the colours --c0 to --c12 of page.css; what is no known method takes the ones behind.
constexpr std::array kAlgorithms = {
    std::pair{"standard", 0},       std::pair{"flash1", 1},       std::pair{"flash2", 2},
    std::pair{"flash3", 3},         std::pair{"minimal", 4},      std::pair{"block_sparse", 5},
    std::pair{"sparse_strided", 6}, std::pair{"sparse_fixed", 7}, std::pair{"linformer", 8},
    std::pair{"flash", 2},          std::pair{"megatron", 9},     std::pair{"automatic", 10},
    std::pair{"sdpa", 11},          std::pair{"tessera", 2},      std::pair{"pytorch", 12},
    std::pair{"sdpa_flash", 11},    std::pair{"sdpa_cudnn", 3},   std::pair{"sdpa_efficient", 4},
    std::pair{"sdpa_math", 12},     std::pair{"torch", 12}};
constexpr int kFirstOther = 13;

int index_in(std::vector<std::string>& values, const std::string& value) {
  const auto found = std::find(values.begin(), values.end(), value);
  if (found != values.end()) return static_cast<int>(found - values.begin());
  values.push_back(value);
  return static_cast<int>(values.size()) - 1;
}

}  // namespace

std::optional<int> algorithm_color(const std::string& name) {
  for (const auto& [known, color] : kAlgorithms) {
    if (name == known) return color;
  }
  return std::nullopt;
}

Naming naming_of(const Rows& rows, const std::vector<std::string>& candidates) {
  Naming naming;
  for (const std::string& field : candidates) {
    if (distinct(rows, field).size() > 1) naming.fields.push_back(field);
  }
  if (naming.fields.empty() && !candidates.empty()) naming.fields.push_back(candidates.front());
  if (naming.fields.empty()) return naming;
  const bool by_algorithm =
      std::find(naming.fields.begin(), naming.fields.end(), "algorithm") != naming.fields.end();
  naming.primary = by_algorithm ? "algorithm" : naming.fields.front();
  naming.colors = distinct(rows, naming.primary);
  return naming;
}

Series name_series(const json& row, Naming& naming, const Quantity& y) {
  Series series;
  if (naming.fields.empty()) {
    series.name = series.primary = y.label;
    return series;
  }
  std::vector<std::string> rest;
  for (const std::string& field : naming.fields) {
    (field == naming.primary ? series.primary : rest.emplace_back()) = named_value_text(row, field);
  }
  series.rest = fmt::format("{}", fmt::join(rest, ", "));
  series.name = series.rest.empty() ? series.primary : fmt::format("{} · {}", series.primary, series.rest);
  const std::string value = value_text(field_value(row, naming.primary));
  const int index = index_in(naming.colors, value);
  series.color = naming.primary == "algorithm" ? algorithm_color(value).value_or(kFirstOther + index)
                                               : kFirstOther + index;
  series.dash = index_in(naming.dashes, series.rest);
  return series;
}

void name_field(Series& series, const std::vector<std::string>& fields, std::size_t index) {
  const std::string what = quantity_of(fields[index], "", 0).symbol;
  series.rest += (series.rest.empty() ? "" : ", ") + what;
  series.name += (series.name == series.primary ? " · " : ", ") + what;
  series.dash = series.dash * static_cast<int>(fields.size()) + static_cast<int>(index);
}

}  // namespace tessera::lab::report
