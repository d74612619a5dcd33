// Parts of the page as HTML.
#pragma once

#include <string>
#include <string_view>

#include "lab/report/difference.h"
#include "lab/report/model.h"
#include "lab/report/words/answers.h"
#include "lab/report/words/reading.h"

namespace tessera::lab::report {

// Text that stands for itself in HTML, also in attributes.
std::string html_text(std::string_view text);

// The same of a sentence: "N^1.87" with the exponent raised.
std::string html_sentence(std::string_view text);

// Numbers behind a figure. Of a long cell the first part; all of it where it is pointed at.
std::string table_html(const DataTable& table);

// Cells coloured by their value, 0 the lowest and 1 the highest of the figure, so that panels
// compare.
std::string heatmap_html(const DrawnFigure& figure, const Panel& panel);

// Levels of memory as a pyramid, the fastest on top.
std::string hierarchy_html(const DrawnFigure& figure);

// Methods against the baseline; folded where it is long.
std::string comparisons_html(const Reading& reading);

// One number, one sentence, one small chart.
std::string card_html(const Finding& finding);

// Two runs of the same points.
std::string difference_html(const Difference& difference);

}  // namespace tessera::lab::report
