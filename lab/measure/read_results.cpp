#include "lab/measure/read_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "lab/experiments/studies.h"
#include "lab/measure/fields.h"
#include "lab/measure/rows.h"
#include "lab/terminal/errors.h"
#include "lab/terminal/text.h"

namespace tessera::lab {
namespace {

using nlohmann::json, nlohmann::ordered_json;

constexpr std::array kKinds = {FigureKind::lines, FigureKind::bars, FigureKind::heatmap, FigureKind::table,
                               FigureKind::hierarchy};

std::string read_text(const std::string& path, const char* what) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) {
    throw UsageError(fmt::format("{} '{}': cannot be read: {}", what, path, std::strerror(errno)));
  }
  return text;
}

void check_schema(const json& object, const std::string& where) {
  const json schema = object.value("schema", json());
  if (schema == kSchema) return;
  throw UsageError(
      fmt::format("{}: schema {} is unknown; this version reads schema {}", where, schema.dump(), kSchema));
}

// One row. Throws unless it has the fields that rows of every program have.
ordered_json parse_row(const std::string& line, const std::string& where) {
  ordered_json row = ordered_json::parse(line, nullptr, false);
  if (row.is_discarded()) throw UsageError(fmt::format("{}: is not JSON: '{}'", where, line.substr(0, 60)));
  if (!row.is_object() || !row.contains("schema")) {
    throw UsageError(where + ": has no field 'schema', so it is not a row of tessera lab");
  }
  check_schema({{"schema", row["schema"]}}, where);
  for (const char* field : {"experiment", "machine", "device", "status", "commit", "date"}) {
    if (row.contains(field) && row[field].is_string()) continue;
    throw UsageError(fmt::format("{}: field '{}' is {}; it must be text", where, field,
                                 row.contains(field) ? row[field].dump() : "missing"));
  }
  // Until 2026-11 flash3 was called hopper.
  if (const auto found = row.find("algorithm"); found != row.end() && *found == "hopper") *found = "flash3";
  return row;
}

// One entry of experiments.json, with errors that say where it stands.
class Entry {
 public:
  Entry(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) throw UsageError(where_ + ": must be an object");
  }

  [[nodiscard]] std::string text(const char* key, bool required = false) const {
    if (!object_.contains(key) || object_[key].is_null()) {
      if (required) refuse(key, "is missing");
      return {};
    }
    if (!object_[key].is_string()) refuse(key, "must be text");
    return object_[key].get<std::string>();
  }

  [[nodiscard]] bool flag(const char* key) const {
    if (!object_.contains(key) || object_[key].is_null()) return false;
    if (!object_[key].is_boolean()) refuse(key, "must be true or false");
    return object_[key].get<bool>();
  }

  // A text with commas, or an array of texts.
  [[nodiscard]] std::vector<std::string> list(const char* key) const {
    if (!object_.contains(key) || !object_[key].is_array()) {
      const std::string joined = text(key);
      return joined.empty() ? std::vector<std::string>{} : split(joined, ',');
    }
    std::vector<std::string> items;
    for (const json& item : object_[key]) {
      if (!item.is_string()) refuse(key, "must be text or an array of texts");
      items.push_back(item.get<std::string>());
    }
    return items;
  }

  [[noreturn]] void refuse(const char* key, const std::string& why) const {
    throw UsageError(
        fmt::format("{}: '{}' {} {}", where_, key, object_.contains(key) ? object_[key].dump() : "", why));
  }

 private:
  const json& object_;
  std::string where_;
};

Figure parse_figure(const json& object, const std::string& where) {
  const Entry entry(object, where);
  Figure figure;
  const std::string kind = entry.text("kind", true);
  const auto* const found =
      std::find_if(kKinds.begin(), kKinds.end(), [&](FigureKind known) { return name(known) == kind; });
  if (found == kKinds.end()) entry.refuse("kind", "must be lines, bars, heatmap, table or hierarchy");
  figure.kind = *found;
  figure.title = entry.text("title", true);
  // A table may name its columns instead of axes.
  const bool several = figure.kind == FigureKind::table || figure.kind == FigureKind::hierarchy;
  const bool columns = several && !entry.list("columns").empty();
  figure.x = entry.text("x", !columns || figure.kind == FigureKind::hierarchy);
  figure.y = entry.list(columns ? "columns" : "y");
  if (figure.y.empty()) entry.refuse("y", "is missing");
  if (figure.y.size() > 1 && !several) entry.refuse("y", "must be one field");
  figure.series = entry.list("series");
  figure.facets = entry.list(object.contains("facets") ? "facets" : "facet");
  figure.value = entry.text("value");
  figure.bounds = entry.list("bounds");
  figure.sum_over = entry.text("sum_over");
  figure.last_of = entry.text("last_of");
  figure.log_x = entry.flag("log_x");
  figure.log_y = entry.flag("log_y");
  figure.theory = entry.flag("theory");
  figure.stack = entry.flag("stack");
  figure.unit_x = entry.text("unit_x");
  figure.unit_y = entry.text("unit_y");
  return figure;
}

}  // namespace

