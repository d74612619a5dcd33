#include "lab/measure/read_results.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "lab/experiments/studies.h"
#include "lab/measure/rows.h"
#include "lab/report/test_rows.h"
#include "lab/terminal/errors.h"

namespace tessera::lab {
namespace {

using report::test_row;

std::string refusal(const std::string& text) {
  try {
    parse_rows(text, "r.jsonl");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

std::string refused_experiments(const std::string& text) {
  try {
    parse_experiments(text, "e.json");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ReadResults, ReadsRowsAndSkipsEmptyLines) {
  const std::string line = test_row("flash2", 128, 1).dump();
  EXPECT_EQ(parse_rows(line + "\n\n" + line + "\n", "r.jsonl").size(), 2U);
}

TEST(ReadResults, KnowsTheOldNameOfFlash3) {
  EXPECT_EQ(parse_rows(test_row("hopper", 128, 1).dump(), "r.jsonl").at(0)["algorithm"], "flash3");
}

TEST(ReadResults, NamesFileAndLineOfACorruptedRow) {
  const std::string good = test_row("flash2", 128, 1).dump();
  const std::string said = refusal(good + "\n" + good.substr(0, 100));
  EXPECT_TRUE(contains(said, "results 'r.jsonl', line 2: is not JSON")) << said;
}

TEST(ReadResults, RefusesForeignRows) {
  EXPECT_TRUE(contains(refusal("{\"a\": 1}\n"), "line 1: has no field 'schema'"));
  EXPECT_TRUE(contains(refusal("[1, 2]\n"), "line 1: has no field 'schema'"));
  EXPECT_TRUE(contains(refusal("time,rate\n1,2\n"), "line 1: is not JSON"));
}

TEST(ReadResults, RefusesUnknownSchemas) {
  nlohmann::json row = test_row("flash2", 128, 1);
  row["schema"] = 2;
  EXPECT_EQ(refusal(row.dump()),
            "results 'r.jsonl', line 1: schema 2 is unknown; this version reads schema 1");
  row["schema"] = "1";
  EXPECT_TRUE(contains(refusal(row.dump()), "schema \"1\" is unknown"));
}

TEST(ReadResults, NamesWhatARowLacks) {
  nlohmann::json row = test_row("flash2", 128, 1);
  row.erase("commit");
  EXPECT_TRUE(contains(refusal(row.dump()), "field 'commit' is missing"));
  row["commit"] = 7;
  EXPECT_TRUE(contains(refusal(row.dump()), "field 'commit' is 7"));
}

TEST(ReadResults, ReadsExperiments) {
  const auto all = parse_experiments(
      R"([{"name": "a", "title": "A", "question": "?", "origin": null, "figures": [
        {"kind": "bars", "title": "t", "x": "batch", "y": "tflops", "series": "algorithm,direction",
         "facet": null, "log_y": true, "theory": true}]}])",
      "e.json");
  ASSERT_EQ(all.size(), 1U);
  ASSERT_EQ(all[0].figures.size(), 1U);
  const Figure& figure = all[0].figures[0];
  EXPECT_EQ(figure.kind, FigureKind::bars);
  EXPECT_EQ(figure.series, (std::vector<std::string>{"algorithm", "direction"}));
  EXPECT_TRUE(figure.log_y && figure.theory && !figure.log_x);
}

TEST(ReadResults, ReadsExperimentsWithASchema) {
  const std::string all = R"("fields": {}, "experiments": [{"name": "a", "title": "A", "figures": [
      {"kind": "table", "title": "t", "x": null, "y": null, "columns": ["flops"], "facets": ["direction", "dtype"],
       "bounds": [], "sum_over": null}]}]})";
  const auto read = parse_experiments("{\"schema\": 1, " + all, "e.json");
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0].figures[0].y, std::vector<std::string>{"flops"});
  EXPECT_EQ(read[0].figures[0].facets.size(), 2U);
  EXPECT_TRUE(contains(refused_experiments("{\"schema\": 7, " + all), "schema 7 is unknown"));
}

TEST(ReadResults, SaysWhatIsWrongWithAnExperiment) {
  EXPECT_TRUE(contains(refused_experiments("{}"), "must be an array"));
  EXPECT_TRUE(contains(refused_experiments(R"([{"title": "A", "figures": []}])"), "experiment 1: 'name'"));
  EXPECT_TRUE(contains(refused_experiments(R"([{"name": "a", "title": "A", "figures": [{"kind": "pie"}]}])"),
                       "('a'), figure 1: 'kind' \"pie\" must be lines, bars, heatmap, table or hierarchy"));
}

TEST(ReadResults, ReadsItsOwnExperimentsBack) {
  std::vector<const Experiment*> all;
  for (const Experiment* experiment : all_experiments()) all.push_back(experiment);
  const auto read = parse_experiments(to_json(all).dump(), "e.json");
  ASSERT_EQ(read.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(read[i].figures.size(), all[i]->figures.size());
    for (std::size_t f = 0; f < read[i].figures.size(); ++f) {
      EXPECT_EQ(to_json(read[i].figures[f]), to_json(all[i]->figures[f])) << all[i]->name;
    }
  }
}

TEST(ReadResults, RowsOfBenchBecomeAnExperiment) {
  const std::string path = ::testing::TempDir() + "tessera_bench_rows.jsonl";
  {
    RowFile file("--json", path, RowFile::Format::json_lines);
    for (const std::int64_t length : {64, 128, 256}) {
      for (const bool causal : {false, true}) {
        Row row{.method = {Algorithm::flash2}};
        row.problem.seq = length;
        row.problem.causal = causal;
        file.write(row);
      }
    }
  }
  const ResultsFile results = read_results(path);
  std::remove(path.c_str());
  ASSERT_EQ(results.rows.size(), 6U);
  ASSERT_EQ(results.experiments.size(), 1U);
  EXPECT_EQ(results.experiments[0].name, "bench");
  for (const Figure& figure : results.experiments[0].figures) {
    EXPECT_EQ(figure.x, "q_length") << "it varies most";
    EXPECT_EQ(figure.facets, std::vector<std::string>{"mask"});
  }
}

TEST(ReadResults, RowsOfOlderVersionsAreCompleted) {
  const std::string path = ::testing::TempDir() + "tessera_old_rows.jsonl";
  nlohmann::json row = test_row("flash2", 128, 1);
  row["tensor_bytes"] = 1000;
  row.erase("peak_bytes");
  std::ofstream(path) << row.dump() << "\n";
  const ResultsFile results = read_results(path);
  std::remove(path.c_str());
  EXPECT_EQ(results.rows[0]["peak_bytes"], 1000 + 1024 * 128);
  EXPECT_TRUE(results.rows[0].contains("executed_flops") && results.rows[0]["executed_flops"].is_null());
}

TEST(ReadResults, ReadsStacksAndHierarchies) {
  const auto all = parse_experiments(
      R"([{"name": "a", "title": "A", "figures": [
        {"kind": "bars", "title": "t", "x": "algorithm", "y": "median_ms", "series": "stage", "stack": true},
        {"kind": "hierarchy", "title": "t", "x": "level", "columns": ["level_bytes", "bandwidth_gbs"]}]}])",
      "e.json");
  EXPECT_TRUE(all[0].figures[0].stack);
  EXPECT_EQ(all[0].figures[1].kind, FigureKind::hierarchy);
  EXPECT_EQ(all[0].figures[1].y.size(), 2U);
}

TEST(ReadResults, NamesAFileThatCannotBeRead) {
  EXPECT_THROW(read_results("/nonexistent/results.jsonl"), UsageError);
}

}  // namespace
}  // namespace tessera::lab
