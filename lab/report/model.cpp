#include "lab/report/model.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/report/figure.h"
#include "lab/terminal/errors.h"
#include "lab/terminal/text.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

std::string text_of(const json& row, const char* field) {
  return row.contains(field) && row[field].is_string() ? row[field].get<std::string>() : std::string();
}

// "NVIDIA L4" or "AMD EPYC 9B45": what was computed on, without the rest of the machine.
std::string short_label(const Run& run) {
  return run.gpu.empty() ? split(run.machine, ',').front() : run.gpu;
}

std::size_t run_of(std::vector<Run>& runs, const json& row) {
  const Run seen{.label = {},
                 .machine = text_of(row, "machine"),
                 .device = text_of(row, "device"),
                 .gpu = text_of(row, "gpu"),
                 .commit = text_of(row, "commit"),
                 .version = text_of(row, "version"),
                 .first_date = text_of(row, "date"),
                 .last_date = text_of(row, "date")};
  auto same = [&](const Run& run) {
    return run.machine == seen.machine && run.device == seen.device && run.gpu == seen.gpu &&
           run.commit == seen.commit;
  };
  auto run = std::find_if(runs.begin(), runs.end(), same);
  if (run == runs.end()) run = runs.insert(run, seen);
  run->first_date = std::min(run->first_date, seen.first_date);
  run->last_date = std::max(run->last_date, seen.last_date);
  ++run->rows;
  if (row["status"] == "ok") ++run->ok;
  if (row["status"] == "out_of_memory") ++run->out_of_memory;
  return static_cast<std::size_t>(run - runs.begin());
}

// Labels that tell runs apart: the device; where that is the same the commit, the machine, or a
// number.
void label_runs(std::vector<Run>& runs) {
  auto unique = [&](const std::string& label) {
    return std::count_if(runs.begin(), runs.end(), [&](const Run& run) { return run.label == label; }) == 1;
  };
  for (Run& run : runs) run.label = short_label(run);
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::string label = runs[i].label;
    if (!unique(label)) {
      const bool commits_differ = std::any_of(runs.begin(), runs.end(), [&](const Run& other) {
        return short_label(other) == label && other.commit != runs[i].commit;
      });
      label = commits_differ ? fmt::format("{} @ {}", label, runs[i].commit.substr(0, 7))
                             : fmt::format("{} ({})", label, runs[i].device);
    }
    if (std::find(labels.begin(), labels.end(), label) != labels.end()) label += fmt::format(" #{}", i + 1);
    labels.push_back(label);
  }
  for (std::size_t i = 0; i < runs.size(); ++i) runs[i].label = labels[i];
}

// The experiments of all files, each once, in the order of the first file that has it.
std::vector<Experiment> merged(const std::vector<ResultsFile>& files) {
  std::vector<Experiment> all;
  for (const ResultsFile& file : files) {
    for (const Experiment& spec : file.experiments) {
      const bool known = std::any_of(all.begin(), all.end(),
                                     [&](const Experiment& other) { return other.name == spec.name; });
      if (!known) all.push_back(spec);
    }
  }
  return all;
}

void check_described(const ResultsFile& file, const std::vector<Experiment>& experiments) {
  for (const json& row : file.rows) {
    const std::string name = row["experiment"];
    const bool known = std::any_of(experiments.begin(), experiments.end(),
                                   [&](const Experiment& spec) { return spec.name == name; });
    if (!known) {
      throw UsageError(
          fmt::format("RESULTS '{}': experiment '{}' is not described in the experiments.json beside it",
                      file.path, name));
    }
  }
}

}  // namespace

Report make_report(const std::vector<ResultsFile>& files) {
  Report report;
  const std::vector<Experiment> experiments = merged(files);
  std::vector<json> rows;
  std::vector<std::size_t> run_index;
  for (const ResultsFile& file : files) {
    check_described(file, experiments);
    report.sources.push_back(file.path);
    for (const json& row : file.rows) {
      run_index.push_back(run_of(report.runs, row));
      rows.push_back(row);
    }
  }
  label_runs(report.runs);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i]["run"] = report.runs[run_index[i]].label;

  for (const Experiment& spec : experiments) {
    std::vector<json> own;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(own),
                 [&](const json& row) { return row["experiment"] == spec.name; });
    if (own.empty()) {
      report.unmeasured.push_back(spec.title);
      continue;
    }
    Section section{spec, own.size(), {}};
    for (const Figure& figure : spec.figures) {
      section.figures.push_back(
          make_figure(figure, own, fmt::format("experiment '{}', figure '{}'", spec.name, figure.title)));
    }
    report.sections.push_back(std::move(section));
  }
  return report;
}

}  // namespace tessera::lab::report
