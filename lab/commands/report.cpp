// `tessera report`: draws results into one HTML page.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lab/commands/commands.h"
#include "lab/measure/compare/speedups.h"
#include "lab/measure/read_results.h"
#include "lab/report/difference.h"
#include "lab/report/model.h"
#include "lab/report/page/page.h"
#include "lab/report/report.h"
#include "lab/terminal/table.h"
#include "lab/terminal/terminal.h"
#include "lab/terminal/text.h"
#include "lab/terminal/units.h"

namespace tessera::lab {
namespace {

namespace fs = std::filesystem;
using report::Report, report::Section;

struct ReportOptions {
  std::vector<std::string> results;
  std::string out = "report.html";
  std::string prefer;
  bool compare = false;
};

// Links from the page to the rows and to the CSV file beside them.
std::vector<std::string> raw_links(const Report& made, const fs::path& page) {
  const fs::path folder = fs::absolute(page).parent_path();
  std::vector<std::string> links;
  for (const std::string& source : made.sources) {
    const fs::path rows = fs::absolute(source);
    fs::path csv = rows;
    csv.replace_extension(".csv");
    links.push_back(fs::proximate(rows, folder).generic_string());
    if (fs::exists(csv)) links.push_back(fs::proximate(csv, folder).generic_string());
  }
  return links;
}

std::vector<ResultsFile> read_all(const std::vector<std::string>& paths) {
  std::vector<ResultsFile> files;
  for (const std::string& path : paths) files.push_back(read_results(path));
  compare_with_pytorch(files);
  return files;
}

void write_page(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) throw UsageError(fmt::format("--out '{}': cannot be written: {}", path, std::strerror(errno)));
  file << text;
  file.close();
  if (!file) throw OutputError(fmt::format("cannot write --out '{}': {}", path, std::strerror(errno)));
}

// The changes of a run against another one, for the terminal: every point that changed.
std::string difference_text(const report::Difference& difference) {
  std::vector<std::vector<std::string>> rows;
  for (const report::ChangedRow& row : difference.rows) {
    if (row.change == report::Change::same || row.change == report::Change::unclear) continue;
    rows.push_back({row.experiment, row.method, row.point, row.old_time, row.new_time,
                    report::ratio_text(row), report::change_text(row.change)});
  }
  std::string text =
      wrap(fmt::format("{} against {}, {}: {}", difference.new_path, difference.old_path,
                       counted(difference.rows.size(), "common point"), report::summary_text(difference)),
           line_width(), 0) +
      "\n";
  if (rows.empty()) return text;
  return text + "\n" +
         render({{"experiment", 0, Justify::left},
                 {"method", 0, Justify::left},
                 {"point", 0, Justify::left},
                 {"old"},
                 {"new"},
                 {"new / old (interval)"},
                 {"verdict", 0, Justify::left}},
                rows);
}

void draw(const std::vector<ResultsFile>& files, const ReportOptions& options,
          const std::optional<report::Difference>& difference) {
  const Report made = report::make_report(files, options.prefer);
  const std::string page = report::report_page(made, raw_links(made, options.out), difference);
  write_page(options.out, page);
  std::size_t figures = 0;
  for (const Section& section : made.sections) figures += section.figures.size();
  print(fmt::format("{}: {}, {}, {}\n", options.out, counted(made.sections.size(), "experiment"),
                    counted(figures, "figure"), bytes_text(static_cast<double>(page.size()))));
}

int run_report(const ReportOptions& options) {
  if (options.results.empty()) {
    throw UsageError("RESULTS: give at least one results.jsonl or a folder that holds one");
  }
  if (options.compare && options.results.size() != 2) {
    throw UsageError(
        fmt::format("--compare: needs two results, the old and the new, and {} given",
                    options.results.size() == 1 ? "1 is" : fmt::format("{} are", options.results.size())));
  }
  const std::vector<ResultsFile> files = read_all(options.results);
  std::optional<report::Difference> difference;
  if (files.size() == 2) difference = report::difference_of(files[0], files[1]);
  if (options.compare) print(difference_text(*difference));
  draw(files, options, difference);
  if (!options.compare) return 0;
  return difference->count(report::Change::slower) + difference->count(report::Change::broken) > 0 ? 1 : 0;
}

}  // namespace

void write_report(const std::vector<std::string>& results, const std::string& out) {
  ReportOptions options;
  options.results = results;
  options.out = out;
  draw(read_all(results), options, std::nullopt);
}

void add_report(CLI::App& application, Action& action) {
  CLI::App* command =
      application.add_subcommand("report", "One HTML page of the results of one or more machines");
  command->allow_extras();
  auto options = std::make_shared<ReportOptions>();
  command
      ->add_option("RESULTS", options->results,
                   "Folders of tessera lab, or files of rows: results.jsonl, or of tessera bench --json")
      ->option_text("...");
  command->add_option("--out", options->out, "The page [report.html]")->option_text("FILE")->group("Output");
  command
      ->add_option("--prefer", options->prefer,
                   "Of two results that measured the same points, the one to draw [the later]")
      ->option_text("RESULTS");
  command->add_flag("--compare", options->compare,
                    "Compare two results, old and new; exit status 1 when a point became slower");
  command->footer(
      "Figures come from the experiments.json beside each results.jsonl, or else from this version. Results "
      "of\n"
      "several machines or commits are drawn into the same figures. Of two runs of one machine and commit "
      "that\n"
      "measured the same points, the later is drawn, and the page names both.\n\n"
      "A comparison calls a point faster or slower when the quartiles of the two runs do not overlap and "
      "the\n"
      "medians differ by more than 5 %. The page shows it whenever two results are given.\n\n"
      "Examples:\n"
      "  tessera report results/\n"
      "  tessera report cpu/results.jsonl gpu/results.jsonl --out both.html\n"
      "  tessera report --compare old/ new/ --out change.html");
  command->callback([&action, options] { action = [options] { return run_report(*options); }; });
}

}  // namespace tessera::lab
