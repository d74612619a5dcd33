#include "lab/report/runs.h"

#include <gtest/gtest.h>

#include "lab/report/model.h"
#include "lab/report/page/page.h"
#include "lab/report/test_rows.h"
#include "lab/terminal/errors.h"

namespace tessera::lab::report {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The same points of one machine and commit, measured in two runs.
ResultsFile run(const std::string& path, const std::string& date, double factor, int points = 6) {
  std::vector<nlohmann::json> rows = test_rows();
  rows.resize(static_cast<std::size_t>(points));
  for (nlohmann::json& row : rows) {
    row["date"] = date;
    row["median_ms"] = row["median_ms"].get<double>() * factor;
  }
  ResultsFile file = test_results(rows);
  file.path = path;
  return file;
}

double time_at(const Report& report, std::size_t series, std::size_t x) {
  return *report.sections.at(0).figures.at(0).panels.at(0).series.at(series).at(x)->y;
}

TEST(ReportRuns, OfTwoRunsTheLaterIsDrawnAndBothAreNamed) {
  const ResultsFile first = run("a/results.jsonl", "2026-01-01", 1),
                    second = run("b/results.jsonl", "2026-02-02", 3);
  for (const auto& files : {std::vector{first, second}, std::vector{second, first}}) {
    const Report report = make_report(files);
    EXPECT_EQ(report.runs.size(), 1U);
    EXPECT_EQ(time_at(report, 1, 2), 48);
    ASSERT_EQ(report.sections[0].notes.size(), 1U);
    const std::string& note = report.sections[0].notes[0];
    EXPECT_TRUE(contains(note, "Drawn is the later, b/results.jsonl (6 rows, until 2026-02-02)")) << note;
    EXPECT_TRUE(contains(note, "a/results.jsonl (6 rows, until 2026-01-01)")) << note;
    EXPECT_TRUE(contains(report_page(report, {}), "Drawn is the later"));
  }
}

TEST(ReportRuns, PreferChooses) {
  const std::vector<ResultsFile> files = {run("a/results.jsonl", "2026-01-01", 1),
                                          run("b/results.jsonl", "2026-02-02", 3)};
  for (const char* prefer : {"a/results.jsonl", "a", "a/"})
    EXPECT_EQ(time_at(make_report(files, prefer), 1, 2), 16);
  EXPECT_EQ(time_at(make_report(files, "b"), 1, 2), 48);
  EXPECT_THROW(make_report(files, "c"), UsageError);
}

// No curve has points of both: also those that only the earlier run has are left out.
TEST(ReportRuns, CurvesAreNeverMixed) {
  const Report report =
      make_report({run("a/results.jsonl", "2026-01-01", 1), run("b/results.jsonl", "2026-02-02", 3, 4)});
  const DrawnFigure& figure = report.sections[0].figures[0];
  EXPECT_EQ(figure.x.values, (std::vector<double>{128, 256}));
  EXPECT_EQ(time_at(report, 1, 1), 24);
}

TEST(ReportRuns, RunsOfDifferentPointsAreDrawnTogetherAndNamed) {
  ResultsFile other = run("b/results.jsonl", "2026-02-02", 1);
  for (nlohmann::json& row : other.rows) row["q_length"] = row["q_length"].get<int>() * 8;
  const Report report = make_report({run("a/results.jsonl", "2026-01-01", 1), other});
  EXPECT_EQ(report.sections[0].figures[0].x.values.size(), 6U);
  ASSERT_EQ(report.sections[0].notes.size(), 1U);
  EXPECT_TRUE(contains(report.sections[0].notes[0], "whose other points are drawn too"));
}

TEST(ReportRuns, OlderCommitsOfAMachineAreStale) {
  ResultsFile newer = run("b/results.jsonl", "2026-02-02", 1);
  for (nlohmann::json& row : newer.rows) row["commit"] = "fedcba9876";
  const Report report = make_report({run("a/results.jsonl", "2026-01-01", 1), newer});
  ASSERT_EQ(report.runs.size(), 2U);
  EXPECT_TRUE(report.runs[0].outdated);
  EXPECT_FALSE(report.runs[1].outdated);
  EXPECT_EQ(report.sections[0].stale, (std::vector<std::string>{"0123456, 2026-01-01"}));
  EXPECT_TRUE(contains(report_page(report, {}), "stale: 0123456, 2026-01-01"));
  for (nlohmann::json& row : newer.rows) row["machine"] = "CPU B";
  EXPECT_FALSE(make_report({run("a/results.jsonl", "2026-01-01", 1), newer}).runs[0].outdated);
}

TEST(ReportRuns, MoreThanAFifthOfNoisyRowsIsNoisy) {
  report::Run some;
  EXPECT_FALSE(some.is_noisy());
  some.timed = 10, some.noisy = 2;
  EXPECT_FALSE(some.is_noisy());
  some.noisy = 3;
  EXPECT_TRUE(some.is_noisy());
}

}  // namespace
}  // namespace tessera::lab::report
