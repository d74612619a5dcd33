#include "lab/report/model.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/report/figure/figure.h"
#include "lab/report/figure/marks.h"
#include "lab/report/figure/published.h"
#include "lab/report/figure/rows.h"
#include "lab/terminal/errors.h"

namespace tessera::lab::report {
namespace {

using nlohmann::json;

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

// Rows of older commits, which the newest of the machine did not measure again.
void note_old_commits(Section& section, const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    const bool has_rows = std::any_of(section.rows.begin(), section.rows.end(),
                                      [&](const json& row) { return row["run"] == run.label; });
    if (run.outdated && has_rows)
      section.stale.push_back(fmt::format("{}, {}", run.commit.substr(0, 7), run.first_date.substr(0, 10)));
  }
}

Section make_section(const Experiment& spec, std::vector<json> rows) {
  Section section;
  section.spec = spec;
  section.rows = std::move(rows);
  add_speedup_quartiles(section.rows);
  for (const Figure& figure : spec.figures) {
    const std::string where = fmt::format("experiment '{}', figure '{}'", spec.name, figure.title);
    if (const std::string missing = missing_field(figure, section.rows, where); !missing.empty()) {
      section.notes.push_back(fmt::format(
          "The figure \"{}\" is not drawn: no row of this run has the field {}.", figure.title, missing));
      continue;
    }
    section.figures.push_back(make_figure(figure, section.rows, where));
    add_studies(section.figures.back(), spec.name, section.rows);
  }
  section.findings = study_findings(spec.name, section.rows);
  return section;
}

}  // namespace

Report make_report(const std::vector<ResultsFile>& files, const std::string& prefer) {
  Report report;
  const std::vector<Experiment> experiments = merged(files);
  for (const ResultsFile& file : files) {
    check_described(file, experiments);
    report.sources.push_back(file.path);
  }
  const MergedRows all = merge_rows(files, prefer);
  report.runs = all.runs;
  for (const Experiment& spec : experiments) {
    std::vector<json> own;
    std::copy_if(all.rows.begin(), all.rows.end(), std::back_inserter(own),
                 [&](const json& row) { return row["experiment"] == spec.name; });
    if (own.empty()) {
      report.unmeasured.push_back(spec.title);
      continue;
    }
    Section section = make_section(spec, std::move(own));
    note_old_commits(section, report.runs);
    for (const auto& [experiment, note] : all.notes) {
      if (experiment == spec.name) section.notes.push_back(note);
    }
    report.sections.push_back(std::move(section));
  }
  return report;
}

}  // namespace tessera::lab::report
