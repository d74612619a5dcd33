// Experiments as text: the options of their sweeps read, the list for the terminal, the file for the report.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "lab/experiments/experiments.h"
#include "lab/experiments/origins.h"
#include "lab/measure/contests.h"
#include "lab/measure/rows.h"
#include "lab/terminal/table.h"

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
          fmt::format("sweep '{}': '{}' is no option of a sweep, or has no value", text, words[i]));
    }
    (options.*known->second).push_back(words[i + 1]);
  }
  return options;
}

struct FieldText {
  const char* label;
  const char* unit;
};

// What the fields that figures use are called on an axis.
const std::map<std::string, FieldText>& field_texts() {
  static const std::map<std::string, FieldText> kAll = {
      {"algorithm", {"algorithm", ""}},
      {"batch", {"batch", ""}},
      {"bound_traffic_bytes", {"N²d²/M", "B"}},
      {"depth", {"layers", ""}},
      {"direction", {"direction", ""}},
      {"dtype", {"type", ""}},
      {"embedding", {"width (heads × head dimension)", ""}},
      {"flops", {"floating-point operations", "FLOP"}},
      {"kept_share", {"share of the matrix that is kept", ""}},
      {"loss", {"loss on held-out text", "nats per token"}},
      {"mask", {"mask", ""}},
      {"max_error", {"largest error", ""}},
      {"measured_traffic_bytes", {"memory traffic, measured", "B"}},
      {"median_ms", {"time", "ms"}},
      {"memory_saved_percent", {"peak memory saved", "%"}},
      {"memory_used_bytes", {"memory held", "B"}},
      {"minimum_traffic_bytes", {"every tensor once", "B"}},
      {"peak_bytes", {"peak memory", "B"}},
      {"peak_extra_bytes", {"memory besides the tensors", "B"}},
      {"predicted_traffic_bytes", {"memory traffic, predicted", "B"}},
      {"preset", {"model", ""}},
      {"q_heads", {"heads", ""}},
      {"q_length", {"sequence length", "tokens"}},
      {"qk_dim", {"head dimension", ""}},
      {"requested_block_k", {"keys per tile", ""}},
      {"rms_error", {"error, root mean square", ""}},
      {"rms_reference", {"exact values, root mean square", ""}},
      {"sampled_rows", {"rows compared", ""}},
      {"speedup_over_standard", {"speed-up over standard", "×"}},
      {"standard_traffic_bytes", {"standard attention", "B"}},
      {"status", {"result", ""}},
      {"step", {"step", ""}},
      {"tflops", {"speed", "TFLOP/s"}},
      {"tile_traffic_bytes", {"FlashAttention-1 with this tile alone in fast memory", "B"}},
      {"time_saved_percent", {"time saved", "%"}},
      {"tokens_per_second", {"speed", "tokens/s"}},
      {"train_seconds", {"time of training", "s"}},
  };
  return kAll;
}

std::vector<std::string> fields_of(const Figure& figure) {
  std::vector<std::string> all = {figure.x,     figure.y,        figure.series,
                                  figure.value, figure.sum_over, figure.last_of};
  for (const auto* list : {&figure.facets, &figure.columns, &figure.bounds}) {
    all.insert(all.end(), list->begin(), list->end());
  }
  all.erase(std::remove(all.begin(), all.end(), ""), all.end());
  return all;
}

Json figure_json(const Figure& figure) {
  auto field = [](const std::string& name) { return name.empty() ? Json(nullptr) : Json(name); };
  return {{"kind", name(figure.kind)},
          {"title", figure.title},
          {"x", field(figure.x)},
          {"y", field(figure.y)},
          {"series", field(figure.series)},
          {"facets", figure.facets},
          {"log_x", figure.log_x},
          {"log_y", figure.log_y},
          {"value", field(figure.value)},
          {"columns", figure.columns},
          {"bounds", figure.bounds},
          {"sum_over", field(figure.sum_over)},
          {"last_of", field(figure.last_of)}};
}

std::string figure_text(const Figure& figure) {
  if (figure.kind == FigureKind::table)
    return fmt::format("{}: {}", figure.title, fmt::join(figure.columns, ", "));
  std::string text = fmt::format("{}: {} over {}", figure.title, figure.y, figure.x);
  if (figure.kind == FigureKind::heatmap)
    text = fmt::format("{}: {} over {} and {}", figure.title, figure.value, figure.x, figure.y);
  if (!figure.facets.empty()) text += fmt::format(", a panel for each {}", fmt::join(figure.facets, " and "));
  if (!figure.sum_over.empty()) text += fmt::format(", the sum over {}", figure.sum_over);
  if (!figure.last_of.empty()) text += fmt::format(", the last {} that is ok", figure.last_of);
  return text;
}

