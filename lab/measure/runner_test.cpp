#include "lab/measure/runner.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "lab/commands/parse.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

Point small_point() {
  Point point;
  point.seq = 40;
  point.heads = 2;
  point.dim = 8;
  return point;
}

RunnerOptions quick() {
  return {.schedule = {.warmup = 1, .repetitions = 2}, .memory_budget = std::size_t{1} << 30};
}

bool always(double) { return true; }

TEST(Contest, MeasuresEveryAlgorithm) {
  try {
    (void)plan({.algorithm = Algorithm::standard}, Workload(small_point()).shapes());
  } catch (const Error& error) {
    GTEST_SKIP() << "no standard kernel here: " << error.what();
  }
  const std::vector<Algorithm> algorithms = {Algorithm::standard, Algorithm::flash2};
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    const auto rows = run_contest({small_point(), direction, Device::cpu(), algorithms}, quick(), always);
    ASSERT_TRUE(rows);
    ASSERT_EQ(rows->size(), 2U);
    for (const Row& row : *rows) {
      EXPECT_EQ(row.status, Status::ok) << row.reason;
      EXPECT_EQ(row.seconds.count, 2);
      EXPECT_GT(row.tflops(), 0);
      ASSERT_TRUE(row.plan);
      EXPECT_EQ(row.peak_extra_bytes, row.plan->workspace_bytes);
      EXPECT_EQ(row.error.has_value(), direction == Direction::forward);
      ASSERT_TRUE(row.speedup);
    }
    EXPECT_EQ((*rows)[0].speedup, 1.0);
  }
}

TEST(Contest, ProblemsBecomeTheStatusOfTheirRow) {
  RunnerOptions options = quick();
  const std::vector<Algorithm> algorithms = {Algorithm::flash3, Algorithm::flash2};
  auto rows = run_contest({small_point(), Direction::forward, Device::cpu(), algorithms}, options, always);
  ASSERT_TRUE(rows);
  EXPECT_EQ((*rows)[0].status, Status::unsupported);
  EXPECT_EQ((*rows)[1].status, Status::ok);
  EXPECT_FALSE((*rows)[1].speedup) << "there is no standard row to compare with";

  options.memory_budget = 1000;
  rows = run_contest({small_point(), Direction::forward, Device::cpu(), algorithms}, options, always);
  ASSERT_TRUE(rows);
  EXPECT_EQ((*rows)[1].status, Status::out_of_memory);
  EXPECT_NE((*rows)[1].reason.find("the budget is 1000 B"), std::string::npos) << (*rows)[1].reason;

  Point wrong = small_point();
  wrong.kv_heads = 3;
  rows = run_contest({wrong, Direction::forward, Device::cpu(), algorithms}, quick(), always);
  ASSERT_TRUE(rows);
  EXPECT_EQ((*rows)[1].status, Status::invalid);
}

TEST(Contest, StopsWhenToldTo) {
  const Contest contest{small_point(), Direction::backward, Device::cpu(), {Algorithm::flash2}};
  int most = 0;
  for (; !run_contest(contest, quick(), [left = most](double) mutable { return left-- > 0; }); ++most) {
  }
  EXPECT_EQ(most, 1 + 1 + 2) << "forward, rehearsal and two measured calls are asked for one by one";
}

TEST(RowSample, SeesWrongRowsAndNaN) {
  const Workload workload(small_point());
  Tensors tensors(workload.shapes(), Direction::forward, Device::cpu());
  tensors.allocate(3);
  const Attention attention = workload.attention(Algorithm::automatic);
  forward(attention, tensors.forward());
  const RowSample sample(attention, tensors.forward(), 16, 3);
  EXPECT_LT(sample.compare(tensors.forward()).largest, 1e-6);
  EXPECT_EQ(sample.compare(tensors.forward()).rows, 16);
  auto* out = static_cast<float*>(tensors.forward().out.data);
  out[0] += 0.5F;
  EXPECT_NEAR(sample.compare(tensors.forward()).largest, 0.5, 1e-5);
  out[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(sample.compare(tensors.forward()).largest));
}

TEST(Rows, CsvHasTheFieldsOfJsonAndQuotes) {
  Row row{.point = small_point(), .status = Status::unsupported, .reason = "lacks \"this\", that"};
  row.point.window = {3, 0};
  const auto names = split(csv_header(), ',');
  const nlohmann::ordered_json json = to_json(row);
  ASSERT_EQ(names.size(), json.size());
  EXPECT_EQ(names.front(), "version");
  const std::string line = to_csv(row);
  EXPECT_NE(line.find(",\"window:3,0\","), std::string::npos) << line;
  EXPECT_NE(line.find(",\"lacks \"\"this\"\", that\","), std::string::npos) << line;
  EXPECT_TRUE(json["median_ms"].is_null());
  EXPECT_EQ(json["status"], "unsupported");
}

TEST(Rows, FilesAreCompleteAfterEveryRow) {
  const std::string path = ::testing::TempDir() + "tessera_rows_test.csv";
  {
    RowFile file("--csv", path, RowFile::Format::csv);
    auto lines = [&] {
      std::stringstream text;
      text << std::ifstream(path).rdbuf();
      return split(text.str(), '\n').size() - 1;
    };
    EXPECT_EQ(lines(), 1U);
    file.write({.point = small_point()});
    EXPECT_EQ(lines(), 2U);
  }
  std::remove(path.c_str());
  EXPECT_THROW(RowFile("--csv", "/no/such/folder/rows.csv", RowFile::Format::csv), UsageError);
}

TEST(Rows, TableStaysNarrowWhenEverythingVaries) {
  ProblemOptions options;
  options.batch = {"1,1000"};
  options.seq = {"64,100000"};
  options.heads = {"8,16"};
  options.dim = {"64,128"};
  options.dtype = {"fp32,bf16"};
  options.causal = {"no,yes"};
  options.direction = {"forward,backward"};
  const Sweep sweep = parse_sweep(options);
  const std::vector<Algorithm> algorithms = {Algorithm::standard, Algorithm::flash2};
  const RowTable table(sweep, algorithms);
  for (const std::string& line : split(table.header(), '\n')) EXPECT_LE(display_width(line), kWidestLine);
  const Row failed{.point = sweep.points.back(),
                   .algorithm = Algorithm::standard,
                   .status = Status::out_of_memory,
                   .reason = "needs 1.00 TiB (tensors 512 GiB, workspace 512 GiB), the budget is 16.0 GiB"};
  for (const std::string& line : split(table.row(failed, false), '\n')) {
    EXPECT_LE(display_width(line), kWidestLine);
  }
}

}  // namespace
}  // namespace tessera::lab
