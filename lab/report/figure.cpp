#include "lab/report/figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "lab/report/fields.h"
#include "lab/report/rows.h"
#include "lab/terminal/errors.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

// Algorithms keep their colour in every figure.
constexpr std::array kAlgorithms = {"standard",     "flash1",         "flash2",       "flash3",    "minimal",
                                    "block_sparse", "sparse_strided", "sparse_fixed", "linformer", "flash",
                                    "megatron",     "automatic",      "sdpa"};

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

// Half the distance between the quartiles of the time, as a share of the median; 0 where they are
// unknown.
double spread_of(const json& row) {
  const auto median = number_of(row, "median_ms"), low = number_of(row, "lower_quartile_ms"),
             high = number_of(row, "upper_quartile_ms");
  return median && low && high && *median > 0 ? (*high - *low) / 2 / *median : 0;
}

std::string detail_of(const json& row) {
  std::vector<std::string> parts;
  if (row.contains("kernel") && row["kernel"].is_string()) parts.push_back(row["kernel"]);
  const auto median = number_of(row, "median_ms"), low = number_of(row, "lower_quartile_ms"),
             high = number_of(row, "upper_quartile_ms");
  if (median && low && high && *median > 0) {
    parts.push_back(fmt::format("quartiles {} to {}", duration_text(*low / 1e3), duration_text(*high / 1e3)));
  }
  if (const auto count = number_of(row, "repetitions")) parts.push_back(fmt::format("{:.0f} calls", *count));
  return fmt::format("{}", fmt::join(parts, ", "));
}

Mark make_mark(const json& row, const DrawnFigure& figure, const std::string& field) {
  Mark mark{.x = position(figure.x, row), .status = row["status"].get<std::string>()};
  if (row.contains("reason") && row["reason"].is_string())
    mark.reason = one_line(row["reason"].get<std::string>());
  if (mark.status != "ok") {
    // A row may say why in the status itself: "unsupported: no kernel for fp8".
    if (const std::size_t colon = mark.status.find(':'); colon != std::string::npos) {
      if (mark.reason.empty()) mark.reason = std::string(one_line(mark.status.substr(colon + 1)));
      mark.status.resize(colon);
    }
    return mark;
  }
  mark.detail = detail_of(row);
  const auto value = field == "status" ? std::optional<double>(1) : number_of(row, field);
  if (!value) {
    mark.status = "no_value";
  } else if (figure.spec.log_y && figure.spec.kind != FigureKind::heatmap && *value <= 0) {
    mark.status = "zero";
  } else {
    mark.y = *value * figure.y.scale;
    if (figure.y.measure == Measure::time || figure.y.measure == Measure::rate) mark.spread = spread_of(row);
  }
  return mark;
}

// Which fields a series is named after.
struct Naming {
  std::vector<std::string> fields;  // those in which rows of this figure differ
  std::string primary;              // the one that gives the colour
  std::vector<std::string> colors;  // its values
  std::vector<std::string> dashes;  // combinations of the others
};

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
  if (naming.primary == "algorithm") naming.colors.assign(kAlgorithms.begin(), kAlgorithms.end());
  for (const std::string& value : distinct(rows, naming.primary)) {
    if (std::find(naming.colors.begin(), naming.colors.end(), value) == naming.colors.end()) {
      naming.colors.push_back(value);
    }
  }
  return naming;
}

int index_in(std::vector<std::string>& values, const std::string& value) {
  const auto found = std::find(values.begin(), values.end(), value);
  if (found != values.end()) return static_cast<int>(found - values.begin());
  values.push_back(value);
  return static_cast<int>(values.size()) - 1;
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
  series.color = index_in(naming.colors, value_text(field_value(row, naming.primary)));
  series.dash = index_in(naming.dashes, series.rest);
  return series;
}

// The series of one of several fields: "flash2 · measured traffic".
void name_field(Series& series, const std::vector<std::string>& fields, std::size_t index) {
  const std::string what = quantity_of(fields[index], "", 0).symbol;
  series.rest += (series.rest.empty() ? "" : ", ") + what;
  series.name += (series.name == series.primary ? " · " : ", ") + what;
  series.dash = series.dash * static_cast<int>(fields.size()) + static_cast<int>(index);
}

