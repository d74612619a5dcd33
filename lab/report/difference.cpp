#include "lab/report/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lab/report/figure/fields.h"
#include "lab/report/figure/marks.h"
#include "lab/report/figure/rows.h"
#include "lab/report/words/wording.h"
#include "lab/terminal/units.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

// The fields that say what was requested. The scale of a run only chooses among them.
const std::vector<std::string>& point_fields() {
  static const std::vector<std::string> kAll = [] {
    std::vector<std::string> names;
    for (const Field& field : fields()) {
      if (field.role == Role::key && field.name != "scale") names.push_back(field.name);
    }
    return names;
  }();
  return kAll;
}

// The point without experiment and method: only the fields in which rows of its experiment differ.
std::string point_text(const json& row, const Rows& experiment) {
  std::vector<std::string> parts;
  for (const std::string& field : point_fields()) {
    if (field == "experiment" || field == "algorithm" || field == "k_length" || field == "kv_heads" ||
        field == "v_dim")
      continue;
    if (distinct(experiment, field).size() > 1) parts.push_back(named_value_text(row, field));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string time_text(const json& row, const std::optional<Mark>& mark) {
  static const Quantity kTime = quantity_of("median_ms", "", 1);
  if (mark) return value_with_spread(kTime, *mark);
  std::string status = row["status"];
  std::replace(status.begin(), status.end(), '_', ' ');
  return status.substr(0, status.find(':'));
}

Change change_of(const std::optional<Mark>& before, const std::optional<Mark>& after) {
  if (!before || !after) return after ? Change::repaired : before ? Change::broken : Change::same;
  switch (compare(*after, *before)) {
    case Verdict::less: return Change::faster;
    case Verdict::more: return Change::slower;
    case Verdict::alike: return Change::same;
    case Verdict::unclear: break;
  }
  return Change::unclear;
}

}  // namespace

std::size_t Difference::count(Change change) const {
  return static_cast<std::size_t>(
      std::count_if(rows.begin(), rows.end(), [&](const ChangedRow& row) { return row.change == change; }));
}

Difference difference_of(const ResultsFile& older, const ResultsFile& newer) {
  Difference difference{.old_path = older.path, .new_path = newer.path, .rows = {}};
  std::map<std::string, const json*> after;  // a point measured again: its last row
  std::map<std::string, Rows> by_experiment;
  std::vector<std::pair<std::string, const json*>> before;
  for (const json& row : newer.rows) after[key_of(row, point_fields())] = &row;
  for (const json& row : older.rows) {
    const std::string key = key_of(row, point_fields());
    by_experiment[row["experiment"]].push_back(&row);
    auto found =
        std::find_if(before.begin(), before.end(), [&](const auto& one) { return one.first == key; });
    if (found == before.end()) before.emplace_back(key, &row);
    else found->second = &row;
  }
  std::size_t common = 0;
  for (const auto& [key, row] : before) {
    const auto found = after.find(key);
    if (found == after.end()) {
      ++difference.only_old;
      continue;
    }
    ++common;
    const json& other = *found->second;
    const auto was = measured_mark(*row, "median_ms"), is = measured_mark(other, "median_ms");
    const bool untimed = (*row)["status"] == "ok" && other["status"] == "ok" && (!was || !is);
    if (untimed) continue;  // losses and the like
    ChangedRow changed{.experiment = (*row)["experiment"],
                       .method = value_text(field_value(*row, "algorithm")),
                       .point = point_text(*row, by_experiment[(*row)["experiment"]]),
                       .old_time = time_text(*row, was),
                       .new_time = time_text(other, is),
                       .change = change_of(was, is)};
    if (was && is && *was->y > 0) {
      changed.ratio = *is->y / *was->y;
      changed.low = is->low / was->high;
      changed.high = is->high / was->low;
    }
    difference.rows.push_back(std::move(changed));
  }
  difference.only_new = after.size() - common;
  return difference;
}

const char* change_text(Change change) {
  switch (change) {
    case Change::faster: return "faster";
    case Change::slower: return "slower";
    case Change::same: return "the same within 5 %";
    case Change::broken: return "not ok any more";
    case Change::repaired: return "ok now";
    case Change::unclear: break;
  }
  return "no difference found";
}

std::string summary_text(const Difference& difference) {
  std::vector<std::string> parts;
  for (const Change change :
       {Change::faster, Change::slower, Change::broken, Change::repaired, Change::same, Change::unclear}) {
    const std::size_t count = difference.count(change);
    if (count == 0) continue;
    parts.push_back(fmt::format(
        "{} {}", count, change == Change::unclear ? "without a difference found" : change_text(change)));
  }
  return parts.empty() ? "no point in common" : fmt::format("{}", fmt::join(parts, ", "));
}

std::string ratio_text(const ChangedRow& row) {
  if (row.ratio <= 0) return {};
  return fmt::format("{} ({} to {})", significant(row.ratio, 3), significant(row.low, 3),
                     significant(row.high, 3));
}

}  // namespace tessera::lab::report
