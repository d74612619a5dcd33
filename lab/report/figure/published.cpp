#include "lab/report/figure/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/experiments/origins.h"
#include "lab/report/figure/fields.h"
#include "lab/report/figure/naming.h"
#include "lab/report/figure/rows.h"
#include "lab/report/words/wording.h"
#include "lab/terminal/units.h"

namespace tessera::lab::embedded {
extern const char* const published_json;  // made from lab/report/figure/published.json by the build
}

namespace tessera::lab::report {
namespace {

using nlohmann::json;

constexpr double kFarApart = 2;  // values further from ours than this are scaled

const json& published() {
  static const json kAll = json::parse(embedded::published_json);
  return kAll;
}

std::string origin_name(const std::string& key) {
  if (key == "t4") return origin::kT4;
  if (key == "sweeps") return origin::kSweeps;
  if (key == "tables") return origin::kTables;
  return key == "minimal" ? origin::kMinimal : origin::kPaper;
}

bool is_about(const json& entry, const std::string& experiment) {
  const json& names = entry["experiments"];
  return std::find(names.begin(), names.end(), experiment) != names.end();
}

// Whether the values of a part of a study belong into a panel.
bool fits(const json& drawing, const DrawnFigure& figure, const Panel& panel) {
  if (!drawing.contains("panel")) return true;
  return std::all_of(drawing["panel"].items().begin(), drawing["panel"].items().end(), [&](const auto& item) {
    const auto& facets = figure.spec.facets;
    const bool split = std::find(facets.begin(), facets.end(), item.key()) != facets.end();
    const std::string value = value_text(item.value());
    return !split || panel.title == value || panel.title.starts_with(value + ", ") ||
           panel.title.ends_with(", " + value) || panel.title.find(", " + value + ", ") != std::string::npos;
  });
}

// By how much the rows of a study divided its lengths, so that a CPU finishes; 1 elsewhere.
double study_divisor(const std::vector<json>& rows) {
  for (const json& row : rows) {
    if (const auto factor = number_of(row, "study_factor"); factor.value_or(0) > 0) return *factor;
  }
  return 1;
}

bool is_length(const std::string& field) { return field == "q_length" || field == "k_length"; }

// Our value nearest to a point of a study: of the series of the same method if there is one.
std::optional<double> ours_near(const DrawnFigure& figure, const Panel& panel, const StudyPoint& point,
                                const std::string& primary) {
  std::optional<double> nearest;
  double least = 1e300;
  for (const Series& series : panel.series) {
    if (series.theory || !series.points.empty()) continue;
    for (const Mark& mark : series.marks) {
      if (!mark.y || *mark.y <= 0) continue;
      double distance = series.primary == primary ? 0 : 1e6;
      if (figure.x.numeric) {
        distance += std::fabs(std::log(std::max(figure.x.values[mark.x], 1e-9) / std::max(point.x, 1e-9)));
      } else if (figure.x.labels[mark.x] != point.label) {
        continue;
      }
      if (distance < least) least = distance, nearest = *mark.y;
    }
  }
  return nearest;
}

Series study_series(const json& entry, const json& drawing, const DrawnFigure& figure, double divisor) {
  Series series;
  series.primary = drawing["series"].get<std::string>();
  series.color = algorithm_color(series.primary).value_or(0);
  for (const Panel& panel : figure.panels) {  // the colour of our series of the same name
    for (const Series& other : panel.series) {
      if (other.primary == series.primary && !other.theory) series.color = other.color;
    }
  }
  const std::string machine = entry.contains("machine") ? " on a " + entry["machine"].get<std::string>() : "";
  series.name = fmt::format("{}{} (study)", series.primary, machine);
  for (const json& point : drawing["points"]) {
    StudyPoint one{.y = point[1].get<double>() * figure.y.scale};
    if (point[0].is_string()) one.label = point[0].get<std::string>();
    else one.x = point[0].get<double>() * figure.x.quantity.scale / (is_length(figure.spec.x) ? divisor : 1);
    if (!figure.x.numeric && one.label.empty()) one.label = value_text(json(one.x));
    series.points.push_back(one);
  }
  return series;
}

// One factor that brings the values of a study near ours; 1 where they already are, or have no
// unit.
double study_factor(const DrawnFigure& figure, const std::vector<std::pair<std::size_t, Series>>& all) {
  if (figure.y.unit == "×" || figure.y.unit == "%" || figure.y.unit.empty()) return 1;
  double sum = 0;
  int count = 0;
  for (const auto& [panel, series] : all) {
    for (const StudyPoint& point : series.points) {
      const auto ours = ours_near(figure, figure.panels[panel], point, series.primary);
      if (!ours || point.y <= 0) continue;
      sum += std::log(*ours / point.y);
      ++count;
    }
  }
  const double factor = count == 0 ? 1 : std::exp(sum / count);
  return factor > 1 / kFarApart && factor < kFarApart ? 1 : factor;
}

// --- what is comparable here ---------------------------------------------------------------------

// A place of a study in the rows of a run: a length is divided as the rows say.
std::string here_text(const std::string& field, const json& value, double divisor) {
  return is_length(field) && value.is_number() ? value_text(json(value.get<double>() / divisor))
                                               : value_text(value);
}

bool matches(const json& row, const json& where, double divisor) {
  return row["status"] == "ok" &&
         std::all_of(where.items().begin(), where.items().end(), [&](const auto& item) {
           return value_text(field_value(row, item.key())) == here_text(item.key(), item.value(), divisor);
         });
}

std::string place_text(const json& row, const std::string& field) {
  const json value = field_value(row, field);
  if (value.is_string()) return "with " + value.get<std::string>();
  return "at " + named_value_text(row, field);
}

std::string field_text(const std::string& field, double value) {
  const Quantity quantity = quantity_of(field, "", value);
  return quantity_text(quantity, value * quantity.scale);
}

std::string points_here(const json& here, const Rows& rows, double divisor) {
  const std::string field = here["field"], x = here["x"];
  std::vector<std::string> parts;
  for (const json& at : here["at"]) {
    for (const json* row : rows) {
      const auto value = number_of(*row, field);
      if (!value || value_text(field_value(*row, x)) != here_text(x, at, divisor)) continue;
      parts.push_back(fmt::format("{} {}", field_text(field, *value), place_text(*row, x)));
      break;
    }
  }
  return listed(parts);
}

std::string ratios_here(const json& here, const Rows& rows) {
  const std::string field = here["field"], of = here["of"];
  std::vector<std::string> point;
  for (const Field& known : fields()) {
    if (known.role == Role::key && known.name != of) point.push_back(known.name);
  }
  std::vector<double> ratios;
  for (const json* over : rows) {
    if (value_text(field_value(*over, of)) != value_text(here["values"][0])) continue;
    for (const json* under : rows) {
      if (value_text(field_value(*under, of)) != value_text(here["values"][1])) continue;
      const auto a = number_of(*over, field), b = number_of(*under, field);
      if (a && b && *b > 0 && key_of(*over, point) == key_of(*under, point)) ratios.push_back(*a / *b);
    }
  }
  if (ratios.empty()) return {};
  std::sort(ratios.begin(), ratios.end());
  const std::string words = here["words"];
  const std::string low = significant(ratios.front(), 2), high = significant(ratios.back(), 2);
  if (low == high) return fmt::format("{} {}", low, words);
  return fmt::format("{} to {} {}, with a median of {}", low, high, words,
                     significant(ratios[ratios.size() / 2], 2));
}

std::string highest_here(const json& here, const Rows& rows) {
  const std::string field = here["field"];
  const json* best = nullptr;
  for (const json* row : rows) {
    if (!number_of(*row, field)) continue;
    if (best == nullptr || *number_of(*row, field) > *number_of(*best, field)) best = row;
  }
  if (best == nullptr) return {};
  std::vector<std::string> places;
  for (const json& x : here["x"]) places.push_back(named_value_text(*best, x.get<std::string>()));
  return fmt::format("the highest is {} at {}", field_text(field, *number_of(*best, field)), listed(places));
}

std::string mean_here(const json& here, const Rows& rows) {
  const std::string field = here["field"];
  double sum = 0;
  int count = 0;
  for (const json* row : rows) {
    if (const auto value = number_of(*row, field)) sum += *value, ++count;
  }
  if (count == 0) return {};
  const double mean = sum / count;
  return fmt::format(
      "it {} {} % {} on average over {} point{}", mean < 0 ? "cost" : "saved",
      significant(std::fabs(mean), 3),
      mean < 0 ? "more " + here["words"].get<std::string>().substr(7) : here["words"].get<std::string>(),
      count, count == 1 ? "" : "s");
}

std::string found_here(const json& here, const Rows& all, double divisor) {
  Rows rows;
  for (const json* row : all) {
    if (matches(*row, here.value("where", json::object()), divisor)) rows.push_back(row);
  }
  const std::string kind = here["kind"];
  if (kind == "points") return points_here(here, rows, divisor);
  if (kind == "ratio") return ratios_here(here, rows);
  return kind == "highest" ? highest_here(here, rows) : mean_here(here, rows);
}

}  // namespace

void add_studies(DrawnFigure& figure, const std::string& experiment, const std::vector<json>& rows) {
  const double divisor = study_divisor(rows);
  if (figure.spec.kind != FigureKind::lines && figure.spec.kind != FigureKind::bars) return;
  for (const json& entry : published()) {
    if (!is_about(entry, experiment) || !entry.contains("draw")) continue;
    std::vector<std::pair<std::size_t, Series>> drawn;
    for (const json& drawing : entry["draw"]) {
      if (drawing["y"] != figure.spec.y.front() || drawing["x"] != figure.spec.x) continue;
      for (std::size_t panel = 0; panel < figure.panels.size(); ++panel) {
        if (fits(drawing, figure, figure.panels[panel]))
          drawn.emplace_back(panel, study_series(entry, drawing, figure, divisor));
      }
    }
    if (drawn.empty()) continue;
    const double factor = study_factor(figure, drawn);
    for (auto& [panel, series] : drawn) {
      for (StudyPoint& point : series.points) point.y *= factor;
      if (factor != 1) series.name += fmt::format(", × {}", significant(factor, 2));
      figure.panels[panel].series.push_back(std::move(series));
    }
    figure.notes.push_back(fmt::format("Hollow diamonds: {}, {} ({}){}", origin_name(entry["origin"]),
                                       entry["what"].get<std::string>(), entry["setting"].get<std::string>(),
                                       factor == 1 ? "." : ", scaled by one factor so that shapes compare."));
    if (divisor != 1 && is_length(figure.spec.x))
      figure.notes.back() +=
          fmt::format(" Its lengths are divided by {}, as those of this run are.", significant(divisor));
  }
}

std::vector<StudyFinding> study_findings(const std::string& experiment, const std::vector<json>& rows) {
  // Of several machines or commits, the one with the most rows.
  std::string run;
  std::ptrdiff_t most = 0;
  for (const json& row : rows) {
    const std::string label = row.value("run", "");
    const auto count = std::count_if(rows.begin(), rows.end(),
                                     [&](const json& other) { return other.value("run", "") == label; });
    if (label != run && count > most) run = label, most = count;
  }
  Rows own;
  for (const json& row : rows) {
    if (row.value("run", "") == run) own.push_back(&row);
  }
  const double divisor = study_divisor(rows);
  std::vector<StudyFinding> findings;
  for (const json& entry : published()) {
    if (!is_about(entry, experiment)) continue;
    StudyFinding finding;
    finding.found = fmt::format("{} ({}): {}", capitalised(origin_name(entry["origin"])),
                                entry["what"].get<std::string>(), entry["found"].get<std::string>());
    finding.here = found_here(entry["here"], own, divisor);
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace tessera::lab::report
