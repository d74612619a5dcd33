#include "lab/measure/row_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "lab/terminal/terminal.h"
#include "lab/terminal/units.h"

namespace tessera::lab {
namespace {

// "agrees: 3.1e-07".
std::string check_text(const Row& row) {
  if (!row.comparison || !row.comparison->largest) return "-";
  return fmt::format("{}: {}", row.comparison->agrees() ? "agrees" : "differs",
                     error_text(*row.comparison->largest));
}

}  // namespace

RowTable::RowTable(const std::vector<Problem>& problems, const std::vector<Method>& methods, bool checked)
    : with_host_(problems.front().device.type == DeviceType::cuda), with_check_(checked), table_({}) {
  std::vector<std::string> shared;
  for (const Property& property : properties()) {
    const std::string same = property.value(problems.front());
    auto all = [&](auto&& holds) { return std::all_of(problems.begin(), problems.end(), holds); };
    if (all(property.implied)) continue;
    if (!all([&](const Problem& problem) { return property.value(problem) == same; })) {
      varying_.push_back(property);
    } else {
      const bool names_itself = std::string_view(property.name) == "direction";
      shared.push_back(names_itself ? same : fmt::format("{} {}", property.name, same));
    }
  }
  caption_ = fmt::format("{}, on {}", fmt::join(shared, ", "), to_string(problems.front().device));
  with_speedup_ = methods.size() > 1 && std::any_of(methods.begin(), methods.end(), [](const Method& method) {
                    return method.algorithm == Algorithm::standard;
                  });
  build_table(problems, methods);
  for (bool* dispensable : {&with_traffic_, &with_host_, &with_spread_, &with_memory_, &with_error_}) {
    if (table_.width() <= line_width()) break;
    *dispensable = false;
    build_table(problems, methods);
  }
}

void RowTable::build_table(const std::vector<Problem>& problems, const std::vector<Method>& methods) {
  std::vector<Column> columns;
  for (const Property& property : varying_) {
    const bool numbers = std::isdigit(static_cast<unsigned char>(property.value(problems.front())[0])) != 0;
    columns.push_back({property.name, 0, numbers ? Justify::right : Justify::left});
  }
  columns.push_back({"algorithm", 0, Justify::left});
  columns.push_back({"median ms", 9});
  if (with_spread_) columns.push_back({"spread", 6});
  if (with_host_) columns.push_back({"host ms", 8});
  columns.push_back({"TFLOP/s", 8});
  if (with_memory_) columns.push_back({"extra mem", 9});
  if (with_traffic_) columns.push_back({"traffic", 9});
  if (with_error_) columns.push_back({"max error", 9});
  if (with_check_) columns.push_back({"check", 16, Justify::left});
  if (with_speedup_) columns.push_back({"vs standard", 11});
  table_ = Table(std::move(columns));
  for (const Problem& problem : problems) {
    for (const Method& method : methods) table_.fit(labels(problem, method));
  }
}

std::vector<std::string> RowTable::labels(const Problem& problem, const Method& method) const {
  std::vector<std::string> cells;
  for (const Property& property : varying_) cells.push_back(property.value(problem));
  cells.push_back(name(method));
  return cells;
}

std::string RowTable::header() const { return wrap(caption_, line_width(), 0) + "\n\n" + table_.header(); }

std::string RowTable::row(const Row& row, bool color) const {
  std::vector<std::string> cells = labels(row.problem, row.method);
  if (row.status != Status::ok) {
    const bool memory = row.status == Status::out_of_memory;
    const std::string text = fmt::format("{}: {}", memory ? "out of memory" : name(row.status), row.reason);
    const std::string wrapped = wrap(text, line_width(), table_.offset(cells.size()));
    cells.push_back(colored(wrapped, memory ? Color::yellow : Color::red, color));
    return table_.row(cells);
  }
  cells.push_back(significant(row.seconds.median * 1e3, 4));
  if (with_spread_) cells.push_back(fmt::format("{:.1f}%", row.seconds.spread() * 100));
  if (with_host_) cells.push_back(significant(row.host_seconds.value_or(row.seconds.median) * 1e3));
  cells.push_back(significant(row.tflops()));
  if (with_memory_) cells.push_back(bytes_text(static_cast<double>(row.peak_extra_bytes)));
  if (with_traffic_) cells.push_back(row.plan ? bytes_text(row.plan->traffic_bytes) : "");
  if (with_error_) cells.push_back(row.error ? error_text(row.error->largest) : "-");
  if (with_check_) cells.push_back(check_text(row));
  if (with_speedup_) cells.push_back(row.speedup ? fmt::format("{:.2f}x", *row.speedup) : "-");
  return table_.row(cells);
}

}  // namespace tessera::lab
