#include "lab/report/figure/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <utility>

#include "lab/measure/fields.h"
#include "lab/report/figure/fields.h"
#include "lab/terminal/errors.h"
#include "lab/terminal/text.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

// Fields that may distinguish two rows of one point, the most telling first...
constexpr std::array kMostTelling = {
    "run",     "algorithm",  "direction",         "dtype",    "mask",          "variant",
    "preset",  "kept_share", "requested_block_k", "q_length", "batch",         "k_length",
    "depth",   "embedding",  "q_heads",           "kv_heads", "qk_dim",        "v_dim",
    "block_q", "block_k",    "visible",           "bias",     "alibi",         "softcap",
    "dropout", "threads",    "optimizer",         "compiled", "deterministic", "memory_budget_bytes"};

// ... and behind them every other field that says what was requested.
const std::vector<std::string>& distinctions() {
  static const std::vector<std::string> kAll = [] {
    std::vector<std::string> all(kMostTelling.begin(), kMostTelling.end());
    const std::vector<std::string> never = {"experiment", "scale", "seed", "step"};
    for (const Field& field : fields()) {
      const bool listed = std::find(all.begin(), all.end(), field.name) != all.end() ||
                          std::find(never.begin(), never.end(), field.name) != never.end();
      if (field.role == Role::key && !listed) all.push_back(field.name);
    }
    return all;
  }();
  return kAll;
}

// Whether the library chooses the field.
bool is_chosen(const std::string& field) {
  return field == "block_q" || field == "block_k" || field == "threads";
}

bool some_row_has(const std::vector<json>& rows, const std::string& field) {
  return std::any_of(rows.begin(), rows.end(), [&](const json& row) {
    return row.contains(field) || !field_value(row, field).is_null();
  });
}

// Rows that do not differ in these fields, in order of appearance.
std::vector<Rows> grouped(const std::vector<json>& rows, const std::vector<std::string>& fields) {
  std::vector<std::pair<std::string, Rows>> groups;
  for (const json& row : rows) {
    const std::string key = key_of(row, fields);
    auto found =
        std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == key; });
    if (found == groups.end()) found = groups.insert(found, {key, {}});
    found->second.push_back(&row);
  }
  std::vector<Rows> all;
  for (auto& [key, group] : groups) all.push_back(std::move(group));
  return all;
}

// Quartiles of a sum: the sums of the quartiles, which the sum stays within as often or more. And
// the rate of all parts together.
void sum_quartiles(json& sum, const Rows& parts) {
  for (const char* field : {"lower_quartile_ms", "upper_quartile_ms", "flops"}) {
    double total = 0;
    bool known = true;
    for (const json* part : parts) {
      const auto value = number_of(*part, field);
      known = known && value.has_value();
      total += value.value_or(0);
    }
    sum[field] = known ? json(total) : json(nullptr);
  }
  const auto flops = number_of(sum, "flops"), milliseconds = number_of(sum, "median_ms");
  sum["tflops"] = flops && milliseconds.value_or(0) > 0 ? json(*flops / *milliseconds / 1e9) : json(nullptr);
  sum["repetitions"] = nullptr;
}

// A heat map has two axes and a value. Which of the fields is the value shows in what they are.
Figure with_value(Figure spec) {
  if (spec.kind != FigureKind::heatmap || !spec.value.empty()) return spec;
  if (is_measurement(spec.y.front()) && !spec.series.empty()) {
    spec.value = spec.y.front();
    spec.y = {spec.series.front()};
    spec.series.erase(spec.series.begin());
  } else if (!spec.series.empty() && is_measurement(spec.series.front())) {
    spec.value = spec.series.front();
    spec.series.erase(spec.series.begin());
  } else {
    spec.value = "tflops";
  }
  return spec;
}

