// Two runs of the same points, an old one and a new one: what became faster, what slower.
#pragma once

#include <string>
#include <vector>

#include "lab/measure/read_results.h"

namespace tessera::lab::report {

enum class Change { faster, slower, same, unclear, broken, repaired };

struct ChangedRow {
  std::string experiment, method, point;  // "sequence", "flash2", "N = 512, backward"
  std::string old_time, new_time;         // "12.0 ms ± 2 %"; of a row without a time its status
  double ratio = 0, low = 0, high = 0;    // new over old, and the interval that the quartiles leave
  Change change = Change::unclear;
};

struct Difference {
  std::string old_path, new_path;
  std::vector<ChangedRow> rows;  // points that both have, in the order of the old run
  std::size_t only_old = 0, only_new = 0;

  [[nodiscard]] std::size_t count(Change change) const;
};

// Rows are the same point when they agree in every field that says what was requested. A change is
// told only where the quartiles do not overlap and the medians differ by more than 5 %; `broken` is
// a row that was ok and is not any more.
Difference difference_of(const ResultsFile& older, const ResultsFile& newer);

// "faster", "no difference found".
const char* change_text(Change change);

// "3 faster, 1 slower, 40 without a difference found"
std::string summary_text(const Difference& difference);

// "0.81 (0.78 to 0.84)"; empty where one of the rows has no time.
std::string ratio_text(const ChangedRow& row);

}  // namespace tessera::lab::report
