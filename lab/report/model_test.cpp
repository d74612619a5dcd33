#include "lab/report/model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lab/report/figure/marks.h"
#include "lab/report/page/page.h"
#include "lab/report/test_rows.h"
#include "lab/report/words/reading.h"
#include "lab/terminal/errors.h"
#include "lab/terminal/text.h"

namespace tessera::lab::report {
namespace {

using Rows = std::vector<nlohmann::json>;

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
  EXPECT_TRUE(contains(figure.notes.back(), "1 of 7 rows measure a point again within one run"));
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
    row["block_q"] = 32;  // the library's choice there, not what was requested
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
               "unsupported: no kernel serves this</td>"))
      << page.substr(page.find("unsupported: no"), 200);
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

nlohmann::json with_quartiles(nlohmann::json row, double low, double high) {
  row["lower_quartile_ms"] = row["median_ms"].get<double>() * low;
  row["upper_quartile_ms"] = row["median_ms"].get<double>() * high;
  return row;
}

TEST(ReportModel, MarksHaveTheQuartilesOfTheirRow) {
  std::vector<nlohmann::json> rows = test_rows();
  rows[5] = with_quartiles(rows[5], 0.9, 1.05);
  const Mark time = *only_figure(rows).panels[0].series[1].at(2);
  EXPECT_NEAR(time.low, 16 * 0.9, 1e-9);
  EXPECT_NEAR(time.high, 16 * 1.05, 1e-9);
  EXPECT_TRUE(time.noisy());  // 15 % apart
  const DrawnFigure speed = only_figure(rows, test_figure("tflops"));
  const Mark rate = *speed.panels[0].series[1].at(2);
  EXPECT_NEAR(rate.low, *rate.y / 1.05, 1e-9);
  EXPECT_NEAR(rate.high, *rate.y / 0.9, 1e-9);
  const Mark bytes = *only_figure(rows, test_figure("peak_extra_bytes")).panels[0].series[1].at(2);
  EXPECT_EQ(bytes.low, *bytes.y);
  EXPECT_FALSE(bytes.noisy());
  rows[5] = with_quartiles(test_row("flash2", 512, 16), 0.96, 1.05);
  EXPECT_FALSE(only_figure(rows).panels[0].series[1].at(2)->noisy());  // 9 %
}

TEST(ReportModel, SpeedUpsHaveTheQuartilesOfBothRows) {
  std::vector<nlohmann::json> rows = test_rows();
  for (nlohmann::json& row : rows) row = with_quartiles(row, 0.9, 1.1);
  rows[5]["speedup_over_standard"] = 4.0;
  rows[4]["speedup_over_standard"] = 1.0;
  const DrawnFigure figure = only_figure(rows, test_figure("speedup_over_standard"));
  const Mark mark = *figure.panels[0].series[1].at(2);
  EXPECT_NEAR(mark.low, 4 * 0.9 / 1.1, 1e-9);
  EXPECT_NEAR(mark.high, 4 * 1.1 / 0.9, 1e-9);
  EXPECT_EQ(figure.panels[0].series[0].at(2)->high, 1);  // standard against itself
}

TEST(ReportModel, SumsAddTheirQuartiles) {
  std::vector<nlohmann::json> rows = {with_quartiles(test_row("flash2", 128, 2), 0.9, 1.1),
                                      with_quartiles(test_row("flash2", 128, 4), 0.5, 1.5)};
  rows[1]["direction"] = "backward";
  Figure spec = test_figure();
  spec.sum_over = "direction";
  const Mark mark = *only_figure(rows, spec).panels[0].series[0].at(0);
  EXPECT_NEAR(mark.low, 1.8 + 2, 1e-9);
  EXPECT_NEAR(mark.high, 2.2 + 6, 1e-9);
}

// A zero stays a value on a logarithmic axis: page.js gives it a place of its own.
TEST(ReportModel, ZeroIsAValueOnALogarithmicAxis) {
  std::vector<nlohmann::json> rows = test_rows();
  rows[5]["peak_extra_bytes"] = 0;
  const DrawnFigure figure = only_figure(rows, test_figure("peak_extra_bytes"));
  ASSERT_TRUE(figure.panels[0].series[1].at(2)->y);
  EXPECT_EQ(*figure.panels[0].series[1].at(2)->y, 0);
  EXPECT_TRUE(figure.notes.empty());
}

