// What a figure says, computed from its rows: at most two sentences, and a table of comparisons.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/report/model.h"

namespace tessera::lab::report {

// One method against the baseline, at the last place where both have a value.
struct Comparison {
  std::string context;   // panel and whatever else the two share: "backward, NVIDIA L4"
  std::string method;    // "flash2"
  std::string place;     // "N = 512"
  std::string value;     // "16.0 ms ± 2 %"
  std::string baseline;  // the baseline's value: "64.0 ms ± 3 %"
  std::string ratio;     // value over baseline: "0.25"; empty where the baseline is 0
  std::string verdict;   // "4.0 times as fast", "no difference found"
};

struct Reading {
  std::vector<std::string> sentences;   // one or two
  std::string baseline;                 // what the methods are compared with; empty without comparisons
  std::vector<Comparison> comparisons;  // the best of a context first
};

Reading reading_of(const DrawnFigure& figure);

// The exponent p of the power law y ~ x^p (least squares of the logarithms) and how far it may be
// off: the residuals at 95 % confidence, and the quartiles of the measurements.
struct Growth {
  double exponent, uncertainty;
};

// From points that are measured, positive and not dominated by the launch of a call; nothing for
// fewer than three of them.
std::optional<Growth> growth_of(const Axis& axis, const Series& series);

// The same, where it is known to 0.3 or better: "N^1.98 ± 0.05". Empty otherwise.
std::string growth_text(const Axis& axis, const Series& series);

}  // namespace tessera::lab::report