// A table without an axis: its first column that is a setting becomes the axis, or else the first
// facet.
Figure with_axis(Figure spec) {
  if (spec.kind != FigureKind::table || !spec.x.empty()) return spec;
  const auto setting = std::find_if(spec.y.begin(), spec.y.end(), is_setting);
  if (setting != spec.y.end() && spec.y.size() > 1) {
    spec.x = *setting;
    spec.y.erase(setting);
  } else if (!spec.facets.empty()) {
    spec.x = spec.facets.front();
    spec.facets.erase(spec.facets.begin());
  } else {
    spec.x = spec.series.empty() ? "run" : spec.series.front();
  }
  return spec;
}

}  // namespace

Figure completed(const Figure& spec) { return with_axis(with_value(spec)); }

std::string key_of(const json& row, const std::vector<std::string>& fields) {
  std::string key;
  for (const std::string& field : fields) key += value_text(field_value(row, field)) + '\x1f';
  return key;
}

std::vector<std::string> distinct(const Rows& rows, const std::string& field) {
  std::vector<std::string> values;
  for (const json* row : rows) {
    const std::string text = value_text(field_value(*row, field));
    if (std::find(values.begin(), values.end(), text) == values.end()) values.push_back(text);
  }
  return values;
}

std::string distinction(const Rows& rows, const std::vector<std::string>& fields) {
  std::vector<std::string> settings = fields;
  settings.erase(std::remove(settings.begin(), settings.end(), "run"), settings.end());
  std::map<std::string, Rows> by_fields, by_settings;
  for (const json* row : rows) {
    by_fields[key_of(*row, fields)].push_back(row);
    by_settings[key_of(*row, settings)].push_back(row);
  }
  for (const std::string& candidate : distinctions()) {
    if (std::find(fields.begin(), fields.end(), candidate) != fields.end()) continue;
    for (const auto& [key, group] : is_chosen(candidate) ? by_fields : by_settings) {
      if (distinct(group, candidate).size() > 1) return candidate;
    }
  }
  return {};
}

Rows latest(const Rows& rows, const std::vector<std::string>& fields, std::size_t& dropped) {
  std::map<std::string, std::size_t> place;
  Rows kept;
  for (const json* row : rows) {
    const auto [found, added] = place.try_emplace(key_of(*row, fields), kept.size());
    if (added) {
      kept.push_back(row);
    } else {
      kept[found->second] = row;
      ++dropped;
    }
  }
  return kept;
}

void fill_kept_share(std::vector<json>& rows) {
  std::vector<std::string> point;
  for (const std::string& field : distinctions()) {
    if (field != "kept_share" && field != "direction" && !is_chosen(field)) point.push_back(field);
  }
  std::map<std::string, json> shares;
  for (const json& row : rows) {
    if (number_of(row, "kept_share")) shares[key_of(row, point)] = row["kept_share"];
  }
  for (json& row : rows) {
    if (row["status"] == "ok" || number_of(row, "kept_share")) continue;
    if (const auto found = shares.find(key_of(row, point)); found != shares.end())
      row["kept_share"] = found->second;
  }
}

std::vector<json> summed(const std::vector<json>& rows, const Figure& spec) {
  std::vector<std::string> fields = {spec.x};
  for (const std::string& field : distinctions()) {
    if (field != spec.sum_over && !is_chosen(field)) fields.push_back(field);
  }
  Rows all;
  for (const json& row : rows) all.push_back(&row);
  const std::vector<std::string> parts = distinct(all, spec.sum_over);
  std::vector<json> sums;
  for (const Rows& group : grouped(rows, fields)) {
    std::size_t again = 0;
    const Rows once = latest(group, {spec.sum_over}, again);
    json sum = *once.front();
    double total = 0;
    for (const json* row : once) {
      total += number_of(*row, spec.y.front()).value_or(0);
      if ((*row)["status"] != "ok" && sum["status"] == "ok") sum = *row;
    }
    if (once.size() < parts.size() && sum["status"] == "ok") sum["status"] = "incomplete";
    sum[spec.y.front()] = total;
    sum[spec.sum_over] = fmt::format("{}", fmt::join(parts, " + "));
    sum_quartiles(sum, once);
    sums.push_back(std::move(sum));
  }
  return sums;
}

