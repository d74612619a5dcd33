// What a figure shows, in sentences computed from its rows: who is faster and by how much, how it grows, where
// lines cross, what did not fit. A different row makes a different sentence.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/report_model.h"

namespace tessera::lab {

// The sentences of a figure, the most telling first. Never empty.
std::vector<std::string> readings(const Figure& figure);

// The exponent p of the power law y ~ x^p that fits best (least squares of the logarithms). Nothing for fewer
// than three points that are measured and positive.
std::optional<double> growth_exponent(const Axis& axis, const Series& series);

// y per x of the straight line that fits best. Nothing for fewer than three measured points.
std::optional<double> linear_slope(const Axis& axis, const Series& series);

}  // namespace tessera::lab
