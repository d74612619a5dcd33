// What `tessera report` reads: rows as JSON Lines and, beside them, the experiments they belong to.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::lab::report {

// The schema of a row this version reads and writes.
inline constexpr int kRowSchema = 1;

enum class FigureKind { lines, bars, heatmap, table };

// What is drawn of an experiment's rows. Everything but titles and units names
// fields of the rows.
struct FigureSpec {
  FigureKind kind = FigureKind::lines;
  std::string title;
  std::string x;
  std::vector<std::string> y;       // one; a table may have several
  std::vector<std::string> series;  // rows that differ here are lines (bars) of their own
  std::vector<std::string> facets;  // rows that differ here get a panel of their own
  std::string value;                // of a heat map: what is coloured
  std::vector<std::string> bounds;  // further fields of the same rows: lines of theory, or bars beside y
  std::string sum_over;             // rows that differ in this field alone are added up
  std::string last_of;              // of rows that differ in this field alone the last that is ok counts
  bool log_x = false;
  bool log_y = false;
  bool theory = false;  // draws the bounds of the theory into a figure of memory traffic
  std::string unit_x;
  std::string unit_y;
};

struct ExperimentSpec {
  std::string name;
  std::string title;
  std::string question;
  std::string origin;  // the study it reproduces
  std::vector<FigureSpec> figures;
};

struct ResultsFile {
  std::string path;
  std::vector<nlohmann::json> rows;
  std::vector<ExperimentSpec> experiments;
};

// All of them throw UsageError that names the file, the line or entry, and what was expected.
// `path` is a results.jsonl or the folder that holds one. Without an experiments.json beside it the experiments are
// those of this version.
ResultsFile read_results(const std::string& path);
std::vector<nlohmann::json> parse_rows(const std::string& text, const std::string& path);
std::vector<ExperimentSpec> parse_experiments(const std::string& text, const std::string& path);

}  // namespace tessera::lab::report
