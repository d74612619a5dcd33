// What the series of a figure are called, and which colours and dashes they have.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/report/figure/rows.h"
#include "lab/report/model.h"

namespace tessera::lab::report {

// Which fields a series is named after.
struct Naming {
  std::vector<std::string> fields;  // those in which rows of this figure differ
  std::string primary;              // the one that gives the colour
  std::vector<std::string> colors;  // its values; algorithms have the same colour in every figure
  std::vector<std::string> dashes;  // combinations of the others
};

Naming naming_of(const Rows& rows, const std::vector<std::string>& candidates);

// A series without marks.
Series name_series(const nlohmann::json& row, Naming& naming, const Quantity& y);

// Of several fields in one figure, the series of one: "flash2 · measured traffic".
void name_field(Series& series, const std::vector<std::string>& fields, std::size_t index);

// The colour of an algorithm, or nothing for an unknown name.
std::optional<int> algorithm_color(const std::string& name);

}  // namespace tessera::lab::report
