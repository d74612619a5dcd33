// The answer of an experiment to its question, in one sentence, and what of it is a finding for the
// top of the page.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lab/report/model.h"

namespace tessera::lab::report {

// A small chart: curves over a logarithmic or linear axis, or bars.
struct SmallChart {
  struct Curve {
    std::string name;
    int color = 0;
    std::vector<std::pair<double, double>> points;  // of bars one point a curve
  };
  bool bars = false, log = false;
  std::vector<Curve> curves;
};

struct Finding {
  std::string experiment;  // where to read on
  std::string number;      // "1.6×"
  std::string sentence;
  SmallChart chart;
};

struct Answer {
  std::string sentence;
  std::vector<Finding> findings;
};

// Computed from the rows of one machine and commit: the one with the most rows, which the sentence
// names where there are several. Quartiles that overlap are no difference.
Answer answer_of(const Section& section);

// The five most telling findings of a report, the first five experiments before second findings.
std::vector<Finding> top_findings(const Report& report);

}  // namespace tessera::lab::report
