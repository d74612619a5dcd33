#include "lab/report/page/chart_json.h"

#include <algorithm>
#include <cmath>

namespace tessera::lab::report {
namespace {

using Json = nlohmann::ordered_json;

// Bars start at 0. Where they would span more than this on a logarithmic axis, lines or marks are
// drawn instead.
constexpr double kWidestBars = 40;

// Six digits are more than a chart shows, and keep the page small.
Json rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return 0;
  const double unit = std::pow(10.0, 5 - std::floor(std::log10(std::fabs(value))));
  return std::round(value * unit) / unit;
}

Json series_json(const Series& series) {
  Json marks = Json::array(), points = Json::array();
  for (const Mark& mark : series.marks) {
    Json one = {{"x", mark.x}, {"y", mark.y ? rounded(*mark.y) : Json(nullptr)}};
    if (mark.y && mark.high > mark.low) one["low"] = rounded(mark.low), one["high"] = rounded(mark.high);
    if (mark.noisy()) one["noisy"] = true;
    if (!mark.y) one["status"] = mark.status;
    if (!mark.detail.empty()) one["detail"] = mark.detail;
    if (!mark.reason.empty()) one["detail"] = mark.reason.substr(0, 200);
    marks.push_back(std::move(one));
  }
  for (const StudyPoint& point : series.points) {
    points.push_back(
        {{"x", point.label.empty() ? Json(point.x) : Json(point.label)}, {"y", rounded(point.y)}});
  }
  Json json = {
      {"name", series.name}, {"color", series.color}, {"dash", series.dash}, {"theory", series.theory}};
  if (!series.twin.empty()) json["twin"] = true;
  if (!points.empty()) json["points"] = points;
  json["marks"] = marks;
  return json;
}

bool too_wide_for_bars(const DrawnFigure& figure) {
  double low = 1e300, high = 0;
  for (const Panel& panel : figure.panels) {
    for (const Series& series : panel.series) {
      for (const Mark& mark : series.marks) {
        if (!mark.y || *mark.y <= 0) continue;
        low = std::min(low, *mark.y), high = std::max(high, *mark.y);
      }
    }
  }
  return high > kWidestBars * low;
}

}  // namespace

Json chart_json(const DrawnFigure& figure) {
  Json panels = Json::array();
  for (const Panel& panel : figure.panels) {
    Json all = Json::array();
    for (const Series& series : panel.series) all.push_back(series_json(series));
    panels.push_back({{"title", panel.title}, {"series", all}});
  }
  const bool bars = figure.spec.kind == FigureKind::bars;
  const bool instead = bars && figure.spec.log_y && !figure.spec.stack && too_wide_for_bars(figure);
  const bool line_up =
      instead && figure.x.numeric && figure.x.values.size() > 2 && figure.x.values.front() > 0;
  const bool log = figure.spec.log_y && (!bars || instead);
  const bool log_x = figure.x.log || line_up;
  // The places of a logarithmic axis of times or bytes carry their units themselves.
  const bool units = log && (figure.y.measure == Measure::time || figure.y.measure == Measure::memory);
  return {{"kind", !bars || line_up ? "lines"
                   : instead        ? "dots"
                                    : "bars"},
          {"x",
           {{"label", axis_label(figure.x.quantity) + (log_x ? " (logarithmic)" : "")},
            {"symbol", figure.x.quantity.symbol},
            {"numeric", figure.x.numeric},
            {"log", log_x},
            {"values", figure.x.values},
            {"labels", figure.x.labels}}},
          {"y",
           {{"label", (units ? figure.y.label : axis_label(figure.y)) + (log ? " (logarithmic)" : "")},
            {"unit", figure.y.unit},
            {"scale", figure.y.scale},
            {"measure", figure.y.measure == Measure::time     ? "time"
                        : figure.y.measure == Measure::memory ? "memory"
                                                              : "other"},
            {"log", log}}},
          {"stack", figure.spec.stack},
          {"overlaid", figure.y.measure == Measure::loss},
          {"panels", panels}};
}

std::string script_json(const Json& value) {
  std::string text;
  for (const char c : value.dump()) text += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return text;
}

}  // namespace tessera::lab::report
