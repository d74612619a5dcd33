// The results of `tessera lab`: a directory with results.jsonl (one row per line, flushed after
// every measurement), results.csv (the same rows) and experiments.json (the figures).
//
// A row begins with "schema" (kSchema), "commit", "experiment", "date" (UTC) and "scale"; the
// fields of rows.h follow.
#pragma once

#include <cstddef>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lab/experiments/experiment.h"
#include "lab/measure/read_results.h"
#include "lab/measure/rows.h"

namespace tessera::lab {

// The fields that identify a measurement, as one text: rows with the same key answer the same
// question. A row has its key before it is measured.
std::string key_of(const nlohmann::ordered_json& row);

// The rows of a file of `tessera lab`. Throws UsageError for a row that lacks a field of this
// version, has a value of the wrong type, or repeats another one.
std::vector<nlohmann::ordered_json> read_rows(const std::string& path);

// The directory that a run writes to.
class Results {
 public:
  // Creates the directory and its files. `resume` keeps the rows that are there. Throws UsageError
  // for rows without `resume`; for rows of another machine, device, commit or scale; for files that
  // cannot be written; and while another process writes there.
  Results(const std::string& directory, const Stamp& stamp, Device device, bool resume);

  [[nodiscard]] bool has(const Row& row, const std::string& experiment) const;

  // Adds a row to both files. A missing speed-up is computed from the row of `standard` that was
  // written before. Throws OutputError.
  void write(Row row, const std::string& experiment);

  // Writes experiments.json. Throws OutputError.
  void describe(const std::vector<const Experiment*>& chosen) const;

  // The names of the experiments that have rows.
  [[nodiscard]] const std::set<std::string>& experiments() const { return experiments_; }
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
  std::set<std::string> experiments_;
  std::map<std::string, std::optional<double>> medians_;  // by key: seconds, of rows that have them
};

}  // namespace tessera::lab
