// Where rows came from, how noisy they are, and which of two runs of the same thing is drawn.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/measure/read_results.h"

namespace tessera::lab::report {

// One machine (and GPU), one commit.
struct Run {
  std::string label;  // short and distinct: "NVIDIA L4", "AMD EPYC 9B45 @ 1a2b3c4"
  std::string machine, device, gpu, commit, version;
  std::string first_date, last_date;
  std::size_t rows = 0, ok = 0, out_of_memory = 0;
  std::size_t timed = 0, noisy = 0;  // rows with quartiles; those with quartiles too far apart
  bool outdated = false;             // another run of this machine and device has a newer commit

  // Whether more than a fifth of its rows are noisy.
  [[nodiscard]] bool is_noisy() const;
};

// Whether a row has quartiles, and whether they are further apart than a tenth of its median.
bool has_quartiles(const nlohmann::json& row);
bool is_noisy(const nlohmann::json& row);

// Rows of several files, each with "run", the label of its machine and commit.
struct MergedRows {
  std::vector<Run> runs;
  std::vector<nlohmann::json> rows;
  // By experiment: "Two runs of this machine and commit measured …"
  std::vector<std::pair<std::string, std::string>> notes;
};

// Of files that measured the same point of an experiment on one machine and commit, the rows of
// one are kept for that experiment: of the file `prefer`, or else of the one with the latest row.
// The notes name both. Throws UsageError when `prefer` is not one of the files.
MergedRows merge_rows(const std::vector<ResultsFile>& files, const std::string& prefer);

}  // namespace tessera::lab::report
