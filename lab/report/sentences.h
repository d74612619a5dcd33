// Sentences computed from the rows of a figure: which method is faster and by how much, how a value
// grows, where two curves cross, what did not fit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/report/model.h"

namespace tessera::lab::report {

// Sentences about the part of a figure that `context` names ("backward, NVIDIA L4"; empty: all of
// it).
struct Paragraph {
  std::string context;
  std::vector<std::string> sentences;
};

// The most telling first. Neither the list nor a paragraph is empty.
std::vector<Paragraph> paragraphs(const DrawnFigure& figure);

// The same of figures of losses and of savings, which are read in their own way.
std::vector<Paragraph> training_paragraphs(const DrawnFigure& figure);

// The first sentence, with its context.
std::string headline(const DrawnFigure& figure);

// The exponent p of the power law y ~ x^p that fits best (least squares of the logarithms). Nothing
// for fewer than three points that are measured and positive.
std::optional<double> growth_exponent(const Axis& axis, const Series& series);

// y per x of the straight line that fits best. Nothing for fewer than three measured points.
std::optional<double> linear_slope(const Axis& axis, const Series& series);

}  // namespace tessera::lab::report
