#include "lab/report/page/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "lab/experiments/origins.h"
#include "lab/report/page/chart_json.h"
#include "lab/report/page/html.h"
#include "lab/report/words/answers.h"
#include "lab/report/words/reading.h"
#include "lab/terminal/text.h"

namespace tessera::lab::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostNotes = 6;

std::string drawing_html(const DrawnFigure& figure, const std::string& id, Json& charts) {
  std::string text;
  switch (figure.spec.kind) {
    case FigureKind::table: return table_html(figure.table);
    case FigureKind::heatmap:
      text = fmt::format("<p class=\"settings\">colour: {}</p><div class=\"panels\">",
                         html_text(axis_label(figure.y)));
      for (const Panel& panel : figure.panels) text += heatmap_html(figure, panel);
      return text + "</div>\n";
    case FigureKind::hierarchy: return hierarchy_html(figure);
    case FigureKind::lines:
    case FigureKind::bars: break;
  }
  charts[id] = chart_json(figure);
  text = "<div class=\"legend\"></div><div class=\"panels\">";
  for (const Panel& panel : figure.panels) {
    text += "<div class=\"panel\">";
    if (!panel.title.empty()) text += fmt::format("<h4>{}</h4>", html_text(panel.title));
    text += fmt::format("<div class=\"plot\"><canvas role=\"img\" aria-label=\"{}\"></canvas></div></div>",
                        html_text(figure.spec.title));
  }
  return text + "</div>\n";
}

std::string notes_html(const std::vector<std::string>& notes) {
  if (notes.empty()) return {};
  std::string text = "<ul class=\"notes\">";
  for (std::size_t i = 0; i < std::min(notes.size(), kMostNotes); ++i)
    text += fmt::format("<li>{}</li>", html_text(notes[i]));
  if (notes.size() > kMostNotes)
    text += fmt::format("<li>{} more in the rows below.</li>", counted(notes.size() - kMostNotes, "note"));
  return text + "</ul>\n";
}

std::string figure_html(const DrawnFigure& figure, const std::string& id, std::size_t number, Json& charts) {
  std::string text = fmt::format("<figure id=\"{0}\">\n<h3><a href=\"#{0}\">Figure {1}</a> {2}</h3>\n", id,
                                 number, html_text(figure.spec.title));
  if (!figure.caption.empty())
    text += fmt::format("<p class=\"settings\">{}</p>\n", html_text(figure.caption));
  text += drawing_html(figure, id, charts);
  const Reading reading = reading_of(figure);
  text += "<figcaption>\n<p class=\"sentences\">";
  for (const std::string& sentence : reading.sentences)
    text += fmt::format("<span>{}</span> ", html_sentence(sentence));
  text += "</p>\n" + comparisons_html(reading) + notes_html(figure.notes) + "</figcaption>\n";
  if (figure.spec.kind != FigureKind::table) {
    text +=
        fmt::format("<details class=\"rows\"><summary>The {} behind this figure</summary>\n{}</details>\n",
                    counted(figure.table.rows.size(), "row"), table_html(figure.table));
  }
  return text + "</figure>\n";
}

std::string noise_text(const Run& run) {
  if (run.timed == 0) return "no row has quartiles";
  return fmt::format("{}: {} of {} timed rows have quartiles more than 10 % apart",
                     run.is_noisy() ? "noisy" : "quiet enough", run.noisy, run.timed);
}

std::string runs_html(const Report& report) {
  std::string text;
  for (const Run& run : report.runs) {
    const std::string first = run.first_date.substr(0, 10), last = run.last_date.substr(0, 10);
    std::string counts = fmt::format("{}, {} measured", counted(run.rows, "row"), run.ok);
    if (run.out_of_memory > 0) counts += fmt::format(", {} out of memory", run.out_of_memory);
    text += fmt::format(
        "<dl class=\"run{}\"><dt>device</dt><dd><strong>{}</strong> ({})</dd><dt>machine</dt><dd>{}</dd>"
        "<dt>commit</dt><dd><code>{}</code>{}{}</dd><dt>date</dt><dd>{}</dd><dt>results</dt><dd>{}</dd>"
        "<dt>noise</dt><dd>{}</dd></dl>\n",
        run.outdated ? " stale" : "", html_text(run.label), html_text(run.device), html_text(run.machine),
        html_text(run.commit), run.version.empty() ? "" : html_text(", Tessera " + run.version),
        run.outdated ? " · <b>stale</b>: a newer commit is on this page" : "",
        html_text(first == last ? first : fmt::format("{} to {}", first, last)), counts, noise_text(run));
  }
  return text;
}

