// The experiments of `tessera lab`, as data: what each one asks, where it comes from, what it sweeps over at each scale
// and what is drawn from its rows. To add one, add an entry to experiments.cpp.
//
// An experiment that measures something else than calls of attention (training, processes on several devices, other
// libraries) is an entry here too: its rows then come from a program of its own, in the schema of results.h, and its
// figures are drawn by the same report.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/commands/options.h"

namespace tessera::lab {

// How large the sizes are: minutes on two cores; a little more; those of the studies, for a GPU.
enum class Scale { quick, normal, full };

const char* name(Scale scale);

// Something for each scale.
template <typename T>
struct Scaled {
  T quick{}, normal{}, full{};
  [[nodiscard]] const T& at(Scale scale) const {
    return scale == Scale::quick ? quick : scale == Scale::normal ? normal : full;
  }
};

// Options of `tessera bench`, as typed there.
using BenchText = std::string;

// A part of an experiment: sweeps that are measured in the same way.
struct Part {
  BenchText common;                         // shared by all sweeps
  Scaled<std::vector<BenchText>> sweeps{};  // each appended to `common`; none: nothing to do
  std::string label{};                      // what rows call the algorithm; empty: its own name
  std::string kernel{};                     // forced, as TESSERA_KERNEL does
  std::string baseline{};                   // one of lab/baselines instead of a kernel
  std::vector<std::int64_t> block_k{};      // forced one by one, as TESSERA_BLOCK_K does
  std::optional<DeviceType> only_on{};      // the device it exists for
};

enum class FigureKind { lines, bars, heatmap, table };

const char* name(FigureKind kind);

// What is drawn. Everything names fields of the rows.
struct Figure {
  FigureKind kind = FigureKind::lines;
  std::string title;
  std::string x;
  std::string y;
  std::string series = "algorithm";   // one line, bar or row of the table for each value; empty: one in all
  std::vector<std::string> facets{};  // one panel for each combination of their values
  bool log_x = false;
  bool log_y = false;
  std::string value{};                 // heat map: the field that gives the colour
  std::vector<std::string> columns{};  // table: the fields shown, after `series`
  std::vector<std::string> bounds{};   // further fields of the same rows: dashed lines, or paler bars
  std::string sum_over{};  // rows that differ in this field alone are added up, as forward + backward
  std::string last_of{};   // of rows that differ in this field alone, the last that is ok is drawn
};

struct Experiment {
  std::string name;
  std::string title;
  std::string question;  // what it answers, one sentence
  std::string origin;    // the studies (lab/experiments/origins.h) and figures it comes from, in words
  std::vector<Part> parts;
  std::vector<Figure> figures;
  Scaled<std::string> memory_budget{};  // when none is asked for, as in "15GiB"; empty: what the device has
  int repetitions = 0;                  // measured calls; 0: by time
  std::string program{};                // what measures it instead of `tessera lab`; it has no parts then
};

// All of them, in the order in which they run and are shown.
const std::vector<Experiment>& experiments();

// Those that train models or call other libraries: `python -m tessera.lab` measures them.
std::vector<Experiment> python_experiments();

// Those of these names, in the order above, none twice; no names: all. Throws UsageError.
std::vector<const Experiment*> find_experiments(const std::vector<std::string>& names);

// The same of those that `tessera lab` measures itself. Throws UsageError for one that it does not.
std::vector<const Experiment*> find_own_experiments(const std::vector<std::string>& names);

// Whether one of its figures draws a field of the rows.
bool shows(const Experiment& experiment, const std::string& field);

// A sweep of a part. Without --dtype: fp32 on the CPU, fp16 on a GPU, as in the studies; without --algorithm: every one
// that the device has, but for the teaching kernel.
Sweep sweep_of(const Part& part, const BenchText& text, Device device);

// `--list`: a line for each experiment and the studies behind them, or everything about one.
std::string list_text(const std::vector<Experiment>& all);
std::string describe(const Experiment& experiment);

// What experiments.json holds: the experiments, their figures, and what the fields in them mean.
nlohmann::ordered_json to_json(const std::vector<const Experiment*>& chosen);

}  // namespace tessera::lab
