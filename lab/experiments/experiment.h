// The experiments of the lab, as data: the question of each, the problems and methods that answer
// it at each scale, and the figures that are drawn from its rows. To add one, add an entry to
// kernels.cpp.
//
// An experiment that another program measures (training, other libraries) is an entry in
// python.cpp: its rows have the same fields, and the same report draws its figures.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/experiments/figure.h"
#include "lab/problem/method.h"
#include "lab/problem/problem.h"

namespace tessera::lab {

// How large the problems are. quick: minutes on two cores; normal: a little more; full: for a GPU.
// The experiments of a study (lab/experiments/studies.h) have its own size instead.
enum class Scale { quick, normal, full, study };

const char* name(Scale scale);

// A value for each scale. A study's is `full`.
template <typename T>
struct Scaled {
  T quick{}, normal{}, full{};
  [[nodiscard]] const T& at(Scale scale) const {
    return scale == Scale::quick ? quick : scale == Scale::normal ? normal : full;
  }
};

// Options of `tessera bench`, as typed there.
using BenchText = std::string;

// Problems that are measured in the same way.
struct Problems {
  BenchText common;                         // shared by all sweeps
  Scaled<std::vector<BenchText>> sweeps{};  // each appended to `common`; none: nothing to measure
  Method method{};                          // label, kernel and baseline; the sweep gives the algorithms
  std::vector<std::int64_t> block_k{};      // forced one by one, as TESSERA_BLOCK_K does
  std::optional<DeviceType> only_on{};      // where the method exists; empty: everywhere
};

struct Experiment {
  std::string name;
  std::string title;
  std::string question;  // what it answers, one sentence
  std::string origin;    // the studies (lab/experiments/origins.h) and figures that it repeats, in words
  std::vector<Problems> problems{};
  std::vector<Figure> figures{};
  Scaled<std::string>
      memory_budget{};    // default of --memory-budget, as in "15GiB"; empty: what the device has
  int repetitions = 0;    // measured calls; 0: by time
  bool levels = false;    // on a CPU: reads the levels of its memory instead of solving problems
  std::string program{};  // the program that measures it instead of `tessera lab`, without `problems`
};

// All of them, in the order in which they run and are shown.
const std::vector<Experiment>& experiments();

// Those that `python -m tessera.lab` measures: they train models or call other libraries.
std::vector<Experiment> python_experiments();

// The experiments of these names, of the lab and of the studies, none twice; no names: all of
// `experiments`. Throws UsageError for an unknown name.
std::vector<const Experiment*> find_experiments(const std::vector<std::string>& names);

// The same, of the experiments that `tessera lab` measures itself. Throws UsageError for one that
// it does not measure.
std::vector<const Experiment*> find_own_experiments(const std::vector<std::string>& names);

// What the report draws of rows of `tessera bench`: figures over the field that varies most.
Experiment bench_experiment(const std::vector<nlohmann::json>& rows);

// Whether one of its figures draws a field of the rows.
bool shows(const Experiment& experiment, const std::string& field);

// Options of `tessera bench`, with their values as typed, that replace a setting of every
// experiment.
using Overrides = std::vector<std::pair<std::string, std::string>>;

// "--causal yes --threads 2".
std::string to_string(const Overrides& overrides);

// Throws UsageError for a wrong value, and for more than one except of --algorithm.
void check_overrides(const Overrides& overrides, Device device);

// The first of the options that the experiment varies itself at this scale, or whose value is part
// of what it measures; empty: none.
std::string varied_option(const Experiment& experiment, Scale scale, const Overrides& overrides);

// What a sweep stands for.
struct SweptProblems {
  std::vector<Problem> problems;
  std::vector<Algorithm> algorithms;
};

// Reads a sweep. Defaults: fp32 on the CPU and fp16 on a GPU, as in the studies; every algorithm of
// the device but the teaching kernel. Throws UsageError.
SweptProblems sweep_of(const Problems& problems, const BenchText& sweep, Device device,
                       const Overrides& overrides = {});

// The texts of `--list`: one line for each experiment and the studies behind them; and everything
// about one.
std::string list_text(const std::vector<Experiment>& all);
std::string describe(const Experiment& experiment);

// The contents of experiments.json: the experiments, their figures, and labels and units of the
// fields in them.
nlohmann::ordered_json to_json(const std::vector<const Experiment*>& chosen);

}  // namespace tessera::lab
