#include "lab/report/page/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "lab/report/figure/notes.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

constexpr std::size_t kShortTable = 8;

const char* status_sign(const std::string& status) {
  if (status == "out_of_memory") return "OOM";
  return status == "unsupported" ? "n/a" : "–";
}

// The least and the largest value of all panels.
std::pair<double, double> range_of(const DrawnFigure& figure) {
  double low = 0, high = 0;
  bool any = false;
  for (const Panel& panel : figure.panels) {
    for (const Series& series : panel.series) {
      for (const Mark& mark : series.marks) {
        if (!mark.y) continue;
        low = any ? std::min(low, *mark.y) : *mark.y;
        high = any ? std::max(high, *mark.y) : *mark.y;
        any = true;
      }
    }
  }
  return {low, high};
}

// The chart of a card: 200 × 64, drawn in the page's colours.
std::string small_chart_html(const SmallChart& chart) {
  constexpr double kWidth = 200, kHeight = 64, kPad = 5;
  double least_x = 1e300, most_x = -1e300, least_y = 1e300, most_y = -1e300;
  auto scaled = [&](double value) { return chart.log ? std::log(std::max(value, 1e-12)) : value; };
  for (const SmallChart::Curve& curve : chart.curves) {
    for (const auto& [x, y] : curve.points) {
      if (chart.log && y <= 0) continue;
      least_x = std::min(least_x, scaled(x)), most_x = std::max(most_x, scaled(x));
      least_y = std::min(least_y, scaled(y)), most_y = std::max(most_y, scaled(y));
    }
  }
  if (most_x < least_x) return {};
  if (!chart.log) least_y = std::min(0.0, least_y);
  std::string text =
      fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"small chart\">", kWidth, kHeight);
  std::string names;
  std::size_t place = 0;
  for (const SmallChart::Curve& curve : chart.curves) {
    if (curve.points.empty()) continue;
    names += fmt::format("<span><i style=\"background:var(--c{})\"></i>{}</span>", curve.color,
                         html_text(curve.name));
    const double span_y = std::max(most_y - least_y, 1e-12), span_x = std::max(most_x - least_x, 1e-12);
    if (chart.bars) {
      const double step = kWidth / static_cast<double>(chart.curves.size());
      const double height = (kHeight - kPad) * (curve.points.front().second - least_y) / span_y;
      text += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"2\" "
          "style=\"fill:var(--c{})\"/>",
          static_cast<double>(place) * step + step * 0.2, kHeight - height, step * 0.6, std::max(height, 0.5),
          curve.color);
    } else {
      std::string points;
      for (const auto& [x, y] : curve.points) {
        if (chart.log && y <= 0) continue;
        points += fmt::format("{:.1f},{:.1f} ", kPad + (kWidth - 2 * kPad) * (scaled(x) - least_x) / span_x,
                              kHeight - kPad - (kHeight - 2 * kPad) * (scaled(y) - least_y) / span_y);
      }
      text += fmt::format("<polyline points=\"{}\" style=\"stroke:var(--c{})\"/>", points, curve.color);
    }
    ++place;
  }
  return fmt::format("{}</svg><p class=\"names\">{}</p>", text, names);
}

std::string cell_html(const DrawnFigure& figure, const Mark* mark, double low, double high) {
  if (mark == nullptr) return "<td class=\"absent\"></td>";
  if (!mark->y)
    return fmt::format("<td class=\"absent\" title=\"{}\">{}</td>", html_text(mark->reason),
                       status_sign(mark->status));
  const bool fits = figure.y.field == "status";
  const double share = fits ? 0.3 : high > low ? (*mark->y - low) / (high - low) : 1;
  return fmt::format("<td class=\"cell{}\" style=\"--share:{:.3f}\" title=\"{}\">{}{}</td>",
                     share > 0.55 ? " strong" : "", share, html_text(mark->detail), mark->noisy() ? "~" : "",
                     fits ? "fits" : significant(*mark->y));
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += c;
    }
  }
  return result;
}

std::string html_sentence(std::string_view text) {
  static const std::regex kPower("\\^(-?[0-9.]*[0-9])");
  const std::string raised = std::regex_replace(html_text(text), kPower, "<sup>$1</sup>");
  static const std::regex kEquals("([A-Za-z]) = ");  // "N = 512" stays on one line
  return std::regex_replace(raised, kEquals, "$1\u00a0=\u00a0");
}

std::string table_html(const DataTable& table) {
  std::string text = "<div class=\"scroll\"><table><thead><tr>";
  auto cell = [&](const char* tag, std::size_t column, const std::string& content) {
    const std::string shown = table.numeric[column] ? content : short_reason(content);
    const std::string title = shown == content ? "" : fmt::format(" title=\"{}\"", html_text(content));
    text += fmt::format("<{0}{1}{2}>{3}</{0}>", tag, table.numeric[column] ? " class=\"number\"" : "", title,
                        html_text(shown));
  };
  for (std::size_t i = 0; i < table.headers.size(); ++i) cell("th", i, table.headers[i]);
  text += "</tr></thead><tbody>";
  for (const auto& row : table.rows) {
    text += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) cell("td", i, row[i]);
    text += "</tr>";
  }
  return text + "</tbody></table></div>\n";
}

