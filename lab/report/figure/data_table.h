// The numbers behind a figure.
#pragma once

#include <string>
#include <vector>

#include "lab/report/figure/rows.h"
#include "lab/report/model.h"

namespace tessera::lab::report {

// One line per row: the fields in which rows differ, what was measured, and the status where one of
// the rows has no value. A time with its quartiles too far apart starts with "~".
DataTable make_table(const Rows& rows, std::vector<std::string> fields,
                     const std::vector<Quantity>& measured);

}  // namespace tessera::lab::report
