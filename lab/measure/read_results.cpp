#include "lab/measure/read_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "lab/commands/parse.h"
#include "lab/experiments/experiments.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

constexpr std::array<const char*, 4> kKinds = {"lines", "bars", "heatmap", "table"};

std::string read_text(const std::string& path, const char* what) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) {
    throw UsageError(fmt::format("{} '{}': cannot be read: {}", what, path, std::strerror(errno)));
  }
  return text;
}

// The part of the JSON library's message that says what is wrong, without its number and position.
std::string parse_problem(const json::parse_error& error) {
  const std::string text = one_line(error.what());
  const std::size_t at = text.find(": ");
  return at == std::string::npos ? text : text.substr(at + 2);
}

json parse_row(const std::string& line, const std::string& where) {
  json row;
  try {
    row = json::parse(line);
  } catch (const json::parse_error& error) {
    throw UsageError(fmt::format("{}: is not JSON: {}", where, parse_problem(error)));
  }
  if (!row.is_object() || !row.contains("schema")) {
    throw UsageError(where + ": has no field 'schema', so it is not a row of tessera lab");
  }
  if (row["schema"] != kRowSchema) {
    throw UsageError(fmt::format("{}: schema {} is unknown; this version reads schema {}", where,
                                 row["schema"].dump(), kRowSchema));
  }
  for (const char* field : {"experiment", "machine", "device", "status", "commit", "date"}) {
    if (row.contains(field) && row[field].is_string()) continue;
    throw UsageError(fmt::format("{}: field '{}' is {}; every row needs it as text", where, field,
                                 row.contains(field) ? row[field].dump() : "missing"));
  }
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

FigureSpec parse_figure(const json& object, const std::string& where) {
  const Entry entry(object, where);
  FigureSpec figure;
  const std::string kind = entry.text("kind", true);
  const auto* const found = std::find(kKinds.begin(), kKinds.end(), kind);
  if (found == kKinds.end()) entry.refuse("kind", "must be lines, bars, heatmap or table");
  figure.kind = static_cast<FigureKind>(found - kKinds.begin());
  figure.title = entry.text("title", true);
  // A table may name its columns instead of axes.
  const bool columns = figure.kind == FigureKind::table && !entry.list("columns").empty();
  figure.x = entry.text("x", !columns);
  figure.y = entry.list(columns ? "columns" : "y");
  if (figure.y.empty()) entry.refuse("y", "is missing");
  if (figure.y.size() > 1 && figure.kind != FigureKind::table) entry.refuse("y", "must be one field");
  figure.series = entry.list("series");
  figure.facets = entry.list(object.contains("facets") ? "facets" : "facet");
  figure.value = entry.text("value");
  figure.bounds = entry.list("bounds");
  figure.sum_over = entry.text("sum_over");
  figure.last_of = entry.text("last_of");
  figure.log_x = entry.flag("log_x");
  figure.log_y = entry.flag("log_y");
  figure.theory = entry.flag("theory");
  figure.unit_x = entry.text("unit_x");
  figure.unit_y = entry.text("unit_y");
  return figure;
}

}  // namespace

std::vector<json> parse_rows(const std::string& text, const std::string& path) {
  std::vector<json> rows;
  std::size_t number = 0;
  for (const std::string& line : split(text, '\n')) {
    ++number;
    if (!line.empty()) rows.push_back(parse_row(line, fmt::format("RESULTS '{}', line {}", path, number)));
  }
  if (rows.empty()) throw UsageError(fmt::format("RESULTS '{}': has no rows", path));
  return rows;
}

std::vector<ExperimentSpec> parse_experiments(const std::string& text, const std::string& path) {
  const std::string file = fmt::format("experiments '{}'", path);
  json all;
  try {
    all = json::parse(text);
  } catch (const json::parse_error& error) {
    throw UsageError(fmt::format("{}: is not JSON: {}", file, parse_problem(error)));
  }
  if (all.is_object() && all.contains("experiments")) {
    if (all.value("schema", json()) != kRowSchema) {
      throw UsageError(fmt::format("{}: schema {} is unknown; this version reads schema {}", file,
                                   all.value("schema", json()).dump(), kRowSchema));
    }
    all = json(all["experiments"]);
  }
  if (!all.is_array()) throw UsageError(file + ": must be an array of experiments");
  std::vector<ExperimentSpec> experiments;
  for (const json& object : all) {
    const std::string where = fmt::format("{}, experiment {}", file, experiments.size() + 1);
    const Entry entry(object, where);
    ExperimentSpec experiment{entry.text("name", true),
                              entry.text("title", true),
                              entry.text("question"),
                              entry.text("origin"),
                              {}};
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

ResultsFile read_results(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path file = fs::is_directory(path) ? fs::path(path) / "results.jsonl" : fs::path(path);
  const std::string beside = (file.parent_path() / "experiments.json").string();
  ResultsFile results{file.string(), parse_rows(read_text(file.string(), "RESULTS"), file.string()), {}};
  results.experiments = fs::exists(beside)
                            ? parse_experiments(read_text(beside, "experiments, beside the rows,"), beside)
                            : parse_experiments(to_json(find_experiments({})).dump(), "of this version");
  return results;
}

}  // namespace tessera::lab::report
