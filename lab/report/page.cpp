#include "lab/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <stdexcept>

#include "lab/experiments/origins.h"
#include "lab/report/sentences.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

using Json = nlohmann::ordered_json;

// JSON inside <script>: no "<" may end the element early.
std::string script_json(const Json& value) {
  std::string text;
  for (const char c : value.dump()) text += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return text;
}

Json series_json(const Series& series) {
  Json marks = Json::array();
  for (const Mark& mark : series.marks) {
    Json one = {{"x", mark.x}, {"y", mark.y ? Json(*mark.y) : Json(nullptr)}};
    if (!mark.y) one["status"] = mark.status;
    if (!mark.detail.empty()) one["detail"] = mark.detail;
    if (!mark.reason.empty()) one["detail"] = mark.reason;
    marks.push_back(std::move(one));
  }
  return {{"name", series.name},
          {"color", series.color},
          {"dash", series.dash},
          {"theory", series.theory},
          {"marks", marks}};
}

Json figure_json(const DrawnFigure& figure) {
  Json panels = Json::array();
  for (const Panel& panel : figure.panels) {
    Json all = Json::array();
    for (const Series& series : panel.series) all.push_back(series_json(series));
    panels.push_back({{"title", panel.title}, {"series", all}});
  }
  return {{"kind", figure.spec.kind == FigureKind::bars ? "bars" : "lines"},
          {"x",
           {{"label", axis_label(figure.x.quantity)},
            {"symbol", figure.x.quantity.symbol},
            {"numeric", figure.x.numeric},
            {"log", figure.x.log},
            {"values", figure.x.values},
            {"labels", figure.x.labels}}},
          {"y", {{"label", axis_label(figure.y)}, {"unit", figure.y.unit}, {"log", figure.spec.log_y}}},
          {"overlaid", figure.y.measure == Measure::loss},
          {"panels", panels}};
}

