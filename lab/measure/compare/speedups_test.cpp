#include "lab/measure/compare/speedups.h"

#include <gtest/gtest.h>

#include "lab/report/test_rows.h"

namespace tessera::lab {
namespace {

using nlohmann::json;
using report::test_row;

std::vector<ResultsFile> two_runs(const std::string& peer) {
  std::vector<ResultsFile> files = {
      report::test_results(
          {test_row("flash2", 128, 2), test_row("flash2", 256, 4), test_row("standard", 128, 6)}),
      report::test_results({test_row(peer, 128, 8)})};
  files[0].experiments[0].figures.push_back(report::test_figure("speedup_over_pytorch"));
  return files;
}

TEST(SpeedUps, AreThoseOverPyTorchOnTheSameProblem) {
  std::vector<ResultsFile> files = two_runs("pytorch");
  compare_with_pytorch(files);
  EXPECT_EQ(files[0].rows[0]["speedup_over_pytorch"], 4.0);
  EXPECT_TRUE(files[0].rows[1]["speedup_over_pytorch"].is_null()) << "not measured there";
  EXPECT_DOUBLE_EQ(files[0].rows[2]["speedup_over_pytorch"].get<double>(), 8.0 / 6);
  EXPECT_EQ(files[1].rows[0]["speedup_over_pytorch"], 1.0);
  EXPECT_EQ(files[0].experiments[0].figures.size(), 2U);
}

TEST(SpeedUps, NeedTheSameMachineAndMask) {
  for (const auto& [field, value] :
       {std::pair{"machine", "CPU B"}, std::pair{"mask", "causal"}, std::pair{"status", "out_of_memory"}}) {
    std::vector<ResultsFile> files = two_runs("pytorch");
    files[1].rows[0][field] = value;
    compare_with_pytorch(files);
    EXPECT_TRUE(files[0].rows[0]["speedup_over_pytorch"].is_null()) << field;
  }
}

TEST(SpeedUps, WithoutPyTorchTheirFiguresGo) {
  std::vector<ResultsFile> files = two_runs("sdpa");
  compare_with_pytorch(files);
  EXPECT_EQ(files[0].experiments[0].figures.size(), 1U);
}

}  // namespace
}  // namespace tessera::lab
