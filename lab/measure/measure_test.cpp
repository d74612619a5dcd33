#include "lab/measure/measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "lab/commands/options.h"
#include "lab/measure/compare/agreement.h"
#include "lab/measure/row_sample.h"
#include "lab/measure/row_table.h"
#include "lab/problem/operation.h"
#include "lab/problem/tensors.h"
#include "lab/terminal/errors.h"
#include "lab/terminal/text.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

Problem small_problem(Pass direction = Pass::forward) {
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
  for (const Pass direction : {Pass::forward, Pass::backward}) {
    const auto rows = measure(small_problem(direction), methods, quick(), always);
    ASSERT_TRUE(rows);
    ASSERT_EQ(rows->size(), 2U);
    for (const Row& row : *rows) {
      EXPECT_EQ(row.status, Status::ok) << row.reason;
      EXPECT_EQ(row.seconds.count, 2);
      EXPECT_GT(row.tflops(), 0);
      ASSERT_TRUE(row.plan);
      EXPECT_EQ(row.peak_extra_bytes, row.plan->workspace_bytes);
      EXPECT_EQ(row.error.has_value(), direction == Pass::forward);
      ASSERT_TRUE(row.speedup);
    }
    EXPECT_EQ((*rows)[0].speedup, 1.0);
  }
}

TEST(Measure, BothDirectionsAreOneRow) {
  const std::vector<Method> methods = methods_of({Algorithm::flash2});
  const Row forward = measure(small_problem(), methods, quick(), always)->front();
  const Row backward = measure(small_problem(Pass::backward), methods, quick(), always)->front();
  const Row both = measure(small_problem(Pass::both), methods, quick(), always)->front();
  ASSERT_EQ(both.status, Status::ok) << both.reason;
  EXPECT_EQ(to_json(both, "x", {}, "")["direction"], "forward + backward");
  EXPECT_DOUBLE_EQ(both.plan->flops, forward.plan->flops + backward.plan->flops);
  EXPECT_DOUBLE_EQ(both.plan->traffic_bytes, forward.plan->traffic_bytes + backward.plan->traffic_bytes);
  EXPECT_DOUBLE_EQ(*both.executed_flops, *forward.executed_flops + *backward.executed_flops);
  EXPECT_EQ(both.tensor_bytes, backward.tensor_bytes);
  EXPECT_EQ(both.peak_extra_bytes, std::max(forward.peak_extra_bytes, backward.peak_extra_bytes));
  ASSERT_TRUE(both.error) << "its output is compared, too";
  EXPECT_LT(both.error->largest, 1e-5);
}

TEST(Measure, PeakMemoryIsTensorsAndWorkspace) {
  const Row row = measure(small_problem(), methods_of({Algorithm::flash2}), quick(), always)->front();
  EXPECT_EQ(to_json(row, "x", {}, "")["peak_bytes"], row.tensor_bytes + row.peak_extra_bytes);
  EXPECT_GT(row.tensor_bytes, 4 * 40 * 2 * 8 * sizeof(float));
}

TEST(Measure, MethodsAreComparedWithEachOther) {
  MeasureOptions options = quick();
  options.atol = 1e-4;
  for (const Pass direction : {Pass::forward, Pass::backward, Pass::both}) {
    const auto rows = measure(small_problem(direction), methods_of({Algorithm::flash2, Algorithm::flash1}),
                              options, always);
    const Row &first = rows->at(0), &second = rows->at(1);
    if (second.status == Status::unsupported) GTEST_SKIP() << second.reason;
    ASSERT_TRUE(first.comparison && second.comparison);
    EXPECT_EQ(first.comparison->largest.has_value(), direction != Pass::backward) << "with fp64";
    EXPECT_EQ(second.comparison->with, "flash2");
    ASSERT_TRUE(second.comparison->largest);
    EXPECT_TRUE(second.comparison->agrees()) << *second.comparison->largest;
    EXPECT_EQ(to_json(second, "x", {}, "")["verdict"], "agrees");
  }
  options.atol = 0;
  Problem problem = small_problem(Pass::both);
  problem.dtype = DType::bf16;
  const auto rows = measure(problem, methods_of({Algorithm::flash2, Algorithm::flash1}), options, always);
  EXPECT_FALSE(rows->front().comparison->agrees()) << "bf16 is not exact";
  EXPECT_EQ(to_json(rows->front(), "x", {}, "")["verdict"], "differs");
  EXPECT_FALSE((Comparison{.atol = 1, .largest = std::nan("")}.agrees()));
}

TEST(Agreement, SeesADifferenceInAnyResult) {
  const Operation operation(small_problem());
  Tensors tensors(operation.shapes(), Direction::backward, Device::cpu());
  tensors.allocate(3);
  auto fill = [&](float value) {
    const BackwardTensors t = tensors.backward();
    for (const Tensor& one : {t.out, t.grad_q, t.grad_k, t.grad_v}) {
      auto* data = static_cast<float*>(one.data);
      std::fill(data, data + 40 * 2 * 8, value);
    }
  };
  const Row both{.problem = small_problem(Pass::both), .method = {Algorithm::flash2}};
  auto after = [&](const Tensor& changed, float value) {
    Agreement agreement(0.1);
    fill(1);
    (void)agreement.compare(both, tensors);
    static_cast<float*>(changed.data)[40 * 2 * 8 - 1] = value;
    return *agreement.compare(both, tensors).largest;
  };
  EXPECT_EQ(after(tensors.forward().out, 1), 0);
  for (const Tensor& one : {tensors.backward().out, tensors.backward().grad_q, tensors.backward().grad_k,
                            tensors.backward().grad_v}) {
    EXPECT_EQ(after(one, 3), 2);
    EXPECT_TRUE(std::isnan(after(one, std::nanf(""))));
  }
  tensors.poison(false);
  EXPECT_EQ(static_cast<float*>(tensors.forward().out.data)[0], 1) << "an input of backward";
  EXPECT_TRUE(std::isnan(static_cast<float*>(tensors.backward().grad_v.data)[0]));
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
  const Problem problem = small_problem(Pass::backward);
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
  const nlohmann::ordered_json json = to_json(row, kBench, {.scale = kBench}, "today");
  const auto names = split(csv_header(json), ',');
  ASSERT_EQ(names.size(), json.size());
  EXPECT_EQ(names.front(), "schema");
  const std::string line = to_csv(json);
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
