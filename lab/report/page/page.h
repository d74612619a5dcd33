// The report as one HTML file that needs nothing else.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/report/difference.h"
#include "lab/report/model.h"

namespace tessera::lab {

// Files of lab/report and Chart.js, made part of the program by cmake/EmbedFiles.cmake.
namespace embedded {
extern const char* const page_html;
extern const char* const page_css;
extern const char* const page_js;
extern const char* const chart_js;
}  // namespace embedded

}  // namespace tessera::lab

namespace tessera::lab::report {

// `links` are where the page finds its raw data, relative to where it will lie. `difference`
// compares two runs of the same points.
std::string report_page(const Report& report, const std::vector<std::string>& links,
                        const std::optional<Difference>& difference = std::nullopt);

}  // namespace tessera::lab::report
