#include "lab/experiments/studies.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lab/measure/results.h"
#include "lab/measure/run.h"
#include "lab/problem/operation.h"
#include "lab/terminal/errors.h"

namespace tessera::lab {
namespace {

std::vector<Measurement> measured(const std::string& experiment, Device device = Device::cuda(),
                                  const Overrides& overrides = {}) {
  return measurements_of(find_experiments({experiment}),
                         {.scale = Scale::study, .device = device, .overrides = overrides});
}

// The distinct values of a field of the problems.
template <typename T>
std::set<T> values(const std::vector<Measurement>& measurements, T Problem::* member) {
  std::set<T> all;
  for (const Measurement& one : measurements) all.insert(one.problem.*member);
  return all;
}

using Integers = std::set<std::int64_t>;

TEST(Studies, EverySweepCanBeReadAndNothingIsMeasuredTwice) {
  std::set<std::string> names;
  for (const Experiment* experiment : all_experiments()) EXPECT_TRUE(names.insert(experiment->name).second);
  for (const Study& study : studies()) {
    EXPECT_FALSE(study.experiments.empty() && study.commands.empty()) << study.name;
    for (const Experiment& experiment : study.experiments) {
      EXPECT_EQ(experiment.name.rfind(study.name + "_", 0), 0U) << experiment.name;
      EXPECT_FALSE(experiment.figures.empty()) << experiment.name;
      for (const Device device : {Device::cpu(), Device::cuda()}) {
        std::set<std::string> keys;
        std::size_t rows = 0;
        for (const Measurement& one : measured(experiment.name, device)) {
          if (one.level.empty()) {
            EXPECT_NO_THROW(Operation(one.problem)) << experiment.name;
          }
          for (const Method& method : one.methods) {
            ++rows;
            keys.insert(key_of(to_json(row_before(one, method), one.experiment, {"c", "study"}, "")));
          }
        }
        EXPECT_EQ(rows > 0, !experiment.levels || device.type == DeviceType::cpu) << experiment.name;
        EXPECT_EQ(keys.size(), rows) << experiment.name;
      }
    }
  }
}

TEST(Studies, TheirSettingsAreTheStudies) {
  const auto time = measured("t4_sequence");
  EXPECT_EQ(values(time, &Problem::seq), (Integers{128, 256, 512, 1024, 2048}));
  EXPECT_EQ(values(time, &Problem::batch), Integers{16});
  EXPECT_EQ(values(time, &Problem::causal), std::set<bool>{true});
  EXPECT_EQ(values(time, &Problem::dtype), std::set<DType>{DType::fp16});
  EXPECT_EQ(values(measured("t4_heads"), &Problem::heads), (Integers{1, 2, 4, 8, 16, 24, 32, 64}));
  EXPECT_EQ(values(measured("t4_batch"), &Problem::batch), (Integers{1, 2, 4, 8, 16, 32, 64}));
  EXPECT_EQ(values(measured("t4_head_dim"), &Problem::dim), (Integers{16, 32, 64, 128, 256}));
  EXPECT_EQ(values(measured("t4_summary"), &Problem::direction),
            (std::set<Pass>{Pass::forward, Pass::backward, Pass::both}));
  Integers widths;
  for (const Measurement& one : measured("t4_width")) widths.insert(one.problem.heads * one.problem.dim);
  EXPECT_EQ(widths, (Integers{64, 128, 256, 512, 1024, 2048}));
  const auto points = measured("tables_points");
  EXPECT_EQ(values(points, &Problem::batch), (Integers{16, 32, 64}));
  EXPECT_EQ(values(points, &Problem::seq), (Integers{512, 1024, 2048}));
  EXPECT_EQ(points.front().memory_budget, std::size_t{15} << 30);
  EXPECT_EQ(values(measured("paper_long"), &Problem::seq).count(65536), 1U);
}

// The tables' peak memory is that of five fp16 tensors, which tells their sizes.
TEST(Studies, TheSizesOfTheTablesExplainTheirMemory) {
  const std::map<std::string, std::vector<double>> published = {// MB, in the order of the sweep
                                                                {"tables_batch", {644, 1288, 2576}},
                                                                {"tables_sequence", {644, 1288, 2576}},
                                                                {"tables_heads", {1282, 1284, 1288}},
                                                                {"tables_width", {644, 1284, 2564}},
                                                                {"tables_causal", {1288, 1288}}};
  for (const auto& [name, megabytes] : published) {
    const std::vector<Measurement> points = measured(name);
    ASSERT_EQ(points.size(), megabytes.size()) << name;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const Problem& p = points[i].problem;
      const double tensors = 5.0 * 2 * static_cast<double>(p.batch * p.seq * p.heads * p.dim);
      EXPECT_NEAR(megabytes[i] * 1024 * 1024 / tensors, 1, 0.01) << name << ", " << to_string(p);
    }
  }
}

TEST(Studies, OnACpuLengthsAloneAreDividedByOneFactor) {
  for (const char* name : {"t4_sequence", "t4_heads", "tables_points", "paper_sparsity", "l4_kernel"}) {
    std::vector<Measurement> gpu = measured(name), cpu = measured(name, Device::cpu());
    std::set<std::string> shapes_gpu, shapes_cpu;
    for (Measurement& one : gpu) {
      one.problem.seq /= kCpuFactor;
      one.problem.block_size = std::max<std::int64_t>(1, one.problem.block_size / kCpuFactor);
      one.problem.dtype = DType::fp32;
      shapes_gpu.insert(to_string(one.problem));
    }
    for (const Measurement& one : cpu) shapes_cpu.insert(to_string(one.problem));
    EXPECT_EQ(shapes_cpu, shapes_gpu) << name;
  }
  EXPECT_EQ(study_factor(Device::cpu()), kCpuFactor);
  EXPECT_EQ(study_factor(Device::cuda()), 1);
}

TEST(Studies, AreFoundByName) {
  EXPECT_EQ(find_studies({"tables", "t4"}).size(), 2U);
  EXPECT_EQ(experiments_of(find_studies({"t4"}), {"t4_heads"}).size(), 1U);
  for (const auto& [use, said] :
       {std::pair<std::function<void()>, const char*>{[] { find_studies({"t5"}); }, "did you mean t4?"},
        {[] { experiments_of(find_studies({"t4"}), {"t4_head"}); }, "did you mean t4_heads?"}}) {
    try {
      use();
      FAIL() << said;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
    }
  }
}

TEST(Overrides, ReplaceWhatAnExperimentDoesNotVary) {
  const Overrides overrides = {{"--causal", "yes"}, {"--batch", "3"},     {"--dtype", "bf16"},
                               {"--threads", "1"},  {"--dropout", "0.1"}, {"--algorithm", "flash2"}};
  check_overrides(overrides, Device::cpu());
  const Experiment& sequence = *find_experiments({"sequence"}).front();
  EXPECT_EQ(varied_option(sequence, Scale::quick, overrides), "");
  for (const Measurement& one :
       measurements_of({&sequence}, {.scale = Scale::quick, .overrides = overrides})) {
    EXPECT_TRUE(one.problem.causal);
    EXPECT_EQ(one.problem.batch, 3);
    EXPECT_EQ(one.problem.dtype, DType::bf16);
    EXPECT_EQ(one.problem.threads, 1);
    EXPECT_EQ(one.problem.dropout, 0.1);
    ASSERT_EQ(one.methods.size(), 1U);
    EXPECT_EQ(one.methods[0].algorithm, Algorithm::flash2);
  }
  for (const auto& [experiment, option] :
       {std::pair{"batch", "--batch"}, std::pair{"causal", "--causal"}, std::pair{"accuracy", "--dtype"},
        std::pair{"sparsity", "--algorithm"}, std::pair{"heatmap", "--batch"}})
    EXPECT_EQ(varied_option(*find_experiments({experiment}).front(), Scale::quick, overrides), option)
        << experiment;
  for (const Overrides& wrong : {Overrides{{"--batch", "1,2"}}, Overrides{{"--dtype", "fp8"}},
                                 Overrides{{"--causal", "no,yes"}}, Overrides{{"--algorithm", "flash9"}}})
    EXPECT_THROW(check_overrides(wrong, Device::cpu()), UsageError) << to_string(wrong);
}

}  // namespace
}  // namespace tessera::lab
