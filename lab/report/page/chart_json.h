// Figures as JSON for page.js.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lab/report/model.h"

namespace tessera::lab::report {

nlohmann::ordered_json chart_json(const DrawnFigure& figure);

// JSON inside <script>: no "<" may end the element early.
std::string script_json(const nlohmann::ordered_json& value);

}  // namespace tessera::lab::report
