// The fields of a row as the report shows them: names, units, values as text.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lab/report/model.h"

namespace tessera::lab::report {

// Name and unit of a field. `unit` is what a figure requests; where the largest value would be tiny
// in it (TFLOP/s on a small CPU), a smaller unit of the same kind replaces it.
Quantity quantity_of(const std::string& field, const std::string& unit, double largest);

// True for a known field that was measured or computed from a measurement.
bool is_measurement(const std::string& field);

// True for a known field that describes the problem or the method: a shape, a tile, a machine.
bool is_setting(const std::string& field);

// A field, or one derived from others: "embedding" (heads * head_dim), "blocks" ("64 x 128"). Null
// when the row does not have it.
nlohmann::json field_value(const nlohmann::json& row, const std::string& field);
std::optional<double> number_of(const nlohmann::json& row, const std::string& field);

// "flash2", "4096", "yes", "-".
std::string value_text(const nlohmann::json& value);
// The same with the name of the field, where the value is no name itself: "batch 4", "N = 512",
// "flash2".
std::string named_value_text(const nlohmann::json& row, const std::string& field);

}  // namespace tessera::lab::report
