// Experiments and text: reading the options of their sweeps, the list for the terminal,
// experiments.json.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "lab/commands/options.h"
#include "lab/experiments/experiment.h"
#include "lab/experiments/origins.h"
#include "lab/experiments/studies.h"
#include "lab/measure/fields.h"
#include "lab/terminal/table.h"
#include "lab/terminal/text.h"

namespace tessera::lab {
namespace {

using Json = nlohmann::ordered_json;
using Values = std::vector<std::string>;

// The options of `tessera bench` that a sweep may use.
const std::map<std::string, Values ProblemOptions::*>& sweep_options() {
  using O = ProblemOptions;
  static const std::map<std::string, Values O::*> kAll = {
      {"--batch", &O::batch},           {"--seq", &O::seq},
      {"--seq-k", &O::seq_k},           {"--heads", &O::heads},
      {"--kv-heads", &O::kv_heads},     {"--dim", &O::dim},
      {"--v-dim", &O::v_dim},           {"--dtype", &O::dtype},
      {"--causal", &O::causal},         {"--window", &O::window},
      {"--block-mask", &O::block_mask}, {"--block-size", &O::block_size},
      {"--dropout", &O::dropout},       {"--softcap", &O::softcap},
      {"--direction", &O::direction},   {"--algorithm", &O::algorithm},
      {"--threads", &O::threads},
  };
  return kAll;
}

ProblemOptions read_options(const std::string& text) {
  ProblemOptions options;
  std::vector<std::string> words;
  for (const std::string& word : split(text, ' ')) {
    if (!word.empty()) words.push_back(word);
  }
  for (std::size_t i = 0; i < words.size(); i += 2) {
    const auto known = sweep_options().find(words[i]);
    if (known == sweep_options().end() || i + 1 == words.size()) {
      throw UsageError(
          fmt::format("sweep '{}': '{}' is not an option of a sweep, or has no value", text, words[i]));
    }
    (options.*known->second).push_back(words[i + 1]);
  }
  return options;
}

std::string figure_text(const Figure& figure) {
  if (figure.kind == FigureKind::table || figure.kind == FigureKind::hierarchy)
    return fmt::format("{}: {}", figure.title, fmt::join(figure.y, ", "));
  std::string text = fmt::format("{}: {} over {}", figure.title, figure.y.front(), figure.x);
  if (figure.kind == FigureKind::heatmap)
    text = fmt::format("{}: {} over {} and {}", figure.title, figure.value, figure.x, figure.y.front());
  if (!figure.facets.empty()) text += fmt::format(", a panel for each {}", fmt::join(figure.facets, " and "));
  if (!figure.sum_over.empty()) text += fmt::format(", the sum over {}", figure.sum_over);
  if (!figure.last_of.empty()) text += fmt::format(", the last {} that is ok", figure.last_of);
  return text;
}

// Those that an experiment has problems for.
std::vector<Scale> scales_of(const Experiment& experiment) {
  const bool of_study = !experiment.problems.empty() && experiment.problems.front().sweeps.quick.empty();
  if (of_study) return {Scale::study};
  return {Scale::quick, Scale::normal, Scale::full};
}

std::string sweep_text(const Problems& problems, const BenchText& sweep) {
  const Method& method = problems.method;
  std::string text = problems.common + (problems.common.empty() ? "" : " ") + sweep;
  if (!method.baseline.empty()) text += fmt::format(" (baseline {})", method.baseline);
  else if (!method.label.empty()) text += fmt::format(" (as {})", method.label);
  if (!method.kernel.empty()) text += fmt::format(" (kernel {})", method.kernel);
  if (!problems.block_k.empty()) {
    text += fmt::format(" (keys per tile {})", fmt::join(problems.block_k, ", "));
  }
  if (problems.only_on) text += *problems.only_on == DeviceType::cpu ? " (CPU only)" : " (GPU only)";
  return text;
}

}  // namespace

const char* name(Scale scale) {
  switch (scale) {
    case Scale::quick: return "quick";
    case Scale::normal: return "default";
    case Scale::full: return "full";
    case Scale::study: break;
  }
  return "study";
}

std::vector<const Experiment*> find_experiments(const std::vector<std::string>& names) {
  std::vector<const Experiment*> all = all_experiments();
  std::vector<std::string> known;
  for (const Experiment* experiment : all) known.push_back(experiment->name);
  const std::size_t own = experiments().size();
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string meant = nearest(name, known);
    known.resize(own);
    throw UsageError(fmt::format("experiment '{}': {}the experiments are {}", name,
                                 meant.empty() ? "" : fmt::format("did you mean {}? ", meant),
                                 fmt::join(known, ", ")));
  }
  if (names.empty()) all.resize(own);
  else
    std::erase_if(all, [&](const Experiment* experiment) {
      return std::find(names.begin(), names.end(), experiment->name) == names.end();
    });
  return all;
}

std::vector<const Experiment*> find_own_experiments(const std::vector<std::string>& names) {
  std::vector<const Experiment*> chosen = find_experiments(names);
  for (const Experiment* experiment : chosen) {
    if (names.empty() || experiment->program.empty()) continue;
    throw UsageError(fmt::format("experiment '{}': tessera lab does not measure it; run {}", experiment->name,
                                 experiment->program));
  }
  std::erase_if(chosen, [](const Experiment* experiment) { return !experiment->program.empty(); });
  return chosen;
}

bool shows(const Experiment& experiment, const std::string& field) {
  return std::any_of(experiment.figures.begin(), experiment.figures.end(), [&](const Figure& figure) {
    const std::vector<std::string> fields = fields_of(figure);
    return std::find(fields.begin(), fields.end(), field) != fields.end();
  });
}

