// Results as an HTML page.
#pragma once

#include <string>
#include <vector>

namespace tessera::lab {

// Writes the page `out` about results (results.jsonl, or folders that hold one, each with an
// experiments.json beside it) and says so. Throws UsageError for results that cannot be read,
// OutputError when the page cannot be written.
void write_report(const std::vector<std::string>& results, const std::string& out);

}  // namespace tessera::lab
