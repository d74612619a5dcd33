#include "lab/experiments/figure.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace tessera::lab {

const char* name(FigureKind kind) {
  switch (kind) {
    case FigureKind::lines: return "lines";
    case FigureKind::bars: return "bars";
    case FigureKind::heatmap: return "heatmap";
    case FigureKind::table: return "table";
    case FigureKind::hierarchy: break;
  }
  return "hierarchy";
}

std::vector<std::string> fields_of(const Figure& figure) {
  std::vector<std::string> all = {figure.x, figure.value, figure.sum_over, figure.last_of};
  for (const auto* list : {&figure.y, &figure.series, &figure.facets, &figure.bounds}) {
    all.insert(all.end(), list->begin(), list->end());
  }
  std::erase(all, "");
  return all;
}

nlohmann::ordered_json to_json(const Figure& figure) {
  using Json = nlohmann::ordered_json;
  auto text = [](const std::string& value) { return value.empty() ? Json(nullptr) : Json(value); };
  const bool columns = figure.kind == FigureKind::table || figure.kind == FigureKind::hierarchy;
  return {{"kind", name(figure.kind)},
          {"title", figure.title},
          {"x", text(figure.x)},
          {"y", columns ? Json(nullptr) : Json(figure.y.front())},
          {"series", text(fmt::format("{}", fmt::join(figure.series, ",")))},
          {"facets", figure.facets},
          {"log_x", figure.log_x},
          {"log_y", figure.log_y},
          {"value", text(figure.value)},
          {"columns", columns ? figure.y : std::vector<std::string>{}},
          {"bounds", figure.bounds},
          {"sum_over", text(figure.sum_over)},
          {"last_of", text(figure.last_of)},
          {"stack", figure.stack}};
}

}  // namespace tessera::lab