// What a reader must know before the first number.
std::string warnings_html(const Report& report) {
  std::string text;
  for (const Run& run : report.runs) {
    if (!run.is_noisy()) continue;
    text += fmt::format(
        "<p class=\"warning\"><b>This run is noisy.</b> On {}, {} of {} timed rows ({:.0f} %) have quartiles "
        "more than 10 % "
        "apart, so small differences mean little. Those points are marked ~.</p>\n",
        html_text(run.label), run.noisy, run.timed,
        100 * static_cast<double>(run.noisy) / static_cast<double>(run.timed));
  }
  std::vector<std::string> old;
  for (const Run& run : report.runs) {
    if (run.outdated)
      old.push_back(fmt::format("{} ({})", run.commit.substr(0, 7), run.first_date.substr(0, 10)));
  }
  if (!old.empty())
    text += fmt::format(
        "<p class=\"warning\"><b>Rows of several commits.</b> Stale, because a newer commit of the same "
        "machine is on "
        "this page: {}. Their sections say so.</p>\n",
        html_text(fmt::format("{}", fmt::join(old, ", "))));
  return text;
}

std::string findings_html(const Report& report) {
  const std::vector<Finding> findings = top_findings(report);
  if (findings.empty()) return {};
  std::string text = "<div class=\"cards\">\n";
  for (const Finding& finding : findings) text += card_html(finding);
  return text + "</div>\n";
}

std::string contents_html(const Report& report, bool with_difference) {
  std::string text;
  if (with_difference) text += "<li><a href=\"#difference\">New against old</a></li>\n";
  for (const Section& section : report.sections) {
    text += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", html_text(section.spec.name),
                        html_text(section.spec.title));
  }
  return text + "<li><a href=\"#studies\">Origins</a></li>\n";
}

std::string studies_html() {
  std::string text = fmt::format("<p>{}</p>\n<ul>\n", html_text(kOriginsPreface));
  for (const Origin& origin : origins()) {
    text += fmt::format("<li><b>{}</b>: {}</li>\n", html_text(origin.name), html_text(origin.what));
  }
  return text + "</ul>\n";
}

std::string section_html(const Section& section, std::size_t& figures, Json& charts) {
  std::string stale;
  for (const std::string& commit : section.stale)
    stale += fmt::format(" <span class=\"badge\">stale: {}</span>", html_text(commit));
  std::string text = fmt::format("<section id=\"{}\">\n<h2>{}{}</h2>\n<p class=\"question\">{}</p>\n",
                                 html_text(section.spec.name), html_text(section.spec.title), stale,
                                 html_text(section.spec.question));
  if (const Answer answer = answer_of(section); !answer.sentence.empty())
    text += fmt::format("<p class=\"answer\">{}</p>\n", html_sentence(answer.sentence));
  if (!section.findings.empty()) {
    text += "<ul class=\"found\">\n";
    for (const StudyFinding& finding : section.findings) {
      text += fmt::format("<li>{} — {}.</li>\n", html_text(finding.found),
                          finding.here.empty() ? "not measured here" : "here " + html_text(finding.here));
    }
    text += "</ul>\n";
  }
  for (const std::string& note : section.notes)
    text += fmt::format("<p class=\"warning\">{}</p>\n", html_text(note));
  std::size_t own = 0;
  for (const DrawnFigure& figure : section.figures) {
    text += figure_html(figure, fmt::format("{}-{}", section.spec.name, ++own), ++figures, charts);
  }
  if (!section.spec.origin.empty())
    text += fmt::format("<p class=\"origin\">After {}.</p>\n", html_text(section.spec.origin));
  return text + "</section>\n";
}

std::string sections_html(const Report& report, Json& charts) {
  std::string text;
  std::size_t figures = 0;
  for (const Section& section : report.sections) text += section_html(section, figures, charts);
  if (!report.unmeasured.empty()) {
    text += "<section><h2>Not measured in this run</h2><ul>";
    for (const std::string& title : report.unmeasured) text += fmt::format("<li>{}</li>", html_text(title));
    text += "</ul></section>\n";
  }
  return text;
}

std::string title_of(const Report& report) {
  std::vector<std::string> places;
  for (const Run& run : report.runs) {
    const std::string place = run.gpu.empty() ? split(run.machine, ',').front() : run.gpu;
    if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
  }
  return fmt::format("Attention on {}", fmt::join(places, " and "));
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

std::string report_page(const Report& report, const std::vector<std::string>& links,
                        const std::optional<Difference>& difference) {
  Json charts = Json::object();
  const bool compared = difference && !difference->rows.empty();
  std::string sections = compared ? difference_html(*difference) : "";
  sections += sections_html(report, charts);
  std::string raw;
  for (const std::string& link : links) raw += fmt::format("<a href=\"{0}\">{0}</a> ", html_text(link));
  std::string page = embedded::page_html;
  std::size_t from = 0;
  const std::string title = html_text(title_of(report));
  fill(page, from, "title", title);
  fill(page, from, "css", embedded::page_css);
  fill(page, from, "contents", contents_html(report, compared));
  fill(page, from, "title", title);
  fill(page, from, "warnings", warnings_html(report));
  fill(page, from, "findings", findings_html(report));
  fill(page, from, "runs", runs_html(report));
  fill(page, from, "sections", sections);
  fill(page, from, "studies", studies_html());
  fill(page, from, "links", raw);
  fill(page, from, "charts", script_json(charts));
  fill(page, from, "chart_js", embedded::chart_js);
  fill(page, from, "js", embedded::page_js);
  return page;
}

}  // namespace tessera::lab::report