// Of a long list of reasons, which only a status has, the first; all of them where it is pointed
// at.
std::string table_html(const DataTable& table) {
  std::string text = "<div class=\"scroll\"><table><thead><tr>";
  auto cell = [&](const char* tag, std::size_t column, const std::string& content) {
    const std::string shown = content.substr(0, content.find("; "));
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

const char* status_sign(const std::string& status) {
  if (status == "out_of_memory") return "OOM";
  return status == "unsupported" ? "n/a" : "–";
}

// Cells coloured by their value, 0 the lowest and 1 the highest of the figure, so that panels
// compare.
std::string heatmap_html(const DrawnFigure& figure, const Panel& panel) {
  double low = 0, high = 0;
  bool any = false;
  for (const Panel& other : figure.panels) {
    for (const Series& series : other.series) {
      for (const Mark& mark : series.marks) {
        if (!mark.y) continue;
        low = any ? std::min(low, *mark.y) : *mark.y;
        high = any ? std::max(high, *mark.y) : *mark.y;
        any = true;
      }
    }
  }
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
    for (std::size_t x = 0; x < figure.x.labels.size(); ++x) {
      const Mark* mark = series->at(x);
      if (mark == nullptr) {
        text += "<td class=\"absent\"></td>";
      } else if (!mark->y) {
        text += fmt::format("<td class=\"absent\" title=\"{}\">{}</td>", html_text(mark->reason),
                            status_sign(mark->status));
      } else {
        const bool fits = figure.y.field == "status";
        const double share = fits ? 0.3 : high > low ? (*mark->y - low) / (high - low) : 1;
        text += fmt::format("<td class=\"cell{}\" style=\"--share:{:.3f}\" title=\"{}\">{}</td>",
                            share > 0.55 ? " strong" : "", share, html_text(mark->detail),
                            fits ? "fits" : significant(*mark->y));
      }
    }
    text += "</tr>";
  }
  return text + "</tbody></table></div>\n";
}

// "N^1.87" with the exponent raised.
std::string with_exponents(const std::string& text) {
  static const std::regex kPower("\\^(-?[0-9.]*[0-9])");
  return std::regex_replace(text, kPower, "<sup>$1</sup>");
}

std::string paragraphs_html(const std::vector<Paragraph>& all) {
  std::string text = "<div class=\"sentences\">";
  for (const Paragraph& paragraph : all) {
    text += "<p>";
    if (!paragraph.context.empty()) text += fmt::format("<b>{}</b> ", html_text(paragraph.context));
    text += with_exponents(html_text(fmt::format("{}", fmt::join(paragraph.sentences, " ")))) + "</p>";
  }
  return text + "</div>\n";
}

std::string figure_html(const DrawnFigure& figure, const std::string& id, Json& charts) {
  std::string text = fmt::format("<figure id=\"{}\">\n<h3>{}</h3>\n", id, html_text(figure.spec.title));
  if (!figure.caption.empty())
    text += fmt::format("<p class=\"settings\">{}</p>\n", html_text(figure.caption));
  switch (figure.spec.kind) {
    case FigureKind::hierarchy:
    case FigureKind::table: text += table_html(figure.table); break;
    case FigureKind::heatmap:
      text += fmt::format("<p class=\"settings\">colour: {}</p><div class=\"panels\">",
                          html_text(axis_label(figure.y)));
      for (const Panel& panel : figure.panels) text += heatmap_html(figure, panel);
      text += "</div>\n";
      break;
    case FigureKind::lines:
    case FigureKind::bars:
      charts[id] = figure_json(figure);
      text += "<div class=\"legend\"></div><div class=\"panels\">";
      for (const Panel& panel : figure.panels) {
        text += "<div class=\"panel\">";
        if (!panel.title.empty()) text += fmt::format("<h4>{}</h4>", html_text(panel.title));
        text +=
            fmt::format("<div class=\"plot\"><canvas role=\"img\" aria-label=\"{}\"></canvas></div></div>",
                        html_text(figure.spec.title));
      }
      text += "</div>\n";
  }
  text += "<figcaption>\n" + paragraphs_html(paragraphs(figure));
  if (!figure.notes.empty()) {
    text += "<ul class=\"notes\">";
    for (const std::string& note : figure.notes) text += fmt::format("<li>{}</li>", html_text(note));
    text += "</ul>\n";
  }
  text += "</figcaption>\n";
  if (figure.spec.kind != FigureKind::table) {
    text += fmt::format("<details><summary>The {} rows behind this figure</summary>\n{}</details>\n",
                        figure.table.rows.size(), table_html(figure.table));
  }
  return text + "</figure>\n";
}

std::string runs_html(const Report& report) {
  std::string text;
  for (const Run& run : report.runs) {
    const std::string dates = run.first_date == run.last_date
                                  ? run.first_date
                                  : fmt::format("{} – {}", run.first_date, run.last_date);
    std::string counts = fmt::format("{} rows, {} measured", run.rows, run.ok);
    if (run.out_of_memory > 0) counts += fmt::format(", {} out of memory", run.out_of_memory);
    text += fmt::format(
        "<dl class=\"run\"><dt>device</dt><dd><strong>{}</strong> ({})</dd><dt>machine</dt><dd>{}</dd>"
        "<dt>commit</dt><dd><code>{}</code>{}</dd><dt>date</dt><dd>{}</dd><dt>results</dt><dd>{}</dd></dl>\n",
        html_text(run.label), html_text(run.device), html_text(run.machine), html_text(run.commit),
        run.version.empty() ? "" : html_text(", Tessera " + run.version), html_text(dates), counts);
  }
  return text;
}

std::string contents_html(const Report& report) {
  std::string text;
  for (const Section& section : report.sections) {
    const std::string first = section.figures.empty() ? "" : headline(section.figures.front());
    text += fmt::format("<li><a href=\"#{}\">{}</a><span>{}</span></li>\n", html_text(section.spec.name),
                        html_text(section.spec.title), html_text(first));
  }
  return text;
}

std::string studies_html() {
  std::string text = fmt::format("<p>{}</p>\n<ul>\n", html_text(kOriginsPreface));
  for (const Origin& origin : origins()) {
    text += fmt::format("<li><b>{}</b>: {}</li>\n", html_text(origin.name), html_text(origin.what));
  }
  return text + "</ul>\n";
}

std::string sections_html(const Report& report, Json& charts) {
  std::string text;
  for (const Section& section : report.sections) {
    text += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"question\">{}</p>\n",
                        html_text(section.spec.name), html_text(section.spec.title),
                        html_text(section.spec.question));
    if (!section.spec.origin.empty())
      text += fmt::format("<p class=\"origin\">After {}.</p>\n", html_text(section.spec.origin));
    std::size_t number = 0;
    for (const DrawnFigure& figure : section.figures) {
      text += figure_html(figure, fmt::format("{}-{}", section.spec.name, ++number), charts);
    }
    text += "</section>\n";
  }
  if (!report.unmeasured.empty()) {
    text += "<section><h2>Not measured in this run</h2><ul>";
    for (const std::string& title : report.unmeasured) text += fmt::format("<li>{}</li>", html_text(title));
    text += "</ul></section>\n";
  }
  return text;
}

std::string title_of(const Report& report) {
  std::vector<std::string> labels;
  for (const Run& run : report.runs) labels.push_back(run.label);
  return fmt::format("Attention on {}", fmt::join(labels, " and "));
}

// Replaces "{{name}}" by `content`, and continues behind it.
void fill(std::string& page, std::size_t& from, const std::string& name, const std::string& content) {
  const std::string place = "{{" + name + "}}";
  const std::size_t at = page.find(place, from);
  if (at == std::string::npos) throw std::logic_error("page.html has no " + place + " where it is expected");
  page.replace(at, place.size(), content);
  from = at + content.size();
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

std::string report_page(const Report& report, const std::vector<std::string>& links) {
  Json charts = Json::object();
  const std::string sections = sections_html(report, charts);
  std::string raw;
  for (const std::string& link : links) raw += fmt::format("<a href=\"{0}\">{0}</a> ", html_text(link));
  std::string page = embedded::page_html;
  std::size_t from = 0;
  const std::string title = html_text(title_of(report));
  fill(page, from, "title", title);
  fill(page, from, "css", embedded::page_css);
  fill(page, from, "title", title);
  fill(page, from, "runs", runs_html(report));
  fill(page, from, "contents", contents_html(report));
  fill(page, from, "sections", sections);
  fill(page, from, "studies", studies_html());
  fill(page, from, "links", raw);
  fill(page, from, "charts", script_json(charts));
  fill(page, from, "chart_js", embedded::chart_js);
  fill(page, from, "js", embedded::page_js);
  return page;
}

}  // namespace tessera::lab::report
