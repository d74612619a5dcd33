#include "lab/report/words/reading.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lab/report/test_rows.h"

namespace tessera::lab::report {
namespace {

using Rows = std::vector<nlohmann::json>;

DrawnFigure figure_of(const Rows& rows, const Figure& spec = test_figure()) {
  return make_report({test_results(rows, spec)}).sections.at(0).figures.at(0);
}

std::string words(const Rows& rows, const Figure& spec = test_figure()) {
  const Reading reading = reading_of(figure_of(rows, spec));
  EXPECT_GE(reading.sentences.size(), 1U);
  EXPECT_LE(reading.sentences.size(), 2U);
  return fmt::format("{}", fmt::join(reading.sentences, " "));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

nlohmann::json with_spread(nlohmann::json row, double spread) {
  row["lower_quartile_ms"] = row["median_ms"].get<double>() * (1 - spread);
  row["upper_quartile_ms"] = row["median_ms"].get<double>() * (1 + spread);
  return row;
}

TEST(Reading, TheLastCommonPointIsCompared) {
  EXPECT_EQ(words(test_rows()),
            "At N = 512, flash2 takes 16.0 ms and standard 64.0 ms, so flash2 is 4.0 times as fast. "
            "Time follows N^2.00 ± 0.01 for standard.");
  const Reading reading = reading_of(figure_of(test_rows()));
  EXPECT_EQ(reading.baseline, "standard");
  ASSERT_EQ(reading.comparisons.size(), 1U);
  const Comparison& one = reading.comparisons[0];
  EXPECT_EQ(one.method, "flash2");
  EXPECT_EQ(one.place, "N = 512");
  EXPECT_EQ(one.value, "16.0 ms");
  EXPECT_EQ(one.baseline, "64.0 ms");
  EXPECT_EQ(one.ratio, "0.250");
  EXPECT_EQ(one.verdict, "4.0 times as fast");
}

TEST(Reading, ChangesWithARow) {
  Rows rows = test_rows();
  rows[5]["median_ms"] = 128;
  EXPECT_EQ(words(rows),
            "At N = 512, flash2 takes 128 ms and standard 64.0 ms, so flash2 is 2.0 times as slow. "
            "flash2 is faster up to N = 256 and standard from N = 512 on.");
}

TEST(Reading, SmallDifferencesAreNone) {
  Rows rows = test_rows();
  for (const double ms : {61.5, 63.5, 66.5}) {  // 4 %: two digits would say 1.0 times
    rows[5]["median_ms"] = ms;
    EXPECT_TRUE(contains(words(rows), "and standard 64.0 ms, so flash2 is as fast.")) << words(rows);
  }
  for (nlohmann::json& row : rows) row["speedup_over_standard"] = 1.04;
  EXPECT_TRUE(contains(words(rows, test_figure("speedup_over_standard")),
                       "At N = 512, flash2 is as fast as standard."));
}

// Quartiles that overlap are no difference, whatever the medians say.
TEST(Reading, OverlapIsNoDifference) {
  Rows rows;
  for (const nlohmann::json& row : test_rows()) rows.push_back(with_spread(row, 0.2));
  EXPECT_TRUE(contains(words(rows), "so flash2 is 4.0 times as fast")) << words(rows);
  rows[5] = with_spread(test_row("flash2", 512, 50), 0.2);
  EXPECT_TRUE(
      contains(words(rows),
               "At N = 512, no difference is found between flash2 (50.0 ms ± 20 %) and standard (64.0 ms ± "
               "20 %), because their quartiles overlap."))
      << words(rows);
  EXPECT_EQ(reading_of(figure_of(rows)).comparisons[0].verdict, "no difference found");
  EXPECT_FALSE(contains(words(rows), "is faster up to"));
}

TEST(Reading, NoCrossingIsMadeOfNoise) {
  Rows rows = test_rows();
  for (nlohmann::json& row : rows) row = with_spread(row, 0.02);
  rows[1] = with_spread(test_row("flash2", 128, 4.1), 0.1);  // ahead later, and here perhaps not
  EXPECT_FALSE(contains(words(rows), "up to"));
  rows[1] = with_spread(test_row("flash2", 128, 6), 0.02);
  EXPECT_TRUE(contains(words(rows), "standard is faster up to N = 128 and flash2 from N = 256 on."))
      << words(rows);
}

TEST(Reading, SeveralPanelsShareASentence) {
  Figure spec = test_figure();
  spec.facets = {"direction"};
  Rows rows = test_rows();
  for (nlohmann::json row : test_rows()) {
    row["direction"] = "backward";
    row["median_ms"] = row["median_ms"].get<double>() * (row["algorithm"] == "flash2" ? 2 : 1);
    rows.push_back(row);
  }
  EXPECT_TRUE(contains(
      words(rows, spec),
      "At N = 512, flash2 is 4.0 times as fast as standard (forward) and 2.0 times as fast (backward)."))
      << words(rows, spec);
  EXPECT_EQ(reading_of(figure_of(rows, spec)).comparisons.size(), 2U);
  EXPECT_EQ(reading_of(figure_of(rows, spec)).comparisons[1].context, "backward");
}

TEST(Reading, ManyPanelsAreCounted) {
  Figure spec = test_figure();
  spec.facets = {"batch"};
  Rows rows;
  for (const int batch : {1, 2, 4, 8}) {
    for (nlohmann::json row : test_rows()) {
      row["batch"] = batch;
      if (batch == 8 && row["algorithm"] == "flash2") row["median_ms"] = row["median_ms"].get<double>() * 8;
      rows.push_back(row);
    }
  }
  EXPECT_TRUE(contains(
      words(rows, spec),
      "flash2 is faster than standard in 3 of 4 combinations (by a factor of 4.0), slower in 1 (by a "
      "factor of 2.0)."))
      << words(rows, spec);
}

TEST(Reading, MemoryIsSaidWithBothAmounts) {
  Rows rows = test_rows();
  rows[5]["peak_extra_bytes"] = 1024;
  const Figure spec = test_figure("peak_extra_bytes");
  EXPECT_TRUE(
      contains(words(rows, spec),
               "At N = 512, flash2 needs 1.00 KiB of memory and standard 512 KiB, 512 times as much."))
      << words(rows, spec);
  rows[5]["peak_extra_bytes"] = 0;
  EXPECT_TRUE(contains(words(rows, spec), "At N = 512, flash2 needs 0 B of memory and standard 512 KiB."))
      << words(rows, spec);
  EXPECT_EQ(reading_of(figure_of(rows, spec)).comparisons[0].verdict, "none at all");
  EXPECT_TRUE(contains(words(test_rows(), spec),
                       "Memory follows N^1.00 ± 0.01 for standard and N^1.00 ± 0.01 for flash2."))
      << words(test_rows(), spec);
}

TEST(Reading, GrowthIsSaidWithItsUncertaintyOrNotAtAll) {
  Axis axis;
  axis.quantity.symbol = "N";
  axis.values = {128, 256, 512, 1024};
  Series series;
  for (std::size_t x = 0; x < 4; ++x) {
    const double y = axis.values[x] * axis.values[x];
    series.marks.push_back({.x = x, .y = y, .low = y, .high = y});
  }
  EXPECT_EQ(growth_text(axis, series), "N^2.00 ± 0.01");
  series.marks[3].y =
      *series.marks[3].y * 1.3;  // no straight line any more: t = 4.3 times the error of the slope
  const auto growth = growth_of(axis, series);
  ASSERT_TRUE(growth);
  EXPECT_NEAR(growth->exponent, 2.1136, 1e-3);
  EXPECT_NEAR(growth->uncertainty, 0.28, 0.03);
  series.marks[0].y = *series.marks[0].y * 2;
  EXPECT_EQ(growth_text(axis, series), "");  // not known well enough
  series.marks[0].overhead = true;
  EXPECT_EQ(growth_of(axis, series)->exponent > 2, true);
  series.marks[1].overhead = true;
  EXPECT_FALSE(growth_of(axis, series));  // two points
}

TEST(Reading, NoisyPointsWidenTheUncertainty) {
  Axis axis;
  axis.values = {1, 2, 4, 8};
  Series exact, noisy;
  for (std::size_t x = 0; x < 4; ++x) {
    exact.marks.push_back({.x = x, .y = axis.values[x], .low = axis.values[x], .high = axis.values[x]});
    noisy.marks.push_back(
        {.x = x, .y = axis.values[x], .low = 0.8 * axis.values[x], .high = 1.25 * axis.values[x]});
  }
  EXPECT_LT(growth_of(axis, exact)->uncertainty, 1e-6);
  // 2 sqrt(sum (x - mean)^2 log(1.25)^2) / sum (x - mean)^2, in natural logarithms
  EXPECT_NEAR(growth_of(axis, noisy)->uncertainty, 2 * std::log(1.25) / (std::log(2) * std::sqrt(5.0)), 1e-9);
}

TEST(Reading, RatesHaveAHighestPoint) {
  const std::string said = words(test_rows(), test_figure("tflops"));
  EXPECT_TRUE(contains(
      said,
      "At N = 512, flash2 reaches 62.5 GFLOP/s and standard 15.6 GFLOP/s, so flash2 is 4.0 times as fast."))
      << said;
  EXPECT_TRUE(contains(said, "The highest rate is 500 GFLOP/s (flash2, N = 128).")) << said;
}

TEST(Reading, OutOfMemoryIsSaid) {
  Rows rows = test_rows();
  rows[4] = test_missing("standard", 512, "out_of_memory", "too much");
  EXPECT_EQ(words(rows),
            "At N = 256, flash2 takes 8.00 ms and standard 16.0 ms, so flash2 is 2.0 times as fast. "
            "standard runs out of memory at N = 512.");
  rows[2] = test_missing("standard", 256, "out_of_memory", "too much");
  EXPECT_TRUE(contains(words(rows), "standard runs out of memory at N = 256 and beyond."));
}

TEST(Reading, AllOutOfMemoryIsSaid) {
  EXPECT_EQ(words({test_missing("standard", 128, "out_of_memory", "full"),
                   test_missing("flash2", 128, "out_of_memory", "full")}),
            "standard runs out of memory at N = 128 and flash2 runs out of memory at N = 128.");
}

TEST(Reading, MachinesAreContexts) {
  Rows rows = test_rows();
  for (nlohmann::json row : test_rows()) {
    row["machine"] = "CPU B";
    row["median_ms"] = row["median_ms"].get<double>() / 3;
    rows.push_back(row);
  }
  EXPECT_TRUE(
      contains(words(rows), "flash2 is 4.0 times as fast as standard (CPU A) and 4.0 times as fast (CPU B)."))
      << words(rows);
}

TEST(Reading, TablesCompareTimesFirst) {
  Figure spec = test_figure("predicted_traffic_bytes");
  spec.kind = FigureKind::table;
  spec.y = {"predicted_traffic_bytes", "peak_extra_bytes", "median_ms"};
  Rows rows = test_rows();
  rows[5]["predicted_traffic_bytes"] = 1024 * 1024;
  EXPECT_EQ(words(rows, spec),
            "At N = 512, flash2 takes 16.0 ms and standard 64.0 ms, so flash2 is 4.0 times as fast. "
            "At N = 512, the predicted traffic of flash2 is 1.00 MiB and that of standard 2.00 MiB, 2.0 "
            "times as large.");
  const Reading reading = reading_of(figure_of(rows, spec));
  ASSERT_EQ(reading.comparisons.size(), 3U);
  EXPECT_EQ(reading.comparisons[2].context, "memory");
  EXPECT_EQ(reading.comparisons[2].verdict, "the same within 5 %");
}

TEST(Reading, HeatMapsHaveExtremes) {
  Figure spec = test_figure("algorithm");
  spec.kind = FigureKind::heatmap;
  spec.series = {};
  spec.value = "median_ms";
  EXPECT_EQ(words(test_rows(), spec),
            "Time ranges from 2.00 ms (N = 128, flash2) to 64.0 ms (N = 512, standard).");
  EXPECT_EQ(words({test_row("flash2", 128, 1)}, spec),
            "The only time measured is 1.00 ms (N = 128, flash2).");
}

TEST(Reading, WhatFitsIsCounted) {
  Figure spec = test_figure("algorithm");
  spec.kind = FigureKind::heatmap;
  spec.series = {};
  spec.value = "status";
  Rows rows = test_rows();
  EXPECT_EQ(words(rows, spec), "All 6 points fit.");
  rows[4] = test_missing("standard", 512, "out_of_memory", "too much");
  EXPECT_EQ(words(rows, spec), "5 of 6 points fit, all but N = 512 with standard.");
  rows[2] = test_missing("standard", 256, "out_of_memory", "too much");
  EXPECT_EQ(words(rows, spec), "4 of 6 points fit.");
  EXPECT_EQ(words({rows[2], rows[4]}, spec), "None of 2 points fits.");
  EXPECT_EQ(words({test_missing("flash3", 128, "unsupported", "no GPU")}, spec),
            "0 of 1 point could be tried.");
}

TEST(Reading, AlgorithmsOnTheAxisAreCompared) {
  Figure spec = test_figure();
  spec.kind = FigureKind::bars;
  spec.x = "algorithm";
  spec.series = {"q_length"};
  EXPECT_TRUE(contains(
      words(test_rows(), spec),
      "flash2 is 2.0 times as fast as standard (N = 128, 2.00 ms against 4.00 ms) and flash2 is 2.0 times as "
      "fast as standard (N = 256, 8.00 ms against 16.0 ms)."))
      << words(test_rows(), spec);
}

TEST(Reading, DistanceToTheLowerBoundIsSaid) {
  Figure spec = test_figure("predicted_traffic_bytes");
  spec.bounds = {"minimum_traffic_bytes"};
  EXPECT_TRUE(contains(words(test_rows(), spec),
                       "At N = 512, the predicted traffic of standard is 2.0 times the lower bound."))
      << words(test_rows(), spec);
}

TEST(Reading, ErrorsNameTheirMeasure) {
  Rows rows = test_rows();
  for (nlohmann::json& row : rows) row["rms_error"] = row["algorithm"] == "flash2" ? 1.4e-7 : 1e-7;
  EXPECT_EQ(words(rows, test_figure("rms_error")),
            "At N = 512, the RMS error of flash2 is 1.4e-07 and that of standard 1.0e-07, so that of flash2 "
            "is 1.4 times as large.");
}

TEST(Reading, CountsAreReadAsCounts) {
  Figure spec = test_figure();
  spec.x = "q_heads";
  Rows rows;
  for (const int heads : {2, 4, 8}) {
    for (const char* algorithm : {"standard", "flash2"}) {
      rows.push_back(test_row(algorithm, 128, algorithm[0] == 's' ? heads : 5));
      rows.back()["q_heads"] = heads;
    }
  }
  EXPECT_TRUE(contains(words(rows, spec), "With 8 heads, flash2 takes 5.00 ms and standard 8.00 ms"))
      << words(rows, spec);
}

TEST(Reading, NothingMeasuredIsSaid) {
  EXPECT_EQ(words({test_missing("flash3", 128, "unsupported", "no GPU")}),
            "Nothing could be measured here; the notes say why.");
}

TEST(Reading, OnePointIsSingular) {
  EXPECT_EQ(words({test_row("flash2", 128, 1)}),
            "Only 1 point was measured, so there is nothing to compare.");
  EXPECT_EQ(words({test_row("flash2", 128, 1),
                   test_missing("flash2", 256, "unsupported", "cuda.flash2 has fixed tiles")}),
            "Only 1 point was measured, so there is nothing to compare (cuda.flash2 has fixed tiles).");
}

// --- figures of training ------------------------------------------------------------------------

nlohmann::json curve_row(const std::string& algorithm, int step, double loss, double seconds) {
  nlohmann::json row = test_row(algorithm, 512, 1);
  row["preset"] = "tiny";
  row["step"] = step;
  row["loss"] = loss;
  row["train_seconds"] = seconds;
  row["tokens_per_second"] = step / seconds;
  return row;
}

Rows curve_rows() {
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

TEST(TrainingReading, CurvesEndSomewhereAndStayTogether) {
  EXPECT_EQ(words(curve_rows(), curve_figure("step")),
            "At step 20 the loss is 3.000 with standard and 3.004 with flash. "
            "Compared with standard, the loss differs by at most 0.020 for flash (at step 10).");
}

TEST(TrainingReading, CurvesThatEndEarlySayWhere) {
  Rows rows = curve_rows();
  rows.back() = test_missing("flash", 512, "out_of_memory", "none left");
  rows.back().update({{"step", 20}, {"preset", "tiny"}, {"loss", nullptr}});
  const std::string said = words(rows, curve_figure("step"));
  EXPECT_TRUE(contains(said, "3.000 with standard and 4.020 with flash (at step 10).")) << said;
  EXPECT_TRUE(contains(said, "flash runs out of memory at step 20.")) << said;
}

TEST(TrainingReading, TimeToTheSameLoss) {
  EXPECT_EQ(words(curve_rows(), curve_figure("train_seconds")),
            "The loss falls to 3.004 after 40.0 s with standard and 20.0 s with flash.");
}

TEST(TrainingReading, TheEndOfACurveIsDrawnAlone) {
  Figure spec = test_figure("tokens_per_second");
  spec.kind = FigureKind::bars;
  spec.x = "preset";
  spec.last_of = "step";
  spec.log_x = spec.log_y = false;
  EXPECT_EQ(
      words(curve_rows(), spec),
      "For tiny, flash reaches 1.00 tokens/s and standard 0.500 tokens/s, so flash is 2.0 times as fast.");
}

nlohmann::json saving_row(const std::string& algorithm, int seq, int width, const nlohmann::json& saved) {
  nlohmann::json row = test_row(algorithm, seq, 1);
  row.update({{"embedding", width}, {"depth", 2}, {"time_saved_percent", saved}});
  return row;
}

TEST(TrainingReading, SavingsHaveAMeanAndEnds) {
  Rows rows = {
      saving_row("standard", 128, 64, nullptr), saving_row("flash", 128, 64, 10.0),
      saving_row("standard", 256, 64, nullptr), saving_row("flash", 256, 64, 50.0),
      saving_row("flash", 256, 128, 30.0),      test_missing("standard", 256, "out_of_memory", "none left")};
  rows.back().update({{"embedding", 128}, {"depth", 2}, {"time_saved_percent", nullptr}});
  Figure spec = test_figure("time_saved_percent");
  spec.kind = FigureKind::bars;
  spec.log_x = spec.log_y = false;
  EXPECT_EQ(words(rows, spec),
            "On average over 3 points, training with flash attention saves 30.0 % of the time; at best it "
            "saves 50.0 % of "
            "the time (N = 256, width 64), at worst it saves 10.0 % of the time (N = 128, width 64).");
  rows[1]["time_saved_percent"] = -100.0;
  EXPECT_TRUE(contains(words(rows, spec), "training with flash attention takes 6.7 % longer; at best"))
      << words(rows, spec);
  EXPECT_TRUE(contains(words(rows, spec), "at worst it takes 100.0 % longer (N = 128, width 64)."));
  rows[1]["time_saved_percent"] = -0.04;
  EXPECT_TRUE(contains(words(rows, spec), "at worst it saves 0.0 % of the time"));
  EXPECT_EQ(words({saving_row("flash", 128, 64, 10.0)}, spec),
            "On average over 1 point, training with flash attention saves 10.0 % of the time.");
}

TEST(TrainingReading, TheFrontierIsTheLongestThatFits) {
  Rows rows = {saving_row("standard", 128, 64, nullptr),
               test_missing("standard", 256, "out_of_memory", "none left"),
               saving_row("flash", 128, 64, 10.0), saving_row("flash", 256, 64, 50.0)};
  rows[1].update({{"embedding", 64}, {"depth", 2}});
  Figure spec = test_figure("q_length");
  spec.kind = FigureKind::bars;
  spec.x = "embedding";
  spec.last_of = "q_length";
  spec.log_x = spec.log_y = false;
  EXPECT_TRUE(contains(words(rows, spec),
                       "At width 64, flash fits sequences of 256 tokens and standard of 128 tokens."))
      << words(rows, spec);
  spec.facets = {"depth"};
  for (const int depth : {3, 4, 5}) {
    for (nlohmann::json row : Rows(rows.begin(), rows.begin() + 4)) {
      row["depth"] = depth;
      rows.push_back(row);
    }
  }
  EXPECT_TRUE(
      contains(words(rows, spec),
               "flash fits longer sequences than standard in 4 of 4 combinations (by a factor of 2.0)"))
      << words(rows, spec);
}

}  // namespace
}  // namespace tessera::lab::report
