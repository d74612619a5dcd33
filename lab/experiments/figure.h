// A figure: which fields of the rows are drawn, and how.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tessera::lab {

// hierarchy: levels of memory as a picture; x names a level, y are its size and its bandwidth.
enum class FigureKind { lines, bars, heatmap, table, hierarchy };

const char* name(FigureKind kind);

// Everything but titles and units names fields of the rows.
struct Figure {
  FigureKind kind = FigureKind::lines;
  std::string title;
  std::string x{};
  std::vector<std::string> y{};                  // one; of a table, its columns; of a hierarchy, two
  std::vector<std::string> series{"algorithm"};  // one line, bar or table row for each value
  std::vector<std::string> facets{};             // one panel for each combination of their values
  bool log_x = false;
  bool log_y = false;
  std::string value{};                // heat map: the field that gives the colour
  std::vector<std::string> bounds{};  // further fields of the same rows: dashed lines, or paler bars
  std::string sum_over{};  // rows that differ in this field alone are added up, as forward + backward
  std::string last_of{};   // of rows that differ in this field alone, the last `ok` one is drawn
  bool stack = false;      // bars of one place stand on each other: parts of a whole
  bool theory = false;     // adds the bounds of the theory to a figure of memory traffic
  std::string unit_x{};
  std::string unit_y{};
};

// All fields that it names.
std::vector<std::string> fields_of(const Figure& figure);

// As in experiments.json.
nlohmann::ordered_json to_json(const Figure& figure);

}  // namespace tessera::lab