TEST(ReportModel, CurvesThatCoincideAreTwins) {
  std::vector<nlohmann::json> rows = test_rows();
  for (const int seq : {128, 256, 512})
    rows.push_back(test_row("flash3", seq, seq == 512 ? 16.1 : seq / 32 - 2));
  rows[6]["median_ms"] = 2.0, rows[7]["median_ms"] = 8.0;
  const DrawnFigure figure = only_figure(rows);
  EXPECT_EQ(figure.panels[0].series[2].twin, "flash2");
  EXPECT_TRUE(figure.panels[0].series[1].twin.empty());
  EXPECT_TRUE(contains(figure.notes.back(), "flash2 and flash3"));
  rows[7]["median_ms"] = 8.2;
  EXPECT_TRUE(only_figure(rows).panels[0].series[2].twin.empty());
}

TEST(ReportModel, ShortCallsAreDominatedByTheirLaunch) {
  std::vector<nlohmann::json> rows;
  for (const int seq : {64, 128, 256, 512}) {
    rows.push_back(test_row("flash2", seq, seq));
    rows.back()["tflops"] = seq < 256 ? 0.1 * seq / 256 : 0.11 * seq / 256;
  }
  const DrawnFigure figure = only_figure(rows);
  const Series& series = figure.panels[0].series[0];
  EXPECT_TRUE(series.at(0)->overhead);
  EXPECT_TRUE(series.at(1)->overhead);
  EXPECT_FALSE(series.at(2)->overhead);  // half of the best
  EXPECT_FALSE(series.at(3)->overhead);
  for (nlohmann::json& row : rows)
    row["tflops"] = 1.0 / row["q_length"].get<int>();  // slower when long: no launch
  const DrawnFigure falling = only_figure(rows);
  EXPECT_FALSE(falling.panels[0].series[0].at(3)->overhead);
}

TEST(ReportModel, FieldsThatOlderRowsLackAreLeftOutAndSaid) {
  Figure spec = test_figure("energy_per_call");
  EXPECT_THROW(only_figure(test_rows(), spec), UsageError);  // nobody knows it
  spec.y = {"train_seconds"};                                // known, but not in these rows
  const Report report = make_report({test_results(test_rows(), spec)});
  EXPECT_TRUE(report.sections[0].figures.empty());
  ASSERT_EQ(report.sections[0].notes.size(), 1U);
  EXPECT_TRUE(contains(report.sections[0].notes[0], "no row of this run has the field train_seconds"));
  Figure table = test_figure("median_ms");
  table.kind = FigureKind::table;
  table.y = {"q_length", "median_ms", "train_seconds"};
  EXPECT_EQ(only_figure(test_rows(), table).table.headers.back(), "time, ms");
}

TEST(ReportModel, MethodsKeepTheirColour) {
  const DrawnFigure two = only_figure(test_rows());
  std::vector<nlohmann::json> rows = {test_row("linformer", 128, 1), test_row("flash2", 128, 1)};
  EXPECT_EQ(only_figure(rows).panels[0].series[1].color, two.panels[0].series[1].color);
  Figure by_direction = test_figure();
  by_direction.series = {"direction"};
  std::vector<nlohmann::json> both = {test_row("flash2", 128, 1), test_row("flash2", 128, 3)};
  both[1]["direction"] = "backward";
  EXPECT_GE(only_figure(both, by_direction).panels[0].series[0].color, 13);  // no method's
}

// The study's value is drawn in the panel it belongs to, scaled where its machine was another one.
TEST(ReportModel, ValuesOfStudiesAreDrawn) {
  Figure spec = test_figure("speedup_over_standard");
  spec.facets = {"direction"};
  std::vector<nlohmann::json> rows = test_rows();
  for (nlohmann::json& row : rows) row["speedup_over_standard"] = row["algorithm"] == "flash2" ? 2.0 : 1.0;
  auto drawn = [&] {
    for (nlohmann::json& row : rows) row["experiment"] = "sequence";
    ResultsFile file = test_results(rows, spec);
    file.experiments[0].name = "sequence";
    return make_report({file}).sections.at(0).figures.at(0);
  };
  DrawnFigure figure = drawn();
  const Series& study = figure.panels[0].series.back();
  ASSERT_EQ(study.points.size(), 3U);
  EXPECT_EQ(study.name, "flash1 on a T4 (study)");
  EXPECT_EQ(study.points[0].x, 512);
  EXPECT_EQ(study.points[0].y, 0.777);  // a ratio is never scaled
  spec.y = {"tflops"};
  for (nlohmann::json& row : rows) row["tflops"] = 0.01 * row["q_length"].get<double>() / 512;
  figure = drawn();
  const auto scaled = std::find_if(figure.panels[0].series.begin(), figure.panels[0].series.end(),
                                   [](const Series& series) { return !series.points.empty(); });
  ASSERT_NE(scaled, figure.panels[0].series.end());
  EXPECT_TRUE(contains(scaled->name, "(study), × 0.00")) << scaled->name;
  EXPECT_TRUE(contains(figure.notes.back(), "scaled by one factor"));
}

