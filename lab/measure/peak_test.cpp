#include "lab/measure/peak.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "lab/measure/machine/ceilings.h"

namespace tessera::lab {
namespace {

PeakOptions quick(std::vector<int> threads) {
  return {.threads = std::move(threads), .repetitions = 1, .call_seconds = 0.001};
}

TEST(Ceilings, EveryByteOfABlockIsRead) {
  std::vector<std::byte> block(kReadBlock);
  for (const ReadBlock read : {reading_ceiling().memory, reading_ceiling().cache}) {
    for (const std::size_t bytes : {block.size(), 3 * kReadUnit}) {
      const std::uint64_t before = read(block.data(), bytes);
      for (std::size_t at = 7; at < bytes; at += bytes / 64 + 1) {
        block[at] = std::byte{1};
        EXPECT_NE(read(block.data(), bytes), before) << at;
        block[at] = std::byte{0};
      }
    }
  }
}

TEST(Ceilings, WhatIsMissingSaysWhy) {
  const std::vector<Arithmetic> all = arithmetic_ceilings();
  ASSERT_EQ(all.size(), 3U);
  EXPECT_NE(all.front().run, nullptr) << "every machine can multiply and add";
  for (const Arithmetic& one : all) {
    if (one.run == nullptr) EXPECT_STRNE(one.missing, "");
    else EXPECT_GT(one.flops_per_step, 0);
  }
}

TEST(Peak, EveryCeilingForEveryNumberOfThreads) {
  const std::vector<Peak> peaks = measure_peaks(quick({1, 2}), [](double) { return true; });
  ASSERT_EQ(peaks.size(), 2 * kCeilings.size());
  for (std::size_t i = 0; i < peaks.size(); ++i) {
    EXPECT_EQ(peaks[i].name, kCeilings[i % kCeilings.size()]);
    EXPECT_EQ(peaks[i].threads, i < kCeilings.size() ? 1 : 2);
    EXPECT_EQ(peaks[i].rate.median > 0, peaks[i].missing.empty()) << peaks[i].name;
    EXPECT_EQ(peaks[i].bytes > 0, peaks[i].unit == "GB/s") << peaks[i].name;
    EXPECT_EQ(to_json(peaks[i])["median"].is_null(), !peaks[i].missing.empty());
  }
}

TEST(Peak, OnlyWhatIsWantedAndOnlyAsLongAsWanted) {
  PeakOptions options = quick({1});
  options.ceilings = {"memory_read"};
  EXPECT_EQ(measure_peaks(options, [](double) { return true; }).size(), 1U);
  EXPECT_TRUE(measure_peaks(options, [](double) { return false; }).empty());
}

}  // namespace
}  // namespace tessera::lab
