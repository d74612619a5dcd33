// Rows before they are drawn: told apart, added up, and what a figure asks of them made complete.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/measure/read_results.h"

namespace tessera::lab::report {

using Rows = std::vector<const nlohmann::json*>;

// The values of these fields as one text: equal for rows that do not differ in them.
std::string key_of(const nlohmann::json& row, const std::vector<std::string>& fields);

// The distinct values of a field, in order of appearance.
std::vector<std::string> distinct(const Rows& rows, const std::string& field);

// A field in which rows with the same key differ, or nothing when no two rows share a key. Rows of
// two runs that differ also in their settings count as sharing one: another machine or commit would
// not explain their difference.
std::string distinction(const Rows& rows, const std::vector<std::string>& fields);

// The last row of every key: a point measured again replaces the one before. `dropped` counts the
// others.
Rows latest(const Rows& rows, const std::vector<std::string>& fields, std::size_t& dropped);

// Gives rows that were not run the share that their mask keeps, which only a run tells: that of the
// other rows of their point. Without it they would look like rows of another mask.
void fill_kept_share(std::vector<nlohmann::json>& rows);

// Rows that differ in `sum_over` alone become one, whose y is their sum; where one of them has
// none, the sum has none either, for the same reason.
std::vector<nlohmann::json> summed(const std::vector<nlohmann::json>& rows, const Figure& spec);

// Of rows that differ in `last_of` alone the one with the largest value of it that is ok; where
// none is, the first.
std::vector<nlohmann::json> last_ones(const std::vector<nlohmann::json>& rows, const Figure& spec);

// The fields that are drawn: y, or the value of a heat map; of bars also the bounds that some row
// has.
std::vector<std::string> drawn_fields(const Figure& spec, const Rows& rows);

// The first field that the figure cannot do without and no row has, as in rows of an older version;
// empty when it can be drawn. Throws UsageError, which starts with `where`, for a field that
// neither the rows nor fields.json know.
std::string missing_field(const Figure& spec, const std::vector<nlohmann::json>& rows,
                          const std::string& where);

// The figure without those columns of a table, bounds and facets that no row has.
Figure without_missing_fields(const Figure& spec, const std::vector<nlohmann::json>& rows);

// The figure with the value of a heat map and the axis of a table filled in where they are implied.
Figure completed(const Figure& spec);

}  // namespace tessera::lab::report
