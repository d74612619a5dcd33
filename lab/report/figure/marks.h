// Rows become marks: a value with its quartiles, or the reason why there is none.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/report/model.h"

namespace tessera::lab::report {

// A measurement is noisy when its quartiles are further apart, as a share of the median.
inline constexpr double kNoisyRange = 0.1;

// The position of a row on an axis.
std::size_t position(const Axis& axis, const nlohmann::json& row);

Mark make_mark(const nlohmann::json& row, const DrawnFigure& figure, const std::string& field);

// A row's own value of a field, in the unit of the row, with its quartiles; without a place.
std::optional<Mark> measured_mark(const nlohmann::json& row, const std::string& field);

// Gives every row with a speed-up the quartiles of it, from those of the row and of standard's row
// at the same point.
void add_speedup_quartiles(std::vector<nlohmann::json>& rows);

// Marks the times of a series that the launch of a call dominates: shorter calls than the one that
// computes fastest, at less than half its rate. `rates` are FLOP/s in any unit, by mark; a mark
// without one is left as it is.
void mark_overhead(Series& series, const std::vector<std::optional<double>>& rates);

// Names the earlier series of the panel that a series coincides with: equal to 1 % wherever both
// have a value, at two places at least.
void find_twins(Panel& panel);

}  // namespace tessera::lab::report