std::string heatmap_html(const DrawnFigure& figure, const Panel& panel) {
  const auto [low, high] = range_of(figure);
  std::string text = "<div class=\"scroll\"><table class=\"heatmap\">";
  if (!panel.title.empty()) text += fmt::format("<caption>{}</caption>", html_text(panel.title));
  text += fmt::format("<thead><tr><th>{} \u2193 &nbsp; {} \u2192</th>",
                      html_text(figure.rows.quantity.symbol), html_text(figure.x.quantity.symbol));
  for (const std::string& label : figure.x.labels) text += fmt::format("<th>{}</th>", html_text(label));
  text += "</tr></thead><tbody>";
  for (const std::string& name : figure.rows.labels) {
    const auto series = std::find_if(panel.series.begin(), panel.series.end(),
                                     [&](const Series& s) { return s.name == name; });
    if (series == panel.series.end()) continue;
    text += fmt::format("<tr><th>{}</th>", html_text(name));
    for (std::size_t x = 0; x < figure.x.labels.size(); ++x)
      text += cell_html(figure, series->at(x), low, high);
    text += "</tr>";
  }
  return text + "</tbody></table></div>\n";
}

std::string hierarchy_html(const DrawnFigure& figure) {
  // One row a level, in the order of the rows; the width follows the logarithm of the size.
  const DataTable& table = figure.table;
  std::string text = "<div class=\"hierarchy\">";
  const std::size_t levels = figure.x.labels.size();
  const DrawnFigure* rate = figure.columns.empty() ? nullptr : &figure.columns.front();
  for (std::size_t x = 0; x < levels; ++x) {
    std::string size = "–", speed = "–";
    for (const Panel& panel : figure.panels) {
      for (const Series& series : panel.series) {
        if (const Mark* mark = series.at(x); mark != nullptr && mark->y)
          size = quantity_text(figure.y, *mark->y);
      }
    }
    for (const Panel& panel : rate == nullptr ? std::vector<Panel>{} : rate->panels) {
      for (const Series& series : panel.series) {
        if (const Mark* mark = series.at(x); mark != nullptr && mark->y)
          speed = quantity_text(rate->y, *mark->y);
      }
    }
    const double width = 30 + 70.0 * static_cast<double>(x + 1) / static_cast<double>(levels);
    text += fmt::format("<div style=\"width:{:.0f}%\"><b>{}</b><span>{}</span><span>{}</span></div>", width,
                        html_text(figure.x.labels[x]), html_text(size), html_text(speed));
  }
  return text + "</div>\n" + (levels == 0 ? table_html(table) : "");
}

std::string comparisons_html(const Reading& reading) {
  if (reading.comparisons.empty()) return {};
  const bool contexts = std::any_of(reading.comparisons.begin(), reading.comparisons.end(),
                                    [](const Comparison& one) { return !one.context.empty(); });
  DataTable table;
  auto add = [&](const std::string& header, bool numeric) {
    table.headers.push_back(header), table.numeric.push_back(numeric);
  };
  if (contexts) add("in", false);
  add("method", false), add("at", false), add("value", true), add(reading.baseline, true);
  add("ratio", true), add("verdict", false);
  for (const Comparison& one : reading.comparisons) {
    std::vector<std::string> cells = {
        one.method, one.place, one.value, one.baseline, one.ratio.empty() ? "–" : one.ratio, one.verdict};
    if (contexts) cells.insert(cells.begin(), one.context);
    table.rows.push_back(std::move(cells));
  }
  const std::string html = table_html(table);
  if (table.rows.size() <= kShortTable) return "<div class=\"comparisons\">" + html + "</div>\n";
  return fmt::format(
      "<details class=\"comparisons\"><summary>All {} comparisons with {}</summary>{}</details>\n",
      table.rows.size(), html_text(reading.baseline), html);
}

std::string card_html(const Finding& finding) {
  return fmt::format("<a class=\"card\" href=\"#{}\"><strong>{}</strong>{}<span>{}</span></a>\n",
                     html_text(finding.experiment), html_text(finding.number),
                     small_chart_html(finding.chart), html_sentence(finding.sentence));
}

std::string difference_html(const Difference& difference) {
  DataTable all{{"experiment", "method", "point", "old", "new", "new / old (interval)", "verdict"},
                {false, false, false, true, true, true, false},
                {}};
  DataTable changed = all;
  for (const ChangedRow& row : difference.rows) {
    std::vector<std::string> cells = {
        row.experiment,         row.method,   row.point,
        row.old_time,           row.new_time, row.ratio > 0 ? ratio_text(row) : "–",
        change_text(row.change)};
    if (row.change != Change::same && row.change != Change::unclear) changed.rows.push_back(cells);
    all.rows.push_back(std::move(cells));
  }
  std::string text = fmt::format(
      "<section id=\"difference\">\n<h2>New run against old run</h2>\n<p class=\"question\">What did {} "
      "change against {}?</p>\n"
      "<p class=\"answer\">Of {}: {}.</p>\n",
      html_text(difference.new_path), html_text(difference.old_path),
      counted(difference.rows.size(), "common point"), html_text(summary_text(difference)));
  if (difference.only_old + difference.only_new > 0)
    text += fmt::format("<p class=\"settings\">{} only in the old run, {} only in the new one.</p>\n",
                        counted(difference.only_old, "point"), difference.only_new);
  if (!changed.rows.empty())
    text += "<figure id=\"difference-1\"><h3>Points that changed</h3>" + table_html(changed) + "</figure>\n";
  return text + fmt::format("<details><summary>All {}</summary>\n{}</details>\n</section>\n",
                            counted(all.rows.size(), "point"), table_html(all));
}

}  // namespace tessera::lab::report
