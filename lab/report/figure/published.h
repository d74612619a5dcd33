// What the studies found: the values of published.json, drawn beside ours and put into words.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/report/model.h"

namespace tessera::lab::report {

// Adds the values of the studies to a figure of an experiment as series of points. The machines of
// the studies were others: values with a unit that lie further than a factor of two from ours are
// multiplied by one factor a study and figure, which the name of the series tells. Lengths of a
// study that the rows divided ("study_factor") are divided likewise.
void add_studies(DrawnFigure& figure, const std::string& experiment, const std::vector<nlohmann::json>& rows);

// What each study found about the question of an experiment, and the same quantity in these rows.
std::vector<StudyFinding> study_findings(const std::string& experiment,
                                         const std::vector<nlohmann::json>& rows);

}  // namespace tessera::lab::report