DataTable make_table(const Rows& rows, std::vector<std::string> fields,
                     const std::vector<Quantity>& measured) {
  DataTable table;
  fields.erase(std::remove_if(fields.begin(), fields.end(),
                              [&](const std::string& field) {
                                return field.empty() ||
                                       (fields.size() > 1 && distinct(rows, field).size() < 2);
                              }),
               fields.end());
  for (const std::string& field : fields) {
    table.headers.push_back(quantity_of(field, "", 0).label);
    table.numeric.push_back(number_of(*rows.front(), field).has_value());
  }
  for (const Quantity& quantity : measured) {
    table.headers.push_back(axis_label(quantity));
    table.numeric.push_back(true);
  }
  const bool all_ok =
      std::all_of(rows.begin(), rows.end(), [](const json* row) { return (*row)["status"] == "ok"; });
  if (!all_ok) {
    table.headers.emplace_back("status");
    table.numeric.push_back(false);
  }
  for (const json* row : rows) {
    std::vector<std::string> cells;
    for (const std::string& field : fields) cells.push_back(value_text(field_value(*row, field)));
    for (const Quantity& quantity : measured) {
      const auto value = number_of(*row, quantity.field);
      const bool shown = value && (*row)["status"] == "ok";
      cells.push_back(!shown                               ? "–"
                      : quantity.measure == Measure::error ? error_text(*value)
                                                           : significant(*value * quantity.scale, 4));
    }
    if (!all_ok) {
      std::string status = (*row)["status"];
      if (status == "out_of_memory") status = "out of memory";
      if (row->contains("reason") && (*row)["reason"].is_string())
        status += ": " + one_line((*row)["reason"].get<std::string>());
      cells.push_back(status);
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
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

// A column of a table, or a further line, without any value: why, where the rows say so
// ("measured_traffic_note").
void note_empty_column(DrawnFigure& figure, const Quantity& quantity, const Rows& rows) {
  const bool empty = std::none_of(
      rows.begin(), rows.end(), [&](const json* row) { return number_of(*row, quantity.field).has_value(); });
  if (!empty) return;
  const json why =
      field_value(*rows.front(), quantity.field.substr(0, quantity.field.rfind("_bytes")) + "_note");
  figure.notes.push_back(
      fmt::format("{}: {}", quantity.label, why.is_string() ? why.get<std::string>() : "no row has a value"));
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
      for (const auto& [x, value] : values) line.marks.push_back({.x = x, .y = value * figure.y.scale});
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

const char* status_text(const std::string& status) {
  if (status == "out_of_memory") return "out of memory";
  if (status == "no_value") return "nothing recorded";
  if (status == "zero") return "no point on the logarithmic axis, because the value is 0";
  return status.c_str();
}

// Why points are missing, in words: one note for all series that lack the same points for the same
// reason.
void add_notes(DrawnFigure& figure) {
  std::vector<std::pair<std::string, std::vector<std::string>>>
      notes;  // the note, and the series that it is about
  for (const Panel& panel : figure.panels) {
    for (const Series& series : panel.series) {
      std::map<std::string, std::vector<const Mark*>> missing;
      for (const Mark& mark : series.marks) {
        if (!mark.y) missing[mark.status].push_back(&mark);
      }
      for (const auto& [status, marks] : missing) {
        std::vector<std::string> places;
        for (const Mark* mark : marks) places.push_back(figure.x.labels[mark->x]);
        std::string note = status_text(status);
        if (marks.size() < series.marks.size()) {
          note += figure.x.numeric ? fmt::format(" at {} = ", figure.x.quantity.symbol) : " for ";
          note += fmt::format("{}", fmt::join(places, ", "));
        }
        // The first part of the reason; the table has all of it.
        const std::string& reason = marks.front()->reason;
        if (!reason.empty()) note += fmt::format(" ({})", reason.substr(0, reason.find("; ")));
        auto found =
            std::find_if(notes.begin(), notes.end(), [&](const auto& other) { return other.first == note; });
        if (found == notes.end()) found = notes.insert(found, {note, {}});
        found->second.push_back(panel.title.empty() ? series.name
                                                    : fmt::format("{} ({})", series.name, panel.title));
      }
    }
  }
  for (const auto& [note, names] : notes)
    figure.notes.push_back(fmt::format("{}: {}", fmt::join(names, ", "), note));
}

}  // namespace

const Mark* Series::at(std::size_t x) const {
  for (const Mark& mark : marks) {
    if (mark.x == x) return &mark;
  }
  return nullptr;
}

DrawnFigure make_figure(const Figure& asked, const std::vector<json>& given, const std::string& where) {
  check_fields(asked, given, where);
  std::vector<json> all = given;
  fill_kept_share(all);
  if (!asked.sum_over.empty()) all = summed(all, asked);
  if (!asked.last_of.empty()) all = last_ones(all, asked);
  if (quantity_of(asked.y.front(), "", 0).measure == Measure::saving) drop_unsaved(all, asked.y.front());
  DrawnFigure figure;
  figure.spec = completed(asked);
  const Figure& spec = figure.spec;
  const bool heatmap = spec.kind == FigureKind::heatmap;

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
  figure.y =
      quantity_of(y, heatmap && !is_measurement(asked.y.front()) ? "" : spec.unit_y, largest_of(rows, y));
  if (drawn.size() > 1) {  // "memory traffic (predicted)": which of them a bar is, its series says
    figure.y.symbol = figure.y.label = figure.y.label.substr(0, figure.y.label.find(" ("));
  }
  for (const std::string& facet : spec.facets) std::erase(naming_fields, facet);
  Naming naming = naming_of(rows, naming_fields);
  Naming second = naming_of(rows, {spec.y.front()});  // of a heat map: one series per line of cells
  if (heatmap) {
    figure.rows = make_axis(rows, spec.y.front(), is_measurement(asked.y.front()) ? "" : spec.unit_y, false);
  }
  for (const json* row : rows) {
    std::string panel_title = panel_title_of(*row, spec.facets);
    Series named = name_series(*row, naming, figure.y);
    if (heatmap) {
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
    }
  }
  for (Panel& panel : figure.panels) {
    for (Series& series : panel.series) {
      std::sort(series.marks.begin(), series.marks.end(),
                [](const Mark& a, const Mark& b) { return a.x < b.x; });
    }
  }

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
  if (const std::string settings = shared_settings(rows, fields); !settings.empty())
    figure.caption = settings;
  for (std::size_t i = 1; table && i < spec.y.size(); ++i) {
    Figure column = spec;
    column.y = {spec.y[i]};
    figure.columns.push_back(make_figure(column, all, where));
  }
  if (dropped > 0) {
    figure.notes.push_back(fmt::format(
        "{} of {} rows measure a point again; the latest row of each point is drawn", dropped, all.size()));
  }
  return figure;
}

}  // namespace tessera::lab::report