RowLines read_lines(const std::string& path) {
  RowLines lines{read_text(path, "results")};
  const std::size_t end = lines.text.rfind('\n');
  const std::size_t whole = end == std::string::npos ? 0 : end + 1;
  lines.unfinished = whole < lines.text.size();
  lines.text.resize(whole);
  return lines;
}

std::vector<ordered_json> parse_rows(const std::string& text, const std::string& path,
                                     const RowCheck& check) {
  std::vector<ordered_json> rows;
  std::size_t number = 0;
  for (const std::string& line : split(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    const std::string where = fmt::format("results '{}', line {}", path, number);
    rows.push_back(parse_row(line, where));
    if (check) check(rows.back(), where);
  }
  return rows;
}

std::vector<Experiment> parse_experiments(const std::string& text, const std::string& path) {
  const std::string file = fmt::format("experiments '{}'", path);
  json all = json::parse(text, nullptr, false);
  if (all.is_discarded()) throw UsageError(file + ": is not JSON");
  if (all.is_object() && all.contains("experiments")) {
    check_schema(all, file);
    all = json(all["experiments"]);
  }
  if (!all.is_array()) throw UsageError(file + ": must be an array of experiments");
  std::vector<Experiment> experiments;
  for (const json& object : all) {
    const std::string where = fmt::format("{}, experiment {}", file, experiments.size() + 1);
    const Entry entry(object, where);
    Experiment experiment{.name = entry.text("name", true),
                          .title = entry.text("title", true),
                          .question = entry.text("question"),
                          .origin = entry.text("origin")};
    if (!object.contains("figures") || !object["figures"].is_array()) {
      entry.refuse("figures", "must be an array");
    }
    for (const json& figure : object["figures"]) {
      experiment.figures.push_back(parse_figure(
          figure,
          fmt::format("{} ('{}'), figure {}", where, experiment.name, experiment.figures.size() + 1)));
    }
    experiments.push_back(std::move(experiment));
  }
  return experiments;
}

// Adds the fields that the row's version did not have.
void complete(json& row) {
  for (const Field& field : fields()) {
    if (field.default_value.is_null() && !row.contains(field.name)) row[field.name] = nullptr;
  }
  auto has = [&](const char* field) { return row.contains(field) && row[field].is_number(); };
  if (!has("peak_bytes") && has("peak_extra_bytes") && has("tensor_bytes"))
    row["peak_bytes"] = row["tensor_bytes"].get<double>() + row["peak_extra_bytes"].get<double>();
}

ResultsFile read_results(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path file = fs::is_directory(path) ? fs::path(path) / "results.jsonl" : fs::path(path);
  ResultsFile results{file.string(), {}, {}};
  std::vector<json> of_bench;
  for (const ordered_json& row : parse_rows(read_lines(results.path).text, results.path)) {
    results.rows.emplace_back(row);
    complete(results.rows.back());
    if (row["experiment"] == kBench) of_bench.push_back(results.rows.back());
  }
  if (results.rows.empty()) throw UsageError(fmt::format("results '{}': has no rows", results.path));
  const std::string beside = (file.parent_path() / "experiments.json").string();
  if (of_bench.size() == results.rows.size()) {
    results.experiments = {bench_experiment(of_bench)};
  } else if (fs::exists(beside)) {
    results.experiments = parse_experiments(read_text(beside, "experiments"), beside);
  } else {
    results.experiments = experiments();
    for (const Study& study : studies()) {
      for (const Experiment& experiment : study.experiments) {
        const bool measured = std::any_of(results.rows.begin(), results.rows.end(), [&](const json& row) {
          return row["experiment"] == experiment.name;
        });
        if (measured) results.experiments.push_back(experiment);
      }
    }
    if (!of_bench.empty()) results.experiments.push_back(bench_experiment(of_bench));
  }
  return results;
}

}  // namespace tessera::lab