// A fused call stands beside the parts of another; the whole of those parts is not drawn twice.
TEST(ReportModel, PartsStandOnEachOther) {
  Rows rows;
  for (const auto& [stage, ms] : {std::pair{"matmul", 3.0}, std::pair{"softmax", 5.0}}) {
    rows.push_back(test_row("standard", 128, ms));
    rows.back()["stage"] = stage;
  }
  for (const char* whole : {"standard", "flash2"}) {
    rows.push_back(test_row(whole, 128, 4));
    rows.back()["stage"] = nullptr;
  }
  Figure spec = test_figure();
  spec.kind = FigureKind::bars;
  spec.x = "algorithm";
  spec.series = {"stage"};
  spec.stack = true;
  const DrawnFigure figure = only_figure(rows, spec);
  ASSERT_EQ(figure.panels[0].series.size(), 3U);
  EXPECT_EQ(figure.panels[0].series[2].name, "whole call");
  EXPECT_EQ(figure.panels[0].series[2].marks.size(), 1U);
  EXPECT_EQ(reading_of(figure).sentences.front(),
            "standard takes 8.00 ms in 2 parts (softmax the largest, 62 %) and flash2 takes 4.00 ms.");
}

TEST(ReportModel, LevelsOfMemoryAreAPicture) {
  Rows rows;
  for (const auto& [level, bytes, rate] :
       {std::tuple{"L1", 32768.0, 2.0}, std::tuple{"memory", 1073741824.0, 4.0}}) {
    rows.push_back(test_row("flash2", 128, rate));
    rows.back().update({{"preset", level}, {"peak_extra_bytes", bytes}});
  }
  Figure spec = test_figure("peak_extra_bytes");
  spec.kind = FigureKind::hierarchy;
  spec.x = "preset";
  spec.y = {"peak_extra_bytes", "median_ms"};
  spec.series = {};
  const DrawnFigure figure = only_figure(rows, spec);
  EXPECT_EQ(reading_of(figure).sentences.front(),
            "L1 holds 32.0 KiB at 2.00 ms and memory holds 1.00 GiB at 4.00 ms.");
  EXPECT_TRUE(contains(report_page(make_report({test_results(rows, spec)}), {}),
                       "<b>memory</b><span>1.00 GiB</span>"));
}

TEST(ReportPage, LongReasonsAreCutInNotes) {
  std::vector<nlohmann::json> rows = test_rows();
  const std::string trace =
      "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n" + std::string(400, 'x');
  rows[5] = test_missing("flash2", 512, "failed", trace);
  const DrawnFigure figure = only_figure(rows);
  ASSERT_EQ(figure.notes.size(), 1U);
  EXPECT_LT(figure.notes[0].size(), 200U);
  EXPECT_FALSE(contains(figure.notes[0], "\n"));
}

TEST(ReportPage, NoisyRunsSaySoFirst) {
  std::vector<nlohmann::json> rows = test_rows();
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = with_quartiles(rows[i], i < 2 ? 0.8 : 0.99, 1.01);
  const std::string noisy = report_page(make_report({test_results(rows)}), {});
  EXPECT_TRUE(contains(noisy, "This run is noisy.</b> On CPU A, 2 of 6 timed rows (33 %)"));
  rows[1] = with_quartiles(test_rows()[1], 0.99, 1.01);  // 1 of 6: 17 %
  const std::string quiet = report_page(make_report({test_results(rows)}), {});
  EXPECT_FALSE(contains(quiet, "This run is noisy"));
  EXPECT_TRUE(contains(quiet, "quiet enough: 1 of 6 timed rows"));
}

}  // namespace
}  // namespace tessera::lab::report
