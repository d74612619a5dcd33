// The parts of reading.cpp: comparisons, growth, crossings, missing points.
#pragma once

#include <string>
#include <vector>

#include "lab/report/model.h"
#include "lab/report/words/reading.h"

namespace tessera::lab::report {

using Group = std::vector<const Series*>;
using Sentences = std::vector<std::string>;

// Series that can be compared: of one panel, different in their colour only.
struct Context {
  std::string name;  // the panel and what else they share; empty: the only one
  Group members;
};
std::vector<Context> contexts_of(const DrawnFigure& figure);

// The series that others are compared with: standard, else tessera, else the first one.
const Series& baseline_of(const Group& group);

// Whether larger values are better: of rates, and of lengths that fit.
bool more_is_better(const DrawnFigure& figure);

std::optional<std::size_t> last_common(const Series& a, const Series& b);

// The words of a verdict: "4.0 times as fast", "1/180 of the memory", "no difference found".
std::string verdict_text(const Quantity& quantity, const Mark& mine, const Mark& theirs);

// Every method against the baseline of its context.
std::vector<Comparison> comparisons_of(const DrawnFigure& figure, const std::vector<Context>& contexts);

// One sentence about the comparisons of a figure, or nothing.
Sentences comparison_sentence(const DrawnFigure& figure, const std::vector<Context>& contexts);

// Where an axis holds the methods: the best against standard.
Sentences sentence_along_axis(const DrawnFigure& figure, const std::vector<Context>& contexts);

// One sentence each, or nothing: what ran out of memory, where two curves cross, how values grow or
// where a rate is highest, how far a line is above the lower bound.
Sentences missing_sentence(const DrawnFigure& figure, const std::vector<Context>& contexts);
Sentences crossing_sentence(const DrawnFigure& figure, const std::vector<Context>& contexts);
Sentences shape_sentence(const DrawnFigure& figure, const std::vector<Context>& contexts);
Sentences bound_sentence(const DrawnFigure& figure);

// About a heat map: what fits, or the extremes.
Sentences cell_sentences(const DrawnFigure& figure);

// About curves of a loss, and about savings in training.
Sentences loss_sentences(const DrawnFigure& figure);
Sentences saving_sentences(const DrawnFigure& figure);

}  // namespace tessera::lab::report
