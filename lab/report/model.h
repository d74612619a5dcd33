// Rows become drawn figures: panels of series over a shared axis, in readable units. page.h shows
// them, sentences.h puts them into words.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/measure/fields.h"
#include "lab/measure/read_results.h"

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
  std::string status = "ok";
  std::string reason{};
  double spread = 0;     // half the distance of the quartiles, as a share of the value; 0: unknown
  std::string detail{};  // kernel and spread, shown on hover
};

struct Series {
  std::string name;
  std::string primary;  // what its colour stands for, "flash2"
  std::string rest;     // what its dashes stand for, "backward, NVIDIA L4"
  int color = 0;
  int dash = 0;
  bool theory = false;
  std::vector<Mark> marks;  // by position

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

struct Section {
  Experiment spec;
  std::size_t row_count = 0;
  std::vector<DrawnFigure> figures;
};

// Where rows came from: one machine (and GPU), one commit.
struct Run {
  std::string label;  // short and distinct: "NVIDIA L4", "AMD EPYC 9B45 @ 1a2b3c4"
  std::string machine, device, gpu, commit, version;
  std::string first_date, last_date;
  std::size_t rows = 0, ok = 0, out_of_memory = 0;
};

struct Report {
  std::vector<Run> runs;
  std::vector<Section> sections;
  std::vector<std::string> unmeasured;  // titles of experiments without rows
  std::vector<std::string> sources;     // paths of the files of rows
};

// Throws UsageError when an experiment asks for fields its rows do not have, or rows for an
// experiment that is not described.
Report make_report(const std::vector<ResultsFile>& files);

}  // namespace tessera::lab::report
