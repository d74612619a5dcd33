// `tessera report`: draws results into one HTML page.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "lab/commands/commands.h"
#include "lab/measure/compare/speedups.h"
#include "lab/measure/read_results.h"
#include "lab/report/model.h"
#include "lab/report/page.h"
#include "lab/report/report.h"
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

void write_page(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) throw UsageError(fmt::format("--out '{}': cannot be written: {}", path, std::strerror(errno)));
  file << text;
  file.close();
  if (!file) throw OutputError(fmt::format("cannot write --out '{}': {}", path, std::strerror(errno)));
}

int run_report(const ReportOptions& options) {
  if (options.results.empty()) {
    throw UsageError("RESULTS: give at least one results.jsonl or a folder that holds one");
  }
  write_report(options.results, options.out);
  return 0;
}

}  // namespace

void write_report(const std::vector<std::string>& results, const std::string& out) {
  std::vector<ResultsFile> files;
  for (const std::string& path : results) files.push_back(read_results(path));
  compare_with_pytorch(files);
  const Report made = report::make_report(files);
  const std::string page = report::report_page(made, raw_links(made, out));
  write_page(out, page);
  std::size_t figures = 0;
  for (const Section& section : made.sections) figures += section.figures.size();
  print(fmt::format("{}: {}, {}, {}\n", out, counted(made.sections.size(), "experiment"),
                    counted(figures, "figure"), bytes_text(static_cast<double>(page.size()))));
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
  command->footer(
      "Figures come from the experiments.json beside each results.jsonl, or else from this version. Results "
      "of\n"
      "several machines or commits are drawn into the same figures.\n\n"
      "Examples:\n"
      "  tessera report results/\n"
      "  tessera report cpu/results.jsonl gpu/results.jsonl --out both.html");
  command->callback([&action, options] { action = [options] { return run_report(*options); }; });
}

}  // namespace tessera::lab
