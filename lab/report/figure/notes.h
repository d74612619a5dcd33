// What a figure says about points that are missing, and about curves that coincide.
#pragma once

#include "lab/report/figure/rows.h"
#include "lab/report/model.h"

namespace tessera::lab::report {

// Why points are missing: one note for all series that lack the same points for the same reason.
void add_notes(DrawnFigure& figure);

// A column of a table, or a further line, without any value: why, where the rows say so
// ("measured_traffic_note").
void note_empty_column(DrawnFigure& figure, const Quantity& quantity, const Rows& rows);

// A reason short enough for a note: its first part, cut at about a line.
std::string short_reason(const std::string& reason);

}  // namespace tessera::lab::report
