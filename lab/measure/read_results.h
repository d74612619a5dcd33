// Reading results: rows as JSON Lines and, beside them, the experiments that they belong to.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/experiments/experiment.h"

namespace tessera::lab {

// The schema of the rows that this version reads and writes.
inline constexpr int kSchema = 1;

// All functions here throw UsageError, which names the file, the line or entry, and what was
// expected.

struct ResultsFile {
  std::string path;
  std::vector<nlohmann::json> rows;
  std::vector<Experiment> experiments;  // their figures; they have no problems
};

// `path` is a file of rows (of `tessera lab`, `tessera bench --json` or the programs in Python) or
// the folder that holds a results.jsonl. Without an experiments.json beside it, the experiments are
// those of this version. Rows of older versions get the fields that were added since: empty, and
// their peak memory from its parts.
ResultsFile read_results(const std::string& path);

// The whole lines of a file of rows. What follows the last line end is a row that was being written
// when the program was killed; it does not count.
struct RowLines {
  std::string text;
  bool unfinished = false;  // there was such a part
};
RowLines read_lines(const std::string& path);

// The rows of a text, empty lines skipped. `check` may refuse a row; `where` names its file and
// line.
using RowCheck = std::function<void(const nlohmann::ordered_json& row, const std::string& where)>;
std::vector<nlohmann::ordered_json> parse_rows(const std::string& text, const std::string& path,
                                               const RowCheck& check = {});

std::vector<Experiment> parse_experiments(const std::string& text, const std::string& path);

}  // namespace tessera::lab
