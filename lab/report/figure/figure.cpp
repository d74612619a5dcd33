#include "lab/report/figure/figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lab/report/figure/data_table.h"
#include "lab/report/figure/fields.h"
#include "lab/report/figure/marks.h"
#include "lab/report/figure/naming.h"
#include "lab/report/figure/notes.h"
#include "lab/report/figure/rows.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

double largest_of(const Rows& rows, const std::string& field) {
  double largest = 0;
  for (const json* row : rows) largest = std::max(largest, number_of(*row, field).value_or(0));
  return largest;
}

Axis make_axis(const Rows& rows, const std::string& field, const std::string& unit, bool log) {
  Axis axis;
  axis.quantity = quantity_of(field, unit, largest_of(rows, field));
  axis.numeric = std::all_of(rows.begin(), rows.end(),
                             [&](const json* row) { return number_of(*row, field).has_value(); });
  if (!axis.numeric) {
    axis.labels = distinct(rows, field);
    return axis;
  }
  std::set<double> values;
  for (const json* row : rows) values.insert(*number_of(*row, field) * axis.quantity.scale);
  axis.values.assign(values.begin(), values.end());
  for (const double value : axis.values) axis.labels.push_back(value_text(json(value)));
  axis.log = log && !axis.values.empty() && axis.values.front() > 0;
  return axis;
}

