#include "lab/measure/machine/dram_counter.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cuda/common/host/gpus.h"
#include "lab/measure/machine/gpu_timer.h"
#include "lab/measure/rows.h"
#include "lab/measure/run.h"
#include "lab/problem/operation.h"
#include "lab/problem/tensors.h"
#include "tessera/attention.h"

namespace tessera::lab {
namespace {

TEST(DramCounter, WithoutAGpuItSaysWhyAndCallsNothing) {
  if (cuda::unusable(0).empty()) GTEST_SKIP() << "there is a GPU here";
  int calls = 0;
  const DramCount count = count_dram_bytes(0, [&] { ++calls; });
  EXPECT_FALSE(count.bytes);
  EXPECT_EQ(count.note, "not measured: " + cuda::unusable(0));
  EXPECT_EQ(calls, 0);
}

// Where counters are permitted: at least every tensor once, for tensors that no cache holds; where
// not, why.
TEST(DramCounter, OnAGpuItCountsOrSaysWhy) {
  if (const std::string reason = cuda::unusable(0); !reason.empty()) GTEST_SKIP() << reason;
  Problem problem;
  problem.batch = 8, problem.seq = 4096, problem.heads = 16, problem.dim = 64, problem.dtype = DType::fp16;
  const Operation operation(problem);
  Tensors tensors(operation.shapes(), Direction::forward, Device::cuda(0));
  tensors.allocate(1);
  const GpuTimer timer(0);
  const Execution execution{.stream = timer.stream()};
  auto call = [&] { forward(operation.attention(Algorithm::automatic), tensors.forward(), execution); };
  call();
  const DramCount count = count_dram_bytes(0, call);
  if (!count.bytes) {
    EXPECT_EQ(count.note.rfind("not measured: ", 0), 0U) << count.note;
    GTEST_SKIP() << count.note;
  }
  const auto once = static_cast<double>(tensors.bytes());
  EXPECT_GT(*count.bytes, 0.5 * once);  // what the caches held of the call before need not be read again
  EXPECT_LT(*count.bytes, 20 * once);
}

TEST(DramCounter, ACallThatFailsIsAReason) {
  const DramCount count = count_dram_bytes(0, [] { throw std::runtime_error("no\nluck"); });
  EXPECT_FALSE(count.bytes);
  EXPECT_EQ(count.note.rfind("not measured: ", 0), 0U) << count.note;
  EXPECT_EQ(count.note.find('\n'), std::string::npos) << count.note;
}

TEST(DramCounter, CanBeTurnedOff) {
  setenv("TESSERA_COUNTERS", "0", 1);
  int calls = 0;
  const DramCount count = count_dram_bytes(0, [&] { ++calls; });
  unsetenv("TESSERA_COUNTERS");
  EXPECT_FALSE(count.bytes);
  EXPECT_EQ(count.note, "not measured: TESSERA_COUNTERS=0");
  EXPECT_EQ(calls, 0);
}

TEST(DramCounter, RowsTellHowOrWhyNot) {
  Row row;
  auto json = [&] { return to_json(row, "x", {}, "today"); };
  EXPECT_EQ(json()["measured_traffic_bytes"], nullptr);
  EXPECT_EQ(json()["measured_traffic_note"], "not measured: the lab reads no counters of CPUs");
  row.problem.device = Device::cuda(0);
  EXPECT_EQ(json()["measured_traffic_note"], "not measured: only experiments that show it count it");
  row.traffic_note = "not measured: no driver";
  EXPECT_EQ(json()["measured_traffic_note"], "not measured: no driver");
  row.measured_traffic = 1e9;
  EXPECT_EQ(json()["measured_traffic_bytes"], 1e9);
}

TEST(DramCounter, ExperimentsThatShowItCountIt) {
  std::vector<std::string> counting;
  for (const Measurement& one : measurements_of(find_experiments({}), {.scale = Scale::quick})) {
    if (one.count_traffic && (counting.empty() || counting.back() != one.experiment))
      counting.push_back(one.experiment);
  }
  EXPECT_EQ(counting, (std::vector<std::string>{"traffic", "block_size"}));
}

}  // namespace
}  // namespace tessera::lab
