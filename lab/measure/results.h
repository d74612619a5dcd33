// The results of `tessera lab`: a directory with results.jsonl (one row a line, complete after every row), results.csv
// (the same rows) and experiments.json (what the figures are).
//
// A row is an object: "schema" (kSchema), "commit", "experiment", "date" (UTC), "scale", then the fields of rows.h. It
// describes itself: nothing about it is said elsewhere.
#pragma once

#include <cstddef>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/experiments/experiments.h"
#include "lab/measure/rows.h"

namespace tessera::lab {

inline constexpr int kSchema = 1;

// A results file that is not what it should be: the message names file, line and what is wrong.
class ResultsError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The commit this program was built from, "-dirty" appended when files had changed; "unknown" outside a repository.
std::string commit_text();

// The time now as "2026-11-15T17:02:45Z".
std::string date_text();

// What the rows of one run have in common.
struct Stamp {
  std::string commit = commit_text();
  std::string scale = name(Scale::normal);
};

// A row as it stands in results.jsonl.
nlohmann::ordered_json to_json(const Row& row, const std::string& experiment, const Stamp& stamp,
                               const std::string& date);

// Everything that identifies a measurement, as one text: two rows with the same key answer the same question. The key of
// a row that is yet to be measured is that of the finished one.
std::string key_of(const nlohmann::ordered_json& row);

// The rows of a results file, each checked. A last line without an end is a row that was being written when the program
// was killed: it does not count. Throws ResultsError.
std::vector<nlohmann::ordered_json> read_results(const std::string& path);

// The directory that a run writes to.
class Results {
 public:
  // Makes the directory and its files. With rows in it already: throws UsageError, unless `resume`, which keeps them;
  // then throws ResultsError when they come from another machine, device, commit or scale. Throws UsageError when
  // something cannot be written, or is being written by another process.
  Results(const std::string& directory, const Stamp& stamp, Device device, bool resume);

  [[nodiscard]] bool has(const Row& row, const std::string& experiment) const;

  // Adds a row to both files at once. A speed-up that the contest could not tell is filled in from the row of
  // `standard` that was written before. Throws OutputError.
  void write(Row row, const std::string& experiment);

  // Writes experiments.json. Throws OutputError.
  void describe(const std::vector<const Experiment*>& chosen) const;

  [[nodiscard]] std::size_t rows() const { return medians_.size(); }
  [[nodiscard]] const std::string& path() const { return json_path_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, Close>;
  [[nodiscard]] static File open(const std::string& path, const char* mode);
  void keep_rows(Device device);
  void add(const nlohmann::ordered_json& row);
  [[nodiscard]] std::optional<double> standard_seconds(const Row& row, const std::string& experiment) const;

  Stamp stamp_;
  std::string directory_, json_path_;
  File json_, csv_;
  std::map<std::string, std::optional<double>> medians_;  // by key: seconds, of rows that have them
};

}  // namespace tessera::lab
