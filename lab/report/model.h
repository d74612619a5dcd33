// Rows become drawn figures: panels of series over a shared axis, in readable units. page.h shows
// them, reading.h puts them into words.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/measure/fields.h"
#include "lab/measure/read_results.h"
#include "lab/report/runs.h"

namespace tessera::lab::report {

// How a field is shown: values times `scale` are in `unit`.
struct Quantity {
  std::string field;
  std::string label;   // "sequence length"
  std::string symbol;  // in sentences: "N"
  std::string unit;    // "ms"; empty: a plain number
  double scale = 1;
  Measure measure = Measure::other;
};

// "time, ms"
std::string axis_label(const Quantity& quantity);
// "12.3 ms", "14.0 MiB", "3.1e-07"
std::string quantity_text(const Quantity& quantity, double scaled);

struct Axis {
  Quantity quantity;
  bool numeric = true;
  bool log = false;
  std::vector<double> values;       // ascending; of a numeric axis
  std::vector<std::string> labels;  // one per position
};

// One row in a figure. Without `y` there is nothing to draw, and `status` says why.
struct Mark {
  std::size_t x = 0;  // position on the axis
  std::optional<double> y{};
  double low = 0, high = 0;  // quartiles; both are y where they are unknown or the value is exact
  bool overhead = false;     // a time that the launch of the call dominates, not its arithmetic
  std::string status = "ok";
  std::string reason{};
  std::string detail{};  // kernel and spread, shown on hover

  // Whether the quartiles are further apart than a tenth of the value.
  [[nodiscard]] bool noisy() const;
};

// A value of a study: its place on the axis need not be one of ours.
struct StudyPoint {
  double x = 0;         // of a numeric axis
  std::string label{};  // of an axis of names
  double y = 0;         // in the unit of the axis
};

struct Series {
  std::string name;
  std::string primary;  // what its colour stands for, "flash2"
  std::string rest;     // what its dashes stand for, "backward, NVIDIA L4"
  int color = 0;
  int dash = 0;
  bool theory = false;
  std::string twin{};                // an earlier series of the panel that it coincides with
  std::vector<Mark> marks{};         // by position
  std::vector<StudyPoint> points{};  // of a series of a study, which has no marks

  [[nodiscard]] const Mark* at(std::size_t x) const;
};

struct Panel {
  std::string title;
  std::vector<Series> series;
};

struct DataTable {
  std::vector<std::string> headers;
  std::vector<bool> numeric;
  std::vector<std::vector<std::string>> rows;
};

struct DrawnFigure {
  Figure spec;
  Axis x;
  Axis rows;            // of a heat map: its second axis, whose labels are the names of the series
  Quantity y;           // of a heat map: the coloured value
  std::string caption;  // what all its rows share: "forward, fp32, batch 1"
  std::vector<Panel> panels;
  std::vector<std::string> notes;  // which points are missing, and why
  DataTable table;
  std::vector<DrawnFigure> columns;  // of a table: its second and further measurements, for the sentences
};

// What a study found, and the same quantity here.
struct StudyFinding {
  std::string found;  // "the benchmark of FlashAttention-1 on a T4 found 3.0× at N = 1024 (figure 4)"
  std::string here;   // "here 1.5× at N = 1024"; empty: nothing comparable was measured
};

struct Section {
  Experiment spec;
  std::vector<nlohmann::json> rows;  // those that are drawn, each with its "run"
  std::vector<DrawnFigure> figures;
  std::vector<StudyFinding> findings;
  std::vector<std::string> stale;  // "1cbe591, 2026-11-15": older commits, which a newer one did not repeat
  std::vector<std::string> notes;  // about its rows: runs that measured the same
};

struct Report {
  std::vector<Run> runs;
  std::vector<Section> sections;
  std::vector<std::string> unmeasured;  // titles of experiments without rows
  std::vector<std::string> sources;     // paths of the files of rows
};

// `prefer` is the path of the file that is drawn where several files measured the same points on
// one machine and commit; empty: the later one. Throws UsageError when an experiment asks for
// fields that are unknown, when rows belong to an experiment that is not described, or when
// `prefer` is none of the files.
Report make_report(const std::vector<ResultsFile>& files, const std::string& prefer = {});

}  // namespace tessera::lab::report
