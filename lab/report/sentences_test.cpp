#include "lab/report/sentences.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lab/report/test_rows.h"

namespace tessera::lab::report {
namespace {

std::string words(const std::vector<nlohmann::json>& rows, const Figure& spec = test_figure()) {
  const Report report = make_report({test_results(rows, spec)});
  std::string text;
  for (const Paragraph& paragraph : paragraphs(report.sections.at(0).figures.at(0))) {
    if (!paragraph.context.empty()) text += "[" + paragraph.context + "] ";
    text += fmt::format("{} ", fmt::join(paragraph.sentences, " "));
  }
  return text;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Sentences, CompareWithStandardAtTheLastCommonPoint) {
  const std::string said = words(test_rows());
  EXPECT_TRUE(contains(said, "flash2 is 4.0× as fast as standard at N = 512 (16.0 ms against 64.0 ms)."))
      << said;
  EXPECT_TRUE(contains(said, "With N, time grows quadratically for standard (N^2.00)")) << said;
}

TEST(Sentences, ChangeWithARow) {
  std::vector<nlohmann::json> rows = test_rows();
  rows[5]["median_ms"] = 128;
  const std::string said = words(rows);
  EXPECT_TRUE(contains(said, "flash2 is 2.0× as slow as standard at N = 512 (128 ms against 64.0 ms)."))
      << said;
  EXPECT_TRUE(contains(said, "From N = 512 on, standard is faster than flash2.")) << said;
  EXPECT_FALSE(contains(words(test_rows()), "faster"));
}

TEST(Sentences, SmallDifferencesAreNone) {
  std::vector<nlohmann::json> rows = test_rows();
  rows[5]["median_ms"] = 63.5;
  EXPECT_TRUE(contains(words(rows), "flash2 is as fast as standard at N = 512"));
  for (const double ms : {61.5, 66.5}) {  // 4 %: two digits would say 1.0x as fast, or as slow
    rows[5]["median_ms"] = ms;
    EXPECT_TRUE(contains(words(rows), "flash2 is as fast as standard at N = 512 (6")) << words(rows);
  }
  for (nlohmann::json& row : rows) row["speedup_over_standard"] = 1.04;
  const std::string said = words(rows, test_figure("speedup_over_standard"));
  EXPECT_TRUE(contains(said, "flash2 is as fast as standard at N = 512.")) << said;
}

TEST(Sentences, MemoryGrowsWithASlope) {
  const std::string said = words(test_rows(), test_figure("peak_extra_bytes"));
  EXPECT_TRUE(contains(said, "and linearly for flash2 (N^1.00, 1.00 KiB per token)")) << said;
}

TEST(Sentences, RatesHaveAHighestPoint) {
  const std::string said = words(test_rows(), test_figure("tflops"));
  EXPECT_TRUE(contains(said, "flash2 has 4.0× the rate of standard at N = 512")) << said;
  EXPECT_TRUE(contains(said, "The highest rate is ")) << said;
  EXPECT_TRUE(contains(said, "500 GFLOP/s for flash2 (N = 128)")) << said;
}

TEST(Sentences, OutOfMemoryIsSaid) {
  std::vector<nlohmann::json> rows = test_rows();
  rows[4] = test_missing("standard", 512, "out_of_memory", "too much");
  const std::string said = words(rows);
  EXPECT_TRUE(contains(said, "flash2 is 2.0× as fast as standard at N = 256")) << said;
  EXPECT_TRUE(contains(said, "standard runs out of memory at N = 512.")) << said;
}

TEST(Sentences, MachinesAreCompared) {
  std::vector<nlohmann::json> rows = test_rows();
  for (nlohmann::json row : test_rows()) {
    row["machine"] = "CPU B";
    row["median_ms"] = row["median_ms"].get<double>() / 3;
    rows.push_back(row);
  }
  const std::string said = words(rows);
  EXPECT_TRUE(contains(said, "[CPU A] flash2 is 4.0×")) << said;
  EXPECT_TRUE(contains(said, "Compared with CPU A at N = 512, each is 3.0× as fast.")) << said;
}

// How much faster, and what it took: one sentence, the times first, what is the same last.
TEST(Sentences, TablesWithTimesTellTheirColumnsTogether) {
  Figure spec = test_figure("predicted_traffic_bytes");
  spec.kind = FigureKind::table;
  spec.y = {"predicted_traffic_bytes", "peak_extra_bytes", "median_ms"};
  std::vector<nlohmann::json> rows = test_rows();
  rows[5]["peak_extra_bytes"] = 128 * 512;
  const std::string said = words(rows, spec);
  EXPECT_TRUE(
      contains(said,
               "flash2 is 4.0× as fast as standard at N = 512 (16.0 ms against 64.0 ms), needs 1/8 of "
               "the memory (64.0 KiB against 512 KiB) and has the same predicted traffic (2.00 MiB)."))
      << said;
  rows[5]["predicted_traffic_bytes"] = 1024 * 1024;
  spec.y.emplace_back("measured_traffic_bytes");
  for (nlohmann::json& row : rows) row["measured_traffic_bytes"] = 4096;
  rows[5]["measured_traffic_bytes"] = 1024;
  const std::string both = words(rows, spec);
  EXPECT_TRUE(contains(both, "has 1/2 of the predicted traffic (1.00 MiB against 2.00 MiB)")) << both;
  EXPECT_TRUE(contains(both, "has 1/4 of the measured traffic (1.00 KiB against 4.00 KiB)")) << both;

  rows[4] = test_missing("standard", 512, "out_of_memory", "too much");
  const std::string missing = words(rows, spec);
  EXPECT_TRUE(contains(missing, "flash2 is 2.0× as fast as standard at N = 256")) << missing;
  EXPECT_TRUE(contains(missing, "standard runs out of memory at N = 512.")) << missing;
}

TEST(Sentences, TablesWithoutTimesCompareEveryColumn) {
  Figure spec = test_figure("predicted_traffic_bytes");
  spec.kind = FigureKind::table;
  spec.y = {"predicted_traffic_bytes", "peak_extra_bytes"};
  const std::string said = words(test_rows(), spec);
  EXPECT_TRUE(contains(
      said, "flash2 has the same predicted traffic as standard at N = 512 (2.00 MiB against 2.00 MiB)."))
      << said;
  EXPECT_TRUE(contains(said, "flash2 needs the same memory as standard")) << said;
}

TEST(Sentences, HeatMapsHaveExtremes) {
  Figure spec = test_figure("algorithm");
  spec.kind = FigureKind::heatmap;
  spec.series = {};
  spec.value = "median_ms";
  const std::string said = words(test_rows(), spec);
  EXPECT_TRUE(contains(said, "Time ranges from 2.00 ms (N = 128, flash2) to 64.0 ms (N = 512, standard)."))
      << said;
}

TEST(Sentences, AlgorithmsOnTheAxisAreCompared) {
  Figure spec = test_figure();
  spec.kind = FigureKind::bars;
  spec.x = "algorithm";
  spec.series = {"q_length"};
  const std::string said = words(test_rows(), spec);
  EXPECT_TRUE(contains(said, "N = 512: flash2 is 4.0× as fast as standard (16.0 ms against 64.0 ms)."))
      << said;
}

TEST(Sentences, DistanceToTheLowerBoundIsSaid) {
  Figure spec = test_figure("predicted_traffic_bytes");
  spec.bounds = {"minimum_traffic_bytes"};
  const std::string said = words(test_rows(), spec);  // 8 N^2 bytes over 2048 N
  EXPECT_TRUE(contains(said, "At N = 512 the predicted traffic of standard is 2.0× the lower bound."))
      << said;
}

// Of one series the lines beside it are told as well, each by its name, and only where the series
// was measured.
TEST(Sentences, TheoryPredictionAndMeasurementAreToldApart) {
  Figure spec = test_figure("tile_traffic_bytes");
  spec.bounds = {"minimum_traffic_bytes", "predicted_traffic_bytes", "measured_traffic_bytes"};
  std::vector<nlohmann::json> rows = {test_row("flash2", 128, 1), test_row("flash2", 256, 1),
                                      test_missing("flash2", 512, "unsupported", "fixed tiles")};
  for (nlohmann::json& row : rows) {
    const double least = row["minimum_traffic_bytes"];
    row.update({{"tile_traffic_bytes", 80 * least},
                {"predicted_traffic_bytes", 16 * least},
                {"measured_traffic_bytes", row["q_length"] == 128 ? nlohmann::json(1.5 * least) : nullptr}});
  }
  const std::string said = words(rows, spec);
  EXPECT_TRUE(contains(said,
                       "At N = 256 the theoretical traffic of flash2 is 80.0× the lower bound; predicted "
                       "traffic is 16.0× and measured traffic is 1.5× (at N = 128)."))
      << said;
  rows.push_back(test_row("flash1", 128, 1));  // then a line is of neither of the two
  rows.back()["tile_traffic_bytes"] = 1;
  EXPECT_FALSE(contains(words(rows, spec), "measured traffic is"));
}

TEST(Sentences, BarsOfPredictionAndMeasurementAreComparedEach) {
  Figure spec = test_figure("predicted_traffic_bytes");
  spec.kind = FigureKind::bars;
  spec.bounds = {"measured_traffic_bytes"};
  std::vector<nlohmann::json> rows = {test_row("standard", 512, 1), test_row("flash2", 512, 1)};
  rows[0]["measured_traffic_bytes"] = 8192.0 * 512;
  rows[1]["measured_traffic_bytes"] = 2048.0 * 512;
  const std::string said = words(rows, spec);
  EXPECT_TRUE(contains(said, "[predicted traffic] flash2 has the same memory traffic as standard")) << said;
  EXPECT_TRUE(contains(said, "[measured traffic] flash2 has 1/4 of the memory traffic of standard")) << said;
}

TEST(Sentences, ACausalMaskIsComparedWithNone) {
  Figure spec = test_figure();
  spec.facets = {"mask"};
  std::vector<nlohmann::json> rows = test_rows();
  EXPECT_FALSE(contains(words(rows, spec), "With a causal mask"));
  for (nlohmann::json row : test_rows()) {
    row["mask"] = "causal";
    row["median_ms"] = row["median_ms"].get<double>() * (row["algorithm"] == "flash2" ? 0.5 : 1.25);
    rows.push_back(row);
  }
  rows.back() = test_missing("flash2", 512, "out_of_memory", "too much");
  rows.back()["mask"] = "causal";
  const std::string said = words(rows, spec);
  EXPECT_TRUE(
      contains(said,
               "With a causal mask, standard takes 125 % of its unmasked time (80.0 ms against 64.0 ms "
               "at N = 512), because it computes the whole matrix first; flash2 takes 50 % of its "
               "unmasked time (4.00 ms against 8.00 ms at N = 256)."))
      << said;
}

TEST(Sentences, LessMemoryIsSaidWithBothAmounts) {
  std::vector<nlohmann::json> rows = test_rows();
  rows[5]["peak_extra_bytes"] = 1024;
  const std::string said = words(rows, test_figure("peak_extra_bytes"));
  EXPECT_TRUE(
      contains(said, "At N = 512 flash2 needs 1.00 KiB of memory and standard 512 KiB, 512 times as much."))
      << said;
}

TEST(Sentences, NoisyMeasurementsAreNotCompared) {
  std::vector<nlohmann::json> rows = test_rows();
  for (nlohmann::json& row : rows) {
    row["lower_quartile_ms"] = row["median_ms"].get<double>() * 0.8;
    row["upper_quartile_ms"] = row["median_ms"].get<double>() * 1.2;
  }
  EXPECT_TRUE(contains(words(rows), "flash2 is 4.0× as fast as standard"));
  rows[5]["median_ms"] = 50.0, rows[5]["lower_quartile_ms"] = 40.0, rows[5]["upper_quartile_ms"] = 60.0;
  const std::string said = words(rows);
  EXPECT_TRUE(
      contains(said,
               "The measurements of flash2 and standard at N = 512 are too noisy to tell apart (50.0 ms "
               "± 20 % against 64.0 ms ± 20 %)."))
      << said;
}

TEST(Sentences, ErrorsNameTheirMeasure) {
  std::vector<nlohmann::json> rows = test_rows();
  for (nlohmann::json& row : rows) row["rms_error"] = row["algorithm"] == "flash2" ? 1.4e-7 : 1e-7;
  const std::string said = words(rows, test_figure("rms_error"));
  EXPECT_TRUE(contains(said, "flash2 has 1.4× the RMS error of standard at N = 512")) << said;
}

TEST(Sentences, CountsAreReadAsCounts) {
  Figure spec = test_figure();
  spec.x = "q_heads";
  std::vector<nlohmann::json> rows;
  for (const int heads : {2, 4, 8}) {
    for (const char* algorithm : {"standard", "flash2"}) {
      rows.push_back(test_row(algorithm, 128, algorithm[0] == 's' ? heads : 5));
      rows.back()["q_heads"] = heads;
    }
  }
  const std::string said = words(rows, spec);
  EXPECT_TRUE(contains(said, "flash2 is 1.6× as fast as standard with 8 heads")) << said;
  EXPECT_TRUE(contains(said, "hardly changes for flash2 (lowest: 5.00 ms with 2 heads)")) << said;
}

TEST(Sentences, WhatFitsIsCounted) {
  Figure spec = test_figure("algorithm");
  spec.kind = FigureKind::heatmap;
  spec.series = {};
  spec.value = "status";
  std::vector<nlohmann::json> rows = test_rows();
  rows[4] = test_missing("standard", 512, "out_of_memory", "too much");
  const std::string said = words(rows, spec);
  EXPECT_TRUE(contains(said, "5 of 6 points fit; only N = 512 with standard does not.")) << said;
  rows[2] = test_missing("standard", 256, "out_of_memory", "too much");
  const std::string fewer = words(rows, spec);
  EXPECT_TRUE(contains(fewer, "4 of 6 points fit; the largest N that fits is 512, with flash2.")) << fewer;
  EXPECT_TRUE(contains(words(test_rows(), spec), "All 6 points fit."));
  EXPECT_TRUE(contains(words({rows[2], rows[4]}, spec), "None of the 2 points fits."));
}

TEST(Sentences, NothingMeasuredIsSaid) {
  EXPECT_TRUE(contains(words({test_missing("flash3", 128, "unsupported", "no GPU")}),
                       "Nothing could be measured here"));
}

TEST(Sentences, OnePointIsSingular) {
  EXPECT_TRUE(contains(words({test_row("flash2", 128, 1)}),
                       "Only 1 point was measured, so there is nothing to compare."));
  EXPECT_TRUE(contains(words({test_row("flash2", 128, 1), test_row("flash2", 256, 1)}),
                       "Only 2 points were measured, so there is nothing to compare."));
  EXPECT_TRUE(contains(words({test_row("flash2", 128, 1),
                              test_missing("flash2", 256, "unsupported", "cuda.flash2 has fixed tiles")}),
                       "so there is nothing to compare (cuda.flash2 has fixed tiles)."));
}

// --- figures of training
//   ------------------------------------------------------------------------------

nlohmann::json curve_row(const std::string& algorithm, int step, double loss, double seconds) {
  nlohmann::json row = test_row(algorithm, 512, 1);
  row["preset"] = "tiny";
  row["step"] = step;
  row["loss"] = loss;
  row["train_seconds"] = seconds;
  row["tokens_per_second"] = step / seconds;
  return row;
}

std::vector<nlohmann::json> curve_rows() {
  return {curve_row("standard", 0, 6.0, 0.0),   curve_row("standard", 10, 4.0, 20.0),
          curve_row("standard", 20, 3.0, 40.0), curve_row("flash", 0, 6.0, 0.0),
          curve_row("flash", 10, 4.02, 10.0),   curve_row("flash", 20, 3.004, 20.0)};
}

Figure curve_figure(const std::string& x) {
  Figure spec = test_figure("loss");
  spec.x = x;
  spec.log_x = spec.log_y = false;
  return spec;
}

TEST(TrainingSentences, CurvesEndSomewhereAndStayTogether) {
  const std::string said = words(curve_rows(), curve_figure("step"));
  EXPECT_TRUE(contains(said, "At step 20 the loss is 3.000 with standard and 3.004 with flash.")) << said;
  EXPECT_TRUE(contains(said, "flash stays within 0.020 of standard (widest at step 10).")) << said;
  std::vector<nlohmann::json> rows = curve_rows();
  rows[5]["loss"] = 3.5;
  EXPECT_TRUE(contains(words(rows, curve_figure("step")), "within 0.50 of standard (widest at step 20)"));
}

TEST(TrainingSentences, CurvesThatEndEarlySayWhere) {
  std::vector<nlohmann::json> rows = curve_rows();
  rows.back() = test_missing("flash", 512, "out_of_memory", "none left");
  rows.back().update({{"step", 20}, {"preset", "tiny"}, {"loss", nullptr}});
  const std::string said = words(rows, curve_figure("step"));
  EXPECT_TRUE(contains(said, "3.000 with standard and 4.020 with flash (at step 10).")) << said;
  EXPECT_TRUE(contains(said, "flash runs out of memory.")) << said;
}

TEST(TrainingSentences, TimeToTheSameLoss) {
  const std::string said = words(curve_rows(), curve_figure("train_seconds"));
  EXPECT_TRUE(contains(said, "The loss falls to 3.004 after 40.0 s with standard and 20.0 s with flash."))
      << said;
}

TEST(TrainingSentences, TheEndOfACurveIsDrawnAlone) {
  Figure spec = test_figure("tokens_per_second");
  spec.kind = FigureKind::bars;
  spec.x = "preset";
  spec.last_of = "step";
  spec.log_x = spec.log_y = false;
  const std::string said = words(curve_rows(), spec);
  EXPECT_TRUE(
      contains(said, "flash has 2.0× the speed of standard for tiny (1.00 tokens/s against 0.500 tokens/s)."))
      << said;
}

nlohmann::json saving_row(const std::string& algorithm, int seq, int width, const nlohmann::json& saved) {
  nlohmann::json row = test_row(algorithm, seq, 1);
  row.update({{"embedding", width}, {"depth", 2}, {"time_saved_percent", saved}});
  return row;
}

TEST(TrainingSentences, SavingsHaveAMeanAndEnds) {
  std::vector<nlohmann::json> rows = {
      saving_row("standard", 128, 64, nullptr), saving_row("flash", 128, 64, 10.0),
      saving_row("standard", 256, 64, nullptr), saving_row("flash", 256, 64, 50.0),
      saving_row("flash", 256, 128, 30.0),      test_missing("standard", 256, "out_of_memory", "none left")};
  rows.back().update({{"embedding", 128}, {"depth", 2}, {"time_saved_percent", nullptr}});
  Figure spec = test_figure("time_saved_percent");
  spec.kind = FigureKind::bars;
  spec.log_x = spec.log_y = false;
  const std::string said = words(rows, spec);
  EXPECT_TRUE(contains(
      said,
      "On average over 3 points, training saves 30.0 % of the time compared with standard attention; "
      "at worst it saves 10.0 % of the time (N = 128, width 64), at best it saves 50.0 % of the "
      "time (N = 256, width 64)."))
      << said;
  rows[1]["time_saved_percent"] = -100.0;
  EXPECT_TRUE(
      contains(words(rows, spec),
               "On average over 3 points, training takes 6.7 % longer compared with standard attention; at "
               "worst it takes 100.0 % longer (N = 128, width 64)"));
  rows[1]["time_saved_percent"] = -0.04;
  const std::string nothing = words(rows, spec);
  EXPECT_TRUE(contains(nothing, "at worst it saves 0.0 % of the time (N = 128, width 64)")) << nothing;
  const std::string one = words({saving_row("flash", 128, 64, 10.0)}, spec);
  EXPECT_TRUE(contains(
      one, "On average over 1 point, training saves 10.0 % of the time compared with standard attention."))
      << one;
}

TEST(TrainingSentences, TheFrontierIsTheLongestThatFits) {
  std::vector<nlohmann::json> rows = {saving_row("standard", 128, 64, nullptr),
                                      test_missing("standard", 256, "out_of_memory", "none left"),
                                      saving_row("flash", 128, 64, 10.0), saving_row("flash", 256, 64, 50.0)};
  rows[1].update({{"embedding", 64}, {"depth", 2}});
  Figure spec = test_figure("q_length");
  spec.kind = FigureKind::bars;
  spec.x = "embedding";
  spec.last_of = "q_length";
  spec.log_x = spec.log_y = false;
  const std::string said = words(rows, spec);
  EXPECT_TRUE(
      contains(said,
               "flash fits sequences 2.0 times as long as standard at width 64 (256 tokens against 128 "
               "tokens)."))
      << said;
  rows[0] = test_missing("standard", 128, "out_of_memory", "none left");
  rows[0].update({{"embedding", 64}, {"depth", 2}});
  EXPECT_TRUE(contains(words(rows, spec), "standard runs out of memory at width 64"));
}

}  // namespace
}  // namespace tessera::lab::report