std::string to_string(const Overrides& overrides) {
  std::vector<std::string> words;
  for (const auto& [option, value] : overrides) words.push_back(option + " " + value);
  return fmt::format("{}", fmt::join(words, " "));
}

void check_overrides(const Overrides& overrides, Device device) {
  ProblemOptions options;
  options.device = to_string(device);
  for (const auto& [option, value] : overrides) options.*sweep_options().at(option) = {value};
  (void)parse_algorithms(options);
  options.algorithm.clear();
  if (parse_problems(options).size() == 1) return;
  for (const auto& [option, value] : overrides) {
    if (value.find(',') == std::string::npos && value.find("..") == std::string::npos) continue;
    throw UsageError(
        fmt::format("{} '{}': tessera lab takes one value; tessera bench takes lists", option, value));
  }
}

std::string varied_option(const Experiment& experiment, Scale scale, const Overrides& overrides) {
  for (const auto& [option, value] : overrides) {
    std::vector<Values> seen;  // of each sweep
    for (const Problems& problems : experiment.problems) {
      const Method& method = problems.method;
      const bool chosen = !method.label.empty() || !method.kernel.empty() || !method.baseline.empty();
      if (option == "--algorithm" && chosen) return option;
      for (const BenchText& sweep : problems.sweeps.at(scale))
        seen.push_back(read_options(problems.common + " " + sweep).*sweep_options().at(option));
    }
    for (const Values& values : seen) {
      if (option == "--algorithm" && !values.empty()) return option;
      const std::string text = fmt::format("{}", fmt::join(values, ","));
      if (values != seen.front() || text.find(',') != std::string::npos ||
          text.find("..") != std::string::npos)
        return option;
    }
  }
  return {};
}

SweptProblems sweep_of(const Problems& problems, const BenchText& sweep, Device device,
                       const Overrides& overrides) {
  ProblemOptions options = read_options(problems.common + " " + sweep);
  for (const auto& [option, value] : overrides) options.*sweep_options().at(option) = {value};
  if (options.dtype.empty()) options.dtype = {device.type == DeviceType::cpu ? "fp32" : "fp16"};
  options.device = to_string(device);
  SweptProblems swept{parse_problems(options), parse_algorithms(options)};
  if (!swept.algorithms.empty()) return swept;
  swept.algorithms = algorithms_here(swept.problems);
  std::erase(swept.algorithms, Algorithm::minimal);
  return swept;
}

std::string list_text(const std::vector<Experiment>& all) {
  std::size_t width = 0;
  for (const Experiment& experiment : all) width = std::max(width, experiment.name.size());
  std::string text;
  for (const Experiment& experiment : all) {
    text += fmt::format("{}  {}\n", pad(experiment.name, width, Justify::left),
                        wrap(experiment.question, line_width(), width + 2));
  }
  text += "\n" +
          wrap(
              "tessera lab --study NAME repeats a study figure by figure at its own settings. On a GPU they "
              "are as the study has them; on a CPU " +
                  fmt::format("sequence lengths are divided by {}, and all else stays.", kCpuFactor),
              line_width(), 0) +
          "\n";
  for (const Study& study : studies()) text += describe(study);
  text += "\n" + wrap(kOriginsPreface, line_width(), 0) + "\n";
  for (const Origin& origin : origins()) {
    text += "- " + wrap(fmt::format("{}: {}", origin.name, origin.what), line_width(), 2) + "\n";
  }
  return text;
}

std::string describe(const Experiment& experiment) {
  constexpr std::size_t kLabel = 10;
  auto fact = [](const std::string& label, const std::string& text) {
    return pad(label, kLabel, Justify::left) + wrap(text, line_width(), kLabel) + "\n";
  };
  std::string text = fmt::format("{}: {}\n", experiment.name, experiment.title);
  text += fact("question", experiment.question);
  text += fact("from", experiment.origin);
  if (!experiment.program.empty()) text += fact("run by", experiment.program);
  if (experiment.levels) text += fact("reads", "L1, L2, L3 and memory of the CPU, with all threads");
  for (const Scale scale : scales_of(experiment)) {
    std::string label = name(scale);
    for (const Problems& problems : experiment.problems) {
      for (const BenchText& sweep : problems.sweeps.at(scale)) {
        text += fact(label, sweep_text(problems, sweep));
        label.clear();
      }
    }
    const std::string& budget = experiment.memory_budget.at(scale);
    if (!budget.empty()) text += fact("", "with a memory budget of " + budget);
    if (scale == Scale::study && !budget.empty())
      text += fact("", "on a CPU with " + experiment.memory_budget.normal);
  }
  std::string label = "figures";
  for (const Figure& figure : experiment.figures) {
    text += fact(label, figure_text(figure));
    label.clear();
  }
  return text;
}

nlohmann::ordered_json to_json(const std::vector<const Experiment*>& chosen) {
  Json entries = Json::array();
  Json meanings = Json::object();
  for (const Experiment* experiment : chosen) {
    Json figures = Json::array();
    for (const Figure& figure : experiment->figures) {
      figures.push_back(to_json(figure));
      for (const std::string& field : fields_of(figure)) {
        const Field& known = *find_field(field);
        meanings[field] = {{"label", known.label}, {"unit", known.unit}, {"meaning", known.meaning}};
      }
    }
    entries.push_back({{"name", experiment->name},
                       {"title", experiment->title},
                       {"question", experiment->question},
                       {"origin", experiment->origin},
                       {"figures", figures}});
  }
  return {{"schema", 1}, {"fields", meanings}, {"experiments", entries}};
}

}  // namespace tessera::lab
