#include "lab/report/figure/data_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/report/figure/fields.h"
#include "lab/report/runs.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

std::string measured_cell(const json& row, const Quantity& quantity) {
  const auto value = number_of(row, quantity.field);
  if (!value || row["status"] != "ok") return "–";
  if (quantity.measure == Measure::error) return error_text(*value);
  const bool timed = quantity.measure == Measure::time || quantity.measure == Measure::rate;
  return (timed && is_noisy(row) ? "~" : "") + significant(*value * quantity.scale, 4);
}

std::string status_cell(const json& row) {
  std::string status = row["status"];
  if (status == "out_of_memory") status = "out of memory";
  if (row.contains("reason") && row["reason"].is_string())
    status += ": " + one_line(row["reason"].get<std::string>());
  return status;
}

// Half the distance of the quartiles: "± 4 %".
std::string spread_cell(const json& row) {
  if (!has_quartiles(row)) return "–";
  const double range = *number_of(row, "upper_quartile_ms") - *number_of(row, "lower_quartile_ms");
  return fmt::format("± {} %", significant(50 * range / *number_of(row, "median_ms"), 2));
}

}  // namespace

DataTable make_table(const Rows& rows, std::vector<std::string> fields,
                     const std::vector<Quantity>& measured) {
  DataTable table;
  auto add_column = [&](const std::string& header, bool numeric) {
    table.headers.push_back(header);
    table.numeric.push_back(numeric);
  };
  std::erase_if(fields, [&](const std::string& field) {
    return field.empty() || (fields.size() > 1 && distinct(rows, field).size() < 2);
  });
  for (const std::string& field : fields) {
    add_column(quantity_of(field, "", 0).label, number_of(*rows.front(), field).has_value());
  }
  for (const Quantity& quantity : measured) add_column(axis_label(quantity), true);
  const bool timed = std::any_of(measured.begin(), measured.end(), [](const Quantity& quantity) {
    return quantity.measure == Measure::time || quantity.measure == Measure::rate;
  });
  const bool with_spread =
      timed && std::any_of(rows.begin(), rows.end(), [](const json* row) { return has_quartiles(*row); });
  if (with_spread) add_column("spread", true);
  const bool all_ok =
      std::all_of(rows.begin(), rows.end(), [](const json* row) { return (*row)["status"] == "ok"; });
  if (!all_ok) add_column("status", false);
  for (const json* row : rows) {
    std::vector<std::string> cells;
    for (const std::string& field : fields) cells.push_back(value_text(field_value(*row, field)));
    for (const Quantity& quantity : measured) cells.push_back(measured_cell(*row, quantity));
    if (with_spread) cells.push_back(spread_cell(*row));
    if (!all_ok) cells.push_back(status_cell(*row));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

}  // namespace tessera::lab::report
