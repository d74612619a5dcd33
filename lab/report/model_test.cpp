#include "lab/report/model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lab/report/page.h"
#include "lab/report/test_rows.h"
#include "lab/terminal/errors.h"
#include "lab/terminal/text.h"

namespace tessera::lab::report {
namespace {

DrawnFigure only_figure(const std::vector<nlohmann::json>& rows, const Figure& spec = test_figure()) {
  return make_report({test_results(rows, spec)}).sections.at(0).figures.at(0);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ReportModel, OneSeriesPerAlgorithm) {
  const DrawnFigure figure = only_figure(test_rows());
  ASSERT_EQ(figure.panels.size(), 1U);
  ASSERT_EQ(figure.panels[0].series.size(), 2U);
  EXPECT_EQ(figure.panels[0].series[1].name, "flash2");
  EXPECT_EQ(figure.x.values, (std::vector<double>{128, 256, 512}));
  EXPECT_EQ(figure.panels[0].series[1].at(2)->y, 16);
  EXPECT_EQ(figure.table.rows.size(), 6U);
  EXPECT_TRUE(contains(figure.caption, "forward, fp32, full, batch 1"));
}

TEST(ReportModel, RowsOfOnePointAreToldApart) {
  std::vector<nlohmann::json> rows = test_rows();
  for (nlohmann::json row : test_rows()) {
    row["direction"] = "backward";
    rows.push_back(row);
  }
  const DrawnFigure figure = only_figure(rows);
  ASSERT_EQ(figure.panels[0].series.size(), 4U);
  EXPECT_EQ(figure.panels[0].series[3].name, "flash2 · backward");
  Figure spec = test_figure();
  spec.facets = {"direction"};
  EXPECT_EQ(only_figure(rows, spec).panels.size(), 2U);
}

TEST(ReportModel, RowMeasuredAgainReplacesTheFirst) {
  std::vector<nlohmann::json> rows = test_rows();
  rows.push_back(test_row("flash2", 512, 5));
  const DrawnFigure figure = only_figure(rows);
  EXPECT_EQ(figure.panels[0].series[1].at(2)->y, 5);
  EXPECT_TRUE(contains(figure.notes.back(), "1 of 7 rows measure a point again"));
}

TEST(ReportModel, SeveralMachinesAreSeriesOfTheirOwn) {
  std::vector<nlohmann::json> other;
  for (nlohmann::json row : test_rows()) {
    row["machine"] = "CPU B, 8 CPUs";
    other.push_back(row);
  }
  const Report report = make_report({test_results(test_rows()), test_results(other)});
  ASSERT_EQ(report.runs.size(), 2U);
  const DrawnFigure& figure = report.sections[0].figures[0];
  ASSERT_EQ(figure.panels[0].series.size(), 4U);
  EXPECT_EQ(figure.panels[0].series[3].name, "flash2 · CPU B");
  EXPECT_EQ(figure.panels[0].series[1].color, figure.panels[0].series[3].color);
  EXPECT_NE(figure.panels[0].series[1].dash, figure.panels[0].series[3].dash);
}

TEST(ReportModel, CommitsOfOneMachineAreToldApart) {
  std::vector<nlohmann::json> rows = test_rows();
  rows.push_back(test_row("flash2", 512, 5));
  rows.back()["commit"] = "abcdefabcdef";
  const Report report = make_report({test_results(rows)});
  ASSERT_EQ(report.runs.size(), 2U);
  EXPECT_EQ(report.runs[1].label, "CPU A @ abcdefa");
}

// Two runs that were also asked for different things: the names must not put it down to the
// machine.
TEST(ReportModel, RunsThatWereAskedForDifferentThingsSaySo) {
  std::vector<nlohmann::json> other;
  for (nlohmann::json row : test_rows()) {
    row["machine"] = "CPU B, 8 CPUs";
    row["batch"] = 4;
    row["block_q"] = 32;  // the library's choice there, not what was asked for
    other.push_back(row);
  }
  const Report report = make_report({test_results(test_rows()), test_results(other)});
  const auto& series = report.sections[0].figures[0].panels[0].series;
  ASSERT_EQ(series.size(), 4U);
  EXPECT_EQ(series[1].name, "flash2 · CPU A, batch 1");
  EXPECT_EQ(series[3].name, "flash2 · CPU B, batch 4");
}

TEST(ReportModel, MissingPointsStayAndSayWhy) {
  std::vector<nlohmann::json> rows = test_rows();
  rows.push_back(test_missing("standard", 1024, "out_of_memory", "needs 8 GiB; the budget is 4 GiB"));
  rows.push_back(test_row("flash2", 1024, 64));
  const DrawnFigure figure = only_figure(rows);
  const Mark* mark = figure.panels[0].series[0].at(3);
  ASSERT_NE(mark, nullptr);
  EXPECT_FALSE(mark->y);
  EXPECT_EQ(mark->status, "out_of_memory");
  ASSERT_EQ(figure.notes.size(), 1U);
  EXPECT_EQ(figure.notes[0], "standard: out of memory at N = 1024 (needs 8 GiB)");
  EXPECT_EQ(figure.table.headers.back(), "status");
}

TEST(ReportModel, UnitsFollowTheValues) {
  Figure spec = test_figure("peak_extra_bytes");
  spec.unit_y = "GiB";  // 512 KiB would be nothing
  EXPECT_EQ(only_figure(test_rows(), spec).y.unit, "MiB");
  spec.y = {"tflops"};
  spec.unit_y = "TFLOP/s";
  EXPECT_EQ(only_figure(test_rows(), spec).y.unit, "TFLOP/s");
}

TEST(ReportModel, HeatMapHasTwoAxes) {
  Figure spec = test_figure("algorithm");
  spec.kind = FigureKind::heatmap;
  spec.series = {};
  spec.value = "median_ms";
  const DrawnFigure figure = only_figure(test_rows(), spec);
  EXPECT_EQ(figure.rows.labels, (std::vector<std::string>{"standard", "flash2"}));
  ASSERT_EQ(figure.panels[0].series.size(), 2U);
  EXPECT_EQ(figure.panels[0].series[0].marks.size(), 3U);
}

TEST(ReportModel, TheoryRunsThroughTheSeriesItExplains) {
  Figure spec = test_figure("predicted_traffic_bytes");
  spec.theory = true;
  const DrawnFigure figure = only_figure(test_rows(), spec);
  const std::vector<Series>& series = figure.panels[0].series;
  ASSERT_EQ(series.size(), 5U);
  EXPECT_TRUE(contains(series[2].name, "Θ(Nd + N²)"));
  EXPECT_TRUE(contains(series[3].name, "Θ(N²d²/M)"));
  EXPECT_TRUE(contains(series[4].name, "lower bound"));
  // The rows are exactly quadratic at a fixed tile, and so is the bound of flash.
  for (std::size_t x = 0; x < 3; ++x) EXPECT_NEAR(*series[3].at(x)->y / *series[1].at(x)->y, 1, 1e-9);
  EXPECT_NEAR(*series[4].at(0)->y / figure.y.scale, 2048.0 * 128, 1e-6);
  EXPECT_EQ(only_figure(test_rows(), test_figure()).panels[0].series.size(), 2U);
}

TEST(ReportModel, BoundsAreLinesOfTheRowsOwnFields) {
  Figure spec = test_figure("predicted_traffic_bytes");
  spec.bounds = {"minimum_traffic_bytes"};
  const DrawnFigure figure = only_figure(test_rows(), spec);
  ASSERT_EQ(figure.panels[0].series.size(), 3U);
  EXPECT_TRUE(figure.panels[0].series[2].theory);
  EXPECT_NEAR(*figure.panels[0].series[2].at(2)->y / figure.y.scale, 2048.0 * 512, 1e-6);
}

// In the colour of the algorithm, but not the same bar; a row without the further field has none.
TEST(ReportModel, BoundsOfBarsAreBarsBeside) {
  Figure spec = test_figure("predicted_traffic_bytes");
  spec.kind = FigureKind::bars;
  spec.bounds = {"measured_traffic_bytes"};
  std::vector<nlohmann::json> rows = test_rows();
  for (nlohmann::json& row : rows) row["measured_traffic_bytes"] = nullptr;
  rows.push_back(test_missing("flash3", 512, "unsupported", "no GPU"));
  EXPECT_EQ(only_figure(rows, spec).panels[0].series.size(), 3U);
  EXPECT_EQ(only_figure(rows, spec).panels[0].series[1].name, "flash2");

  rows[5]["measured_traffic_bytes"] = 1024.0 * 1024;
  const DrawnFigure figure = only_figure(rows, spec);
  const std::vector<Series>& series = figure.panels[0].series;
  ASSERT_EQ(series.size(), 4U);
  EXPECT_EQ(series[1].name, "flash2 · predicted traffic");
  EXPECT_EQ(series[2].name, "flash2 · measured traffic");
  EXPECT_EQ(series[3].name, "flash3 · predicted traffic");
  EXPECT_EQ(series[1].color, series[2].color);
  EXPECT_EQ(series[1].dash, 0);
  EXPECT_NE(series[2].dash, 0);
  ASSERT_EQ(series[2].marks.size(), 1U);
  EXPECT_EQ(*series[2].at(2)->y / figure.y.scale, 1024.0 * 1024);
  EXPECT_EQ(figure.y.label, "memory traffic");
  EXPECT_TRUE(contains(figure.table.headers[3], "memory traffic (measured)"));
}

// What was not run has no share of its own, and is no series of its own.
TEST(ReportModel, RowsThatWereNotRunKeepTheShareOfTheirPoint) {
  std::vector<nlohmann::json> rows;
  for (const int seq : {128, 256}) {
    for (const char* direction : {"forward", "backward"}) {
      rows.push_back(test_row("flash2", seq, 1));
      rows.back().update({{"direction", direction}, {"kept_share", 1}});
    }
    rows.push_back(test_row("flash3", seq, 1));
    rows.back()["kept_share"] = 1;
    rows.push_back(test_missing("flash3", seq, "unsupported", "no kernel"));
    rows.back().update({{"direction", "backward"}, {"kept_share", nullptr}, {"block_k", nullptr}});
  }
  Figure spec = test_figure();
  spec.sum_over = "direction";
  const DrawnFigure figure = only_figure(rows, spec);
  ASSERT_EQ(figure.panels[0].series.size(), 2U);
  EXPECT_EQ(figure.panels[0].series[0].name, "flash2");
  EXPECT_EQ(figure.panels[0].series[1].name, "flash3");
  EXPECT_EQ(figure.panels[0].series[1].at(0)->status, "unsupported");
}

TEST(ReportModel, DirectionsAreAddedUp) {
  std::vector<nlohmann::json> rows = test_rows();
  for (nlohmann::json row : test_rows()) {
    if (row["q_length"] == 512 && row["algorithm"] == "standard")
      row = test_missing("standard", 512, "out_of_memory", "full");
    row["direction"] = "backward";
    row["block_k"] = 64;
    rows.push_back(row);
  }
  rows.pop_back();  // backward of flash2 at 512 is still to come
  Figure spec = test_figure();
  spec.sum_over = "direction";
  const DrawnFigure figure = only_figure(rows, spec);
  ASSERT_EQ(figure.panels[0].series.size(), 2U);
  EXPECT_EQ(figure.panels[0].series[0].at(1)->y, 32);
  EXPECT_EQ(figure.panels[0].series[0].at(2)->status, "out_of_memory");
  EXPECT_EQ(figure.panels[0].series[1].at(2)->status, "incomplete");
  EXPECT_TRUE(contains(figure.caption, "forward + backward"));
}

TEST(ReportModel, TablesMayNameColumnsAlone) {
  Figure spec = test_figure();
  spec.kind = FigureKind::table;
  spec.x.clear();
  spec.y = {"q_length", "median_ms", "tflops"};
  const DrawnFigure figure = only_figure(test_rows(), spec);
  EXPECT_EQ(figure.table.headers,
            (std::vector<std::string>{"sequence length N", "algorithm", "time, ms", "rate, GFLOP/s"}));
  EXPECT_EQ(figure.columns.size(), 1U);
  std::vector<nlohmann::json> rows = test_rows();
  for (nlohmann::json& row : rows) {
    row["measured_traffic_bytes"] = nullptr;
    row["measured_traffic_note"] = "no counters here";
  }
  spec.y.emplace_back("measured_traffic_bytes");
  EXPECT_EQ(only_figure(rows, spec).notes.back(), "memory traffic (measured): no counters here");
}

TEST(ReportModel, RefusesFieldsAndExperimentsItDoesNotKnow) {
  EXPECT_THROW(only_figure(test_rows(), test_figure("speed")), UsageError);
  std::vector<nlohmann::json> rows = test_rows();
  rows[0]["experiment"] = "other";
  EXPECT_THROW(make_report({test_results(rows)}), UsageError);
}

TEST(ReportPage, LongReasonsAreInTheTitleOfTheirCell) {
  std::vector<nlohmann::json> rows = test_rows();
  rows[5] =
      test_missing("flash2", 512, "unsupported", "no kernel serves this; a: lacks fp8; b: lacks \"it\"");
  const std::string page = report_page(make_report({test_results(rows)}), {"results.jsonl"});
  EXPECT_TRUE(
      contains(page,
               "<td title=\"unsupported: no kernel serves this; a: lacks fp8; b: lacks &quot;it&quot;\">"
               "unsupported: no kernel serves this</td>"));
}

TEST(ReportPage, HoldsEverythingAndEscapesIt) {
  std::vector<nlohmann::json> rows = test_rows();
  for (nlohmann::json& row : rows) row["machine"] = "</script><b>CPU";
  const std::string page = report_page(make_report({test_results(rows)}), {"results.jsonl"});
  EXPECT_TRUE(contains(page, "Time &amp; more"));
  EXPECT_FALSE(contains(page, "</script><b>"));
  EXPECT_TRUE(contains(page, "&lt;/script&gt;&lt;b&gt;CPU"));
  EXPECT_TRUE(contains(page, "href=\"results.jsonl\""));
  EXPECT_TRUE(contains(page, "Chart.js v"));
  EXPECT_FALSE(contains(page, "{{"));
  EXPECT_LT(page.size(), 2'000'000U);
}

}  // namespace
}  // namespace tessera::lab::report