std::string part_text(const Part& part, const BenchText& sweep) {
  std::string text = part.common + (part.common.empty() ? "" : " ") + sweep;
  if (!part.baseline.empty()) text += fmt::format(" (baseline {})", part.baseline);
  else if (!part.label.empty()) text += fmt::format(" (as {})", part.label);
  if (!part.kernel.empty()) text += fmt::format(" (kernel {})", part.kernel);
  if (!part.block_k.empty()) text += fmt::format(" (keys per tile {})", fmt::join(part.block_k, ", "));
  if (part.only_on) text += *part.only_on == DeviceType::cpu ? " (CPU only)" : " (GPU only)";
  return text;
}

}  // namespace

const char* name(Scale scale) {
  switch (scale) {
    case Scale::quick: return "quick";
    case Scale::normal: return "default";
    case Scale::full: break;
  }
  return "full";
}

const char* name(FigureKind kind) {
  switch (kind) {
    case FigureKind::lines: return "lines";
    case FigureKind::bars: return "bars";
    case FigureKind::heatmap: return "heatmap";
    case FigureKind::table: break;
  }
  return "table";
}

std::vector<const Experiment*> find_experiments(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const Experiment& experiment : experiments()) known.push_back(experiment.name);
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string meant = nearest(name, known);
    throw UsageError(fmt::format("experiment '{}': {}the experiments are {}", name,
                                 meant.empty() ? "" : fmt::format("did you mean {}? ", meant),
                                 fmt::join(known, ", ")));
  }
  std::vector<const Experiment*> chosen;
  for (const Experiment& experiment : experiments()) {
    const bool named = std::find(names.begin(), names.end(), experiment.name) != names.end();
    if (names.empty() || named) chosen.push_back(&experiment);
  }
  return chosen;
}

std::vector<const Experiment*> find_own_experiments(const std::vector<std::string>& names) {
  std::vector<const Experiment*> chosen = find_experiments(names);
  for (const Experiment* experiment : chosen) {
    if (names.empty() || experiment->program.empty()) continue;
    throw UsageError(fmt::format("experiment '{}': is measured by another program: {}", experiment->name,
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

Sweep sweep_of(const Part& part, const BenchText& text, Device device) {
  ProblemOptions options = read_options(part.common + " " + text);
  if (options.dtype.empty()) options.dtype = {device.type == DeviceType::cpu ? "fp32" : "fp16"};
  options.device = to_string(device);
  Sweep sweep = parse_sweep(options);
  if (!sweep.algorithms.empty()) return sweep;
  sweep.algorithms = algorithms_here(sweep);
  std::erase(sweep.algorithms, Algorithm::minimal);
  return sweep;
}

std::string list_text(const std::vector<Experiment>& all) {
  std::size_t width = 0;
  for (const Experiment& experiment : all) width = std::max(width, experiment.name.size());
  std::string text;
  for (const Experiment& experiment : all) {
    text += fmt::format("{}  {}\n", pad(experiment.name, width, Justify::left),
                        wrap(experiment.question, kWidestLine, width + 2));
  }
  text += "\n" + wrap(kStudiesPreface, kWidestLine, 0) + "\n";
  for (const Study& study : studies()) {
    text += "- " + wrap(fmt::format("{}: {}", study.name, study.what), kWidestLine, 2) + "\n";
  }
  return text;
}

std::string describe(const Experiment& experiment) {
  constexpr std::size_t kLabel = 10;
  auto fact = [](const std::string& label, const std::string& text) {
    return pad(label, kLabel, Justify::left) + wrap(text, kWidestLine, kLabel) + "\n";
  };
  std::string text = fmt::format("{}: {}\n", experiment.name, experiment.title);
  text += fact("question", experiment.question);
  text += fact("from", experiment.origin);
  if (!experiment.program.empty()) text += fact("run by", experiment.program);
  for (const Scale scale : {Scale::quick, Scale::normal, Scale::full}) {
    std::string label = name(scale);
    for (const Part& part : experiment.parts) {
      for (const BenchText& sweep : part.sweeps.at(scale)) {
        text += fact(label, part_text(part, sweep));
        label.clear();
      }
    }
    const std::string& budget = experiment.memory_budget.at(scale);
    if (!budget.empty()) text += fact("", "with a memory budget of " + budget);
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
  Json fields = Json::object();
  for (const Experiment* experiment : chosen) {
    Json figures = Json::array();
    for (const Figure& figure : experiment->figures) {
      figures.push_back(figure_json(figure));
      for (const std::string& field : fields_of(figure)) {
        const FieldText& text = field_texts().at(field);
        fields[field] = {{"label", text.label}, {"unit", text.unit}};
      }
    }
    entries.push_back({{"name", experiment->name},
                       {"title", experiment->title},
                       {"question", experiment->question},
                       {"origin", experiment->origin},
                       {"figures", figures}});
  }
  return {{"schema", 1}, {"fields", fields}, {"experiments", entries}};
}

}  // namespace tessera::lab