std::vector<json> last_ones(const std::vector<json>& rows, const Figure& spec) {
  std::vector<std::string> fields = {spec.x};
  for (const std::string& field : distinctions()) {
    const bool follows = spec.last_of == "q_length" && field == "k_length";
    if (field != spec.last_of && !follows && !is_chosen(field)) fields.push_back(field);
  }
  std::vector<json> last;
  for (const Rows& group : grouped(rows, fields)) {
    const json* best = nullptr;
    for (const json* row : group) {
      const auto value = number_of(*row, spec.last_of);
      if ((*row)["status"] != "ok" || !value) continue;
      if (best == nullptr || *value >= *number_of(*best, spec.last_of)) best = row;
    }
    last.push_back(best == nullptr ? *group.front() : *best);
  }
  return last;
}

std::vector<std::string> drawn_fields(const Figure& spec, const Rows& rows) {
  std::vector<std::string> fields = {spec.kind == FigureKind::heatmap ? spec.value : spec.y.front()};
  if (spec.kind != FigureKind::bars) return fields;
  std::copy_if(spec.bounds.begin(), spec.bounds.end(), std::back_inserter(fields), [&](const auto& field) {
    return std::any_of(rows.begin(), rows.end(),
                       [&](const json* row) { return number_of(*row, field).has_value(); });
  });
  return fields;
}

std::string missing_field(const Figure& spec, const std::vector<json>& rows, const std::string& where) {
  auto check = [&](const char* role, const std::string& field) {
    if (!field.empty() && !some_row_has(rows, field) && find_field(field) == nullptr) {
      throw UsageError(fmt::format("{}: {} '{}' is not a field of its rows", where, role, field));
    }
  };
  check("x", spec.x);
  for (const std::string& field : spec.facets) check("facet", field);
  for (const std::string& field : spec.bounds) check("bound", field);
  check("sum_over", spec.sum_over);
  check("last_of", spec.last_of);
  check("value", spec.value);
  for (const std::string& field : spec.y) check("y", field);
  for (const std::string& field : spec.series) check("series", field);

  const Figure drawn = without_missing_fields(spec, rows);
  if (drawn.y.empty()) return spec.y.front();
  std::vector<std::string> needed = {spec.x, drawn.y.front(), spec.value, spec.sum_over, spec.last_of};
  for (const std::string& field : needed) {
    if (!field.empty() && !some_row_has(rows, field)) return field;
  }
  // Rows of an older version have newer fields as null.
  auto measured = [](const json& row) { return row["status"] == "ok"; };
  auto valued = [](const std::string& field) {
    return [field](const json& row) { return row["status"] == "ok" && !field_value(row, field).is_null(); };
  };
  const std::string& value = drawn.value.empty() ? drawn.y.front() : drawn.value;
  const bool any_measured = std::any_of(rows.begin(), rows.end(), measured);
  const bool table = drawn.kind == FigureKind::table;
  if (any_measured && !table && !std::any_of(rows.begin(), rows.end(), valued(value))) return value;
  if (any_measured && !drawn.x.empty() && !std::any_of(rows.begin(), rows.end(), valued(drawn.x)))
    return drawn.x;
  return {};
}

Figure without_missing_fields(const Figure& spec, const std::vector<json>& rows) {
  Figure drawn = spec;
  auto missing = [&](const std::string& field) { return !some_row_has(rows, field); };
  std::erase_if(drawn.facets, missing);
  std::erase_if(drawn.bounds, missing);
  std::erase_if(drawn.series, missing);
  if (spec.kind == FigureKind::table || spec.kind == FigureKind::hierarchy) std::erase_if(drawn.y, missing);
  return drawn;
}

}  // namespace tessera::lab::report