std::string shared_settings(const Rows& rows, const std::vector<std::string>& shown) {
  std::vector<std::string> parts;
  for (const char* field :
       {"algorithm", "direction", "dtype", "mask", "batch", "q_length", "q_heads", "qk_dim", "run"}) {
    const bool varies = std::find(shown.begin(), shown.end(), field) != shown.end() ||
                        distinct(rows, field).size() != 1 || field_value(*rows.front(), field).is_null();
    if (!varies) parts.push_back(named_value_text(*rows.front(), field));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string panel_title_of(const json& row, const std::vector<std::string>& facets) {
  std::vector<std::string> parts;
  for (const std::string& facet : facets) parts.push_back(named_value_text(row, facet));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Further fields of the same rows as lines of theory, in every panel.
void add_bounds(DrawnFigure& figure, const Rows& rows) {
  if (figure.spec.kind != FigureKind::lines) return;
  for (Panel& panel : figure.panels) {
    int dash = 0;
    for (const std::string& field : figure.spec.bounds) {
      std::map<std::size_t, double> values;
      for (const json* row : rows) {
        const auto value = number_of(*row, field);
        if (value && panel_title_of(*row, figure.spec.facets) == panel.title)
          values[position(figure.x, *row)] = *value;
      }
      Series line;
      line.name = quantity_of(field, "", 0).label;
      line.primary = quantity_of(field, "", 0).symbol;
      line.dash = ++dash;
      line.theory = true;
      for (const auto& [x, value] : values) {
        const double y = value * figure.y.scale;
        line.marks.push_back({.x = x, .y = y, .low = y, .high = y});
      }
      if (!line.marks.empty()) panel.series.push_back(std::move(line));
    }
  }
}

// Nothing can be saved where there is nothing to compare with: standard itself, or points that do
// not fit with it.
void drop_unsaved(std::vector<json>& rows, const std::string& field) {
  auto has_saving = [&](const json& row) { return number_of(row, field).has_value(); };
  if (std::any_of(rows.begin(), rows.end(), has_saving)) {
    std::erase_if(rows, [&](const json& row) { return !has_saving(row); });
  }
}

// Bars that stand on each other are parts of a whole. A row without a part is a whole itself, such
// as a fused kernel; where its parts were measured too, they are drawn instead.
void name_wholes(std::vector<json>& rows, const Figure& spec) {
  const std::string& part = spec.series.front();
  std::set<std::string> split;
  for (const json& row : rows) {
    if (!field_value(row, part).is_null()) split.insert(value_text(field_value(row, spec.x)));
  }
  std::erase_if(rows, [&](const json& row) {
    return field_value(row, part).is_null() && split.contains(value_text(field_value(row, spec.x)));
  });
  for (json& row : rows) {
    if (field_value(row, part).is_null()) row[part] = "whole call";
  }
}

// The rows of a figure as they are drawn: wholes, sums, last steps, savings.
std::vector<json> prepared(const Figure& spec, const std::vector<json>& given) {
  std::vector<json> all = given;
  if (spec.stack && !spec.series.empty()) name_wholes(all, spec);
  fill_kept_share(all);
  if (!spec.sum_over.empty()) all = summed(all, spec);
  if (!spec.last_of.empty()) all = last_ones(all, spec);
  if (quantity_of(spec.y.front(), "", 0).measure == Measure::saving) drop_unsaved(all, spec.y.front());
  return all;
}

// Puts the rows into panels and series.
void fill_panels(DrawnFigure& figure, const Rows& rows, std::vector<std::string> naming_fields,
                 const std::vector<std::string>& drawn) {
  const Figure& spec = figure.spec;
  for (const std::string& facet : spec.facets) std::erase(naming_fields, facet);
  Naming naming = naming_of(rows, naming_fields);
  std::map<std::pair<std::string, std::string>, std::vector<std::optional<double>>> rates;
  for (const json* row : rows) {
    std::string panel_title = panel_title_of(*row, spec.facets);
    Series named = name_series(*row, naming, figure.y);
    if (spec.kind == FigureKind::heatmap) {
      const bool titled = !naming.fields.empty() && distinct(rows, naming.fields.front()).size() > 1;
      if (titled)
        panel_title = panel_title.empty() ? named.name : fmt::format("{} · {}", panel_title, named.name);
      named = Series{};
      named.name = named.primary = figure.rows.labels[position(figure.rows, *row)];
    }
    auto panel = std::find_if(figure.panels.begin(), figure.panels.end(),
                              [&](const Panel& other) { return other.title == panel_title; });
    if (panel == figure.panels.end()) panel = figure.panels.insert(panel, Panel{panel_title, {}});
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      const Mark mark = make_mark(*row, figure, drawn[i]);
      if (i > 0 && !mark.y) continue;  // why there is none, the first says
      Series one = named;
      if (drawn.size() > 1) name_field(one, drawn, i);
      auto series = std::find_if(panel->series.begin(), panel->series.end(),
                                 [&](const Series& other) { return other.name == one.name; });
      if (series == panel->series.end()) series = panel->series.insert(series, one);
      series->marks.push_back(mark);
      rates[{panel_title, one.name}].push_back(mark.y ? number_of(*row, "tflops") : std::nullopt);
    }
  }
  for (Panel& panel : figure.panels) {
    for (Series& series : panel.series) {
      if (figure.y.measure == Measure::time) mark_overhead(series, rates[{panel.title, series.name}]);
      std::sort(series.marks.begin(), series.marks.end(),
                [](const Mark& a, const Mark& b) { return a.x < b.x; });
    }
    if (spec.kind == FigureKind::lines) find_twins(panel);
  }
}

}  // namespace

DrawnFigure make_figure(const Figure& asked, const std::vector<json>& given, const std::string& where) {
  const Figure present = without_missing_fields(asked, given);
  const std::vector<json> all = prepared(present, given);
  DrawnFigure figure;
  figure.spec = completed(present);
  const Figure& spec = figure.spec;
  const bool heatmap = spec.kind == FigureKind::heatmap;
  const bool measured_rows = is_measurement(present.y.front());

  Rows rows;
  for (const json& row : all) rows.push_back(&row);
  std::vector<std::string> fields = {spec.x};
  fields.insert(fields.end(), spec.facets.begin(), spec.facets.end());
  if (heatmap) fields.push_back(spec.y.front());
  fields.insert(fields.end(), spec.series.begin(), spec.series.end());
  std::vector<std::string> naming_fields = spec.series;
  for (std::string extra = distinction(rows, fields); !extra.empty(); extra = distinction(rows, fields)) {
    fields.push_back(extra);
    naming_fields.push_back(extra);
  }
  std::size_t dropped = 0;
  rows = latest(rows, fields, dropped);

  const std::vector<std::string> drawn = drawn_fields(spec, rows);
  const std::string& y = drawn.front();
  figure.x = make_axis(rows, spec.x, spec.unit_x, spec.log_x);
  figure.y = quantity_of(y, heatmap && !measured_rows ? "" : spec.unit_y, largest_of(rows, y));
  if (drawn.size() > 1) {  // "memory traffic (predicted)": which of them a bar is, its series says
    figure.y.symbol = figure.y.label = figure.y.label.substr(0, figure.y.label.find(" ("));
  }
  if (heatmap) figure.rows = make_axis(rows, spec.y.front(), measured_rows ? "" : spec.unit_y, false);
  fill_panels(figure, rows, naming_fields, drawn);

  const bool table = spec.kind == FigureKind::table || spec.kind == FigureKind::hierarchy;
  std::vector<Quantity> measured;
  for (const std::string& field : table ? spec.y : drawn) {
    measured.push_back(quantity_of(field, measured.empty() ? figure.y.unit : "", largest_of(rows, field)));
  }
  figure.table = make_table(rows, fields, measured);
  for (const Quantity& quantity : measured) {
    if (table) note_empty_column(figure, quantity, rows);
  }
  for (const std::string& field : spec.bounds) note_empty_column(figure, quantity_of(field, "", 0), rows);
  if (!heatmap) add_notes(figure);  // its cells say it themselves
  add_bounds(figure, rows);
  if (spec.theory) add_theory(figure, all);
  figure.caption = shared_settings(rows, fields);
  for (std::size_t i = 1; table && i < spec.y.size(); ++i) {
    Figure column = spec;
    column.y = {spec.y[i]};
    figure.columns.push_back(make_figure(column, all, where));
  }
  if (dropped > 0) {
    figure.notes.push_back(fmt::format(
        "{} of {} rows measure a point again within one run; the latest row of each point is drawn.", dropped,
        all.size()));
  }
  return figure;
}

}  // namespace tessera::lab::report
