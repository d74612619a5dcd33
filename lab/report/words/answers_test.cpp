#include "lab/report/words/answers.h"

#include <gtest/gtest.h>

#include "lab/report/test_rows.h"

namespace tessera::lab::report {
namespace {

using Rows = std::vector<nlohmann::json>;

Report report_of(const std::string& experiment, Rows rows, const Figure& spec = test_figure()) {
  for (nlohmann::json& row : rows) row["experiment"] = experiment;
  ResultsFile file = test_results(std::move(rows), spec);
  file.experiments[0].name = experiment;
  return make_report({file});
}

std::string answer(const std::string& experiment, const Rows& rows, const Figure& spec = test_figure()) {
  return answer_of(report_of(experiment, rows, spec).sections.at(0)).sentence;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

nlohmann::json timed(const std::string& algorithm, int seq, double ms, double spread = 0.01) {
  nlohmann::json row = test_row(algorithm, seq, ms);
  row["lower_quartile_ms"] = ms * (1 - spread);
  row["upper_quartile_ms"] = ms * (1 + spread);
  row["tflops"] = 1e-3 * seq * seq / ms;
  return row;
}

TEST(Answers, TheSequenceSaysFromWhereOn) {
  Rows rows = {timed("standard", 128, 4), timed("flash2", 128, 5),    timed("standard", 256, 16),
               timed("flash2", 256, 8),   timed("standard", 512, 64), timed("flash2", 512, 16)};
  rows[5]["peak_extra_bytes"] = 1024;
  EXPECT_EQ(answer("sequence", rows),
            "Forward, flash2 is faster than standard from N = 256 on (2.0 to 4.0 times as fast); at N = 512 "
            "flash2 needs "
            "1.00 KiB of extra memory where standard needs 512 KiB, 512 times as much.");
  rows[1] = timed("flash2", 128, 3);
  EXPECT_TRUE(contains(answer("sequence", rows),
                       "faster than standard at every N measured (1.3 to 4.0 times as fast)"));
  rows[5] = timed("flash2", 512, 60, 0.2);  // the quartiles overlap
  EXPECT_TRUE(contains(answer("sequence", rows),
                       "no difference in time is found between flash2 and standard at N = 512"))
      << answer("sequence", rows);
  rows[5] = timed("flash2", 512, 128);
  EXPECT_TRUE(
      contains(answer("sequence", rows), "flash2 is slower than standard at N = 512 (2.0 times as slow)"));
}

TEST(Answers, CausalSaysWhatShareIsLeft) {
  Rows rows;
  for (const char* algorithm : {"standard", "flash2"}) {
    rows.push_back(timed(algorithm, 512, 100));
    rows.push_back(timed(algorithm, 512, algorithm[0] == 's' ? 112 : 52));
    rows.back()["mask"] = "causal";
  }
  EXPECT_EQ(
      answer("causal", rows),
      "Yes: at N = 512 a causal mask takes 52 % of the unmasked time with flash2 and 112 % with standard.");
  rows[3] = timed("flash2", 512, 95, 0.2);
  rows[3]["mask"] = "causal";
  EXPECT_TRUE(contains(answer("causal", rows), "Not found here: at N = 512")) << answer("causal", rows);
  EXPECT_TRUE(contains(answer("causal", rows), "(the quartiles allow 75 to 115 %)"))
      << answer("causal", rows);
  rows[3] = timed("flash2", 512, 52, 0.3);  // fast, but not known well enough
  rows[3]["mask"] = "causal";
  EXPECT_TRUE(contains(answer("causal", rows), "Perhaps: at N = 512"));
}

TEST(Answers, BatchSaysWhetherItIsLinear) {
  Rows rows;
  for (const int batch : {1, 2, 4, 8}) {
    rows.push_back(timed("flash2", 256, 3.0 * batch));
    rows.back()["batch"] = batch;
    rows.back()["tflops"] = batch == 1 ? 0.8 : 1.0;
  }
  EXPECT_EQ(answer("batch", rows),
            "The time of flash2 is linear in the batch (batch^1.00 ± 0.01), and from batch 2 on its rate "
            "stays within 10 % of "
            "the highest (1.00 TFLOP/s).");
  for (nlohmann::json& row : rows) {
    const double ms = row["median_ms"].get<double>();
    row["lower_quartile_ms"] = ms / 2, row["upper_quartile_ms"] = ms * 2;
  }
  EXPECT_TRUE(contains(answer("batch", rows), "do not settle whether the time of flash2 is linear"))
      << answer("batch", rows);
}

TEST(Answers, TilesStopPayingOffSomewhere) {
  Rows rows;
  for (const auto& [keys, ms] : {std::pair{32, 20.0}, std::pair{64, 10.5}, std::pair{128, 10.0}}) {
    rows.push_back(timed("flash2", 512, ms));
    rows.back()["requested_block_k"] = keys;
  }
  EXPECT_EQ(answer("block_size", rows),
            "A larger tile stops paying off with 64 keys per tile: that time (10.5 ms) is within 10 % of the "
            "shortest "
            "(10.0 ms with 128 keys per tile).");
  Rows noisy = rows;
  for (nlohmann::json& row : noisy) row["lower_quartile_ms"] = 5.0, row["upper_quartile_ms"] = 30.0;
  EXPECT_EQ(answer("block_size", noisy),
            "No tile size is found to be slower than another: the shortest time is 10.0 ms with 128 keys per "
            "tile.");
  EXPECT_EQ(answer("block_size", {rows[1]}),
            "Only one tile size runs on this device (with 64 keys per tile), so there is no curve.");
}

TEST(Answers, WhatFitsIsCountedPerMethod) {
  EXPECT_EQ(
      answer("out_of_memory", {timed("flash2", 128, 1), timed("flash2", 256, 1), timed("standard", 128, 1),
                               test_missing("standard", 256, "out_of_memory", "full")}),
      "These points fit: 2 of 2 with flash2 and 1 of 2 with standard.");
}

TEST(Answers, SavingsMayBeNegative) {
  auto row = [](double time, double memory) {
    nlohmann::json made = test_row("flash", 128, 1);
    made.update({{"time_saved_percent", time}, {"memory_saved_percent", memory}});
    return made;
  };
  const Figure spec = test_figure("median_ms");
  EXPECT_EQ(answer("training", {row(-20, 50), test_row("standard", 128, 1)}, spec),
            "Flash attention takes 20 % longer and saves 50 % of the peak memory on average over 1 model "
            "that fit with both; "
            "1 of 1 model with flash attention and 1 of 1 with standard attention fit.");
  EXPECT_TRUE(
      contains(answer("training", {row(20, 50)}), "saves 20 % of the time and 50 % of the peak memory"));
  EXPECT_TRUE(
      contains(answer("training", {row(-20, -5)}), "takes 20 % longer and needs 5 % more peak memory"));
}

TEST(Answers, UnknownExperimentsAnswerWithTheirFirstComparison) {
  EXPECT_EQ(answer("somebody's", test_rows()),
            "At N = 512, flash2 takes 16.0 ms and standard 64.0 ms, so flash2 is 4.0 times as fast.");
}

TEST(Answers, NothingMeasuredIsNoClaim) {
  for (const char* experiment :
       {"summary", "sequence", "batch", "causal", "heads", "embedding", "direction", "head_dim", "heatmap",
        "traffic", "block_size", "sparsity", "minimal", "accuracy"}) {
    const Rows none = {test_missing("flash2", 128, "unsupported", "no"),
                       test_missing("standard", 128, "out_of_memory", "no")};
    const Report report = report_of(experiment, none);
    const Answer found = answer_of(report.sections.at(0));
    EXPECT_TRUE(found.findings.empty()) << experiment;
    EXPECT_TRUE(contains(found.sentence, "runs out of memory") ||
                contains(found.sentence, "Nothing could be measured"))
        << experiment << ": " << found.sentence;
  }
}

TEST(Answers, TheTopHasFiveFindingsAtMost) {
  Rows rows = test_rows();
  const std::vector<Finding> findings = top_findings(report_of("sequence", rows));
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].number, "4.0×");
  EXPECT_EQ(findings[0].experiment, "sequence");
  ASSERT_EQ(findings[0].chart.curves.size(), 2U);
  EXPECT_EQ(findings[0].chart.curves[1].points.back().second, 16);
}

}  // namespace
}  // namespace tessera::lab::report
