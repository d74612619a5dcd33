// One figure out of an experiment's rows.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/report/model.h"

namespace tessera::lab::report {

// Rows must carry "run", the label of the machine they came from; `where` starts the message of an
// error. Rows that would fall on the same point are told apart by whatever they differ in: machine
// first, then direction, type, mask and shape.
DrawnFigure make_figure(const Figure& spec, const std::vector<nlohmann::json>& rows,
                        const std::string& where);

// Adds what the theory says about memory traffic to a figure of it, from the shapes in the rows:
//   standard  Theta(N d + N^2), flash  Theta(N^2 d^2 / M) with M = 4 d block_k elements of fast
//             memory (the tile the row was computed with), and the lower bound: Q, K, V and O once
//             each. The first two are known up to a factor; it is chosen so that the line runs
//             through the series it explains.
void add_theory(DrawnFigure& figure, const std::vector<nlohmann::json>& rows);

}  // namespace tessera::lab::report
