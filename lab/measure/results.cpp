#include "lab/measure/results.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "lab/measure/fields.h"
#include "lab/measure/machine/gpu_timer.h"
#include "lab/measure/machine/machine_text.h"
#include "lab/terminal/terminal.h"

namespace tessera::lab {
namespace {

using Json = nlohmann::ordered_json;

const std::vector<std::string>& key_fields() {
  static const std::vector<std::string> kNames = field_names("lab", Role::key);
  return kNames;
}

// The fields in which all rows of a file agree.
std::vector<std::string> shared_fields() {
  std::vector<std::string> names = field_names("lab", Role::run);
  names.emplace_back("scale");
  names.emplace_back("study_factor");
  return names;
}

bool alike(const Json& a, const Json& b) { return (a.is_number() && b.is_number()) || a.type() == b.type(); }

// Throws UsageError unless `row` has the fields of this version with values of their types.
void check_row(const Json& row, const std::string& where) {
  static const Json kDefaults = default_row("lab");
  for (const auto& [field, value] : kDefaults.items()) {
    const auto found = row.find(field);
    if (found == row.end()) throw UsageError(fmt::format("{}: has no field '{}'", where, field));
    // Null stands for unknown, except in the key.
    const bool needed = std::find(key_fields().begin(), key_fields().end(), field) != key_fields().end();
    if (value.is_null() || (found->is_null() && !needed) || alike(*found, value)) continue;
    throw UsageError(
        fmt::format("{}: field '{}' is {}; it must be a {}", where, field, found->dump(), value.type_name()));
  }
}

// Of one file: every row checked, none twice.
std::vector<Json> parse_own_rows(const std::string& text, const std::string& path) {
  std::map<std::string, std::string> seen;
  return parse_rows(text, path, [&](const Json& row, const std::string& where) {
    check_row(row, where);
    const auto [known, fresh] = seen.emplace(key_of(row), where);
    if (!fresh) throw UsageError(fmt::format("{}: repeats {}", where, known->second));
  });
}

void write_line(std::FILE* file, const std::string& path, const std::string& line) {
  const std::string text = line + "\n";
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (!written || std::fflush(file) != 0) {
    throw OutputError(fmt::format("cannot write '{}': {}", path, std::strerror(errno)));
  }
}

std::optional<double> median_seconds(const Json& row) {
  const Json& median = row["median_ms"];
  if (!median.is_number()) return {};
  return median.get<double>() / 1e3;
}

}  // namespace

std::string key_of(const Json& row) {
  std::string key;
  for (const std::string& field : key_fields()) key += row.at(field).dump() + " ";
  return key;
}

std::vector<Json> read_rows(const std::string& path) { return parse_own_rows(read_lines(path).text, path); }

Results::Results(const std::string& directory, const Stamp& stamp, Device device, bool resume)
    : stamp_(stamp), directory_(directory), json_path_(directory + "/results.jsonl") {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw UsageError(fmt::format("--out '{}': cannot be created: {}", directory, error.message()));
  json_ = open(json_path_, "a");
  if (flock(fileno(json_.get()), LOCK_EX | LOCK_NB) != 0) {
    throw UsageError(fmt::format(
        "--out '{}': another tessera lab writes there; wait for it or choose another directory", directory));
  }
  if (!resume && std::filesystem::file_size(json_path_) > 0) {
    throw UsageError(fmt::format(
        "--out '{}': has results already; continue them with --resume or choose another directory",
        directory));
  }
  const std::string csv_path = directory + "/results.csv";
  keep_rows(device);
  csv_ = open(csv_path, "w");
  write_line(csv_.get(), csv_path, csv_header(default_row("lab")));
  for (const Json& row : read_rows(json_path_)) {
    add(row);
    write_line(csv_.get(), csv_path, to_csv(row));
  }
}

Results::File Results::open(const std::string& path, const char* mode) {
  File file(std::fopen(path.c_str(), mode));
  if (!file) throw UsageError(fmt::format("--out: '{}' cannot be written: {}", path, std::strerror(errno)));
  return file;
}

// Checks that the rows in the file are of this run, and cuts off an unfinished row at its end.
void Results::keep_rows(Device device) {
  Row here;
  here.problem.device = device;
  const Json wanted = to_json(here, "", stamp_, "");
  const RowLines kept = read_lines(json_path_);
  for (const Json& row : parse_own_rows(kept.text, json_path_)) {
    for (const std::string& field : shared_fields()) {
      if (row[field] == wanted[field]) continue;
      throw UsageError(
          fmt::format("--out '{}': its rows have '{}' {}, this run has {}; give the same options or choose "
                      "another directory",
                      directory_, field, row[field].dump(), wanted[field].dump()));
    }
  }
  if (kept.unfinished && ftruncate(fileno(json_.get()), static_cast<off_t>(kept.text.size())) != 0) {
    throw OutputError(fmt::format("cannot write '{}': {}", json_path_, std::strerror(errno)));
  }
}

void Results::add(const Json& row) {
  medians_.emplace(key_of(row), median_seconds(row));
  experiments_.insert(row["experiment"].get<std::string>());
}

bool Results::has(const Row& row, const std::string& experiment) const {
  return medians_.count(key_of(to_json(row, experiment, stamp_, ""))) > 0;
}

std::optional<double> Results::standard_seconds(const Row& row, const std::string& experiment) const {
  Row standard = row;
  standard.method.algorithm = Algorithm::standard;
  standard.method.label.clear();
  const auto found = medians_.find(key_of(to_json(standard, experiment, stamp_, "")));
  return found == medians_.end() ? std::nullopt : found->second;
}

void Results::write(Row row, const std::string& experiment) {
  if (row.status == Status::ok && !row.speedup && row.seconds.median > 0) {
    if (const auto standard = standard_seconds(row, experiment)) row.speedup = *standard / row.seconds.median;
  }
  const Json json = to_json(row, experiment, stamp_, date_text());
  // Text of the system that is not UTF-8 must not end a run.
  write_line(json_.get(), json_path_, json.dump(-1, ' ', false, Json::error_handler_t::replace));
  write_line(csv_.get(), directory_ + "/results.csv", to_csv(json));
  add(json);
}

void Results::describe(const std::vector<const Experiment*>& chosen) const {
  const std::string path = directory_ + "/experiments.json";
  const File file = open(path, "w");
  write_line(file.get(), path, to_json(chosen).dump(2));
}

}  // namespace tessera::lab
