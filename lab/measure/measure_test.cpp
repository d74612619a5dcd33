#include "lab/measure/measure.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "lab/commands/options.h"
#include "lab/measure/row_sample.h"
#include "lab/measure/row_table.h"
#include "lab/problem/operation.h"
#include "lab/problem/tensors.h"
#include "lab/terminal/errors.h"
#include "lab/terminal/text.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

Problem small_problem(Direction direction = Direction::forward) {
  Problem problem{.direction = direction};
  problem.seq = 40;
  problem.heads = 2;
  problem.dim = 8;
  return problem;
}

MeasureOptions quick() {
  return {.repetitions = {.warmup = 1, .repetitions = 2}, .memory_budget = std::size_t{1} << 30};
}

bool always(double) { return true; }

TEST(Measure, MeasuresEveryAlgorithm) {
  try {
    (void)plan({.algorithm = Algorithm::standard}, Operation(small_problem()).shapes());
  } catch (const Error& error) {
    GTEST_SKIP() << "no standard kernel here: " << error.what();
  }
  const std::vector<Method> methods = methods_of({Algorithm::standard, Algorithm::flash2});
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    const auto rows = measure(small_problem(direction), methods, quick(), always);
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

TEST(Measure, ProblemsBecomeTheStatusOfTheirRow) {
  MeasureOptions options = quick();
  const std::vector<Method> methods = methods_of({Algorithm::flash3, Algorithm::flash2});
  auto rows = measure(small_problem(), methods, options, always);
  ASSERT_TRUE(rows);
  EXPECT_EQ((*rows)[0].status, Status::unsupported);
  EXPECT_EQ((*rows)[1].status, Status::ok);
  EXPECT_FALSE((*rows)[1].speedup) << "there is no standard row to compare with";

  options.memory_budget = 1000;
  rows = measure(small_problem(), methods, options, always);
  ASSERT_TRUE(rows);
  EXPECT_EQ((*rows)[1].status, Status::out_of_memory);
  EXPECT_NE((*rows)[1].reason.find("the budget is 1000 B"), std::string::npos) << (*rows)[1].reason;

  Problem wrong = small_problem();
  wrong.kv_heads = 3;
  rows = measure(wrong, methods, quick(), always);
  ASSERT_TRUE(rows);
  EXPECT_EQ((*rows)[1].status, Status::invalid);
}

TEST(Measure, StopsWhenToldTo) {
  const Problem problem = small_problem(Direction::backward);
  int most = 0;
  for (; !measure(problem, methods_of({Algorithm::flash2}), quick(),
                  [left = most](double) mutable { return left-- > 0; });
       ++most) {
  }
  EXPECT_EQ(most, 1 + 1 + 2) << "forward, rehearsal and two measured calls are asked for one by one";
}

TEST(RowSample, SeesWrongRowsAndNaN) {
  const Operation operation(small_problem());
  Tensors tensors(operation.shapes(), Direction::forward, Device::cpu());
  tensors.allocate(3);
  const Attention attention = operation.attention(Algorithm::automatic);
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
  Row row{.problem = small_problem(), .status = Status::unsupported, .reason = "lacks \"this\", that"};
  row.problem.window = {3, 0};
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
    file.write({.problem = small_problem()});
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
  const std::vector<Problem> problems = parse_problems(options);
  const RowTable table(problems, methods_of({Algorithm::standard, Algorithm::flash2}));
  for (const std::string& line : split(table.header(), '\n')) EXPECT_LE(display_width(line), line_width());
  const Row failed{.problem = problems.back(),
                   .method = {Algorithm::standard},
                   .status = Status::out_of_memory,
                   .reason = "needs 1.00 TiB (tensors 512 GiB, workspace 512 GiB), the budget is 16.0 GiB"};
  for (const std::string& line : split(table.row(failed, false), '\n')) {
    EXPECT_LE(display_width(line), line_width());
  }
}

}  // namespace
}  // namespace tessera::lab
