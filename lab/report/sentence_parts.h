// The parts of sentences.cpp: comparisons, growth, crossings, missing points.
#pragma once

#include <string>
#include <vector>

#include "lab/report/model.h"

namespace tessera::lab::report {

using Group = std::vector<const Series*>;  // comparable: of one panel, different in their colour only
using Sentences = std::vector<std::string>;

// Everything worth saying about a group that is not empty, the most telling first.
Sentences sentences_about(const DrawnFigure& figure, const Panel& panel, const Group& group);

// The same colours in two contexts, such as two machines; `context` names that of `first`.
void compare_contexts(const DrawnFigure& figure, const Group& group, const Group& first,
                      const std::string& context, Sentences& sentences);

// The members of a group against its baseline, with what the columns of a table say about each in
// one sentence: columns in which they differ come first, after the first column. All of them have
// the panels and series of the table.
void compare_columns(const std::vector<const DrawnFigure*>& columns, const Panel& panel, const Group& group,
                     Sentences& sentences);

// What ran out of memory.
void describe_missing(const DrawnFigure& figure, const Group& group, Sentences& sentences);

// About a heat map.
void read_cells(const DrawnFigure& figure, const Panel& panel, Sentences& sentences);

}  // namespace tessera::lab::report
