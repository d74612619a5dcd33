// The measurement of the multipliers: the same answer for every thread, and a right one where the
// CPU is known.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "cpu/machine/cpu_info.h"

namespace tessera::cpu {
namespace {

TEST(Avx512Units, AreThoseOfKnownCpus) {
  const std::string name = model_name(), sets = instruction_sets();
  if (sets.find("AVX-512") == std::string::npos) {
    EXPECT_FALSE(has_two_avx512_units()) << name;
    return;
  }
#if defined(__x86_64__)
  const bool amd = __builtin_cpu_is("amd") != 0;
  if (amd && __builtin_cpu_supports("avx512vp2intersect") && name.find("EPYC") == std::string::npos) {
    GTEST_SKIP() << "a Zen 5 with either kind of unit: " << name;
  } else if (amd && __builtin_cpu_supports("avx512vp2intersect")) {
    EXPECT_TRUE(has_two_avx512_units()) << "Zen 5, " << name;
  } else if (amd) {
    EXPECT_FALSE(has_two_avx512_units()) << "Zen 4, " << name;
  } else if (name.find("Platinum") != std::string::npos) {
    EXPECT_TRUE(has_two_avx512_units()) << name;
  } else {
    GTEST_SKIP() << "how many units " << name << " has is not known";
  }
#endif
}

TEST(Avx512Units, AreTheSameForAllThreads) {
  std::array<bool, 8> answers{};
  std::array<std::thread, 8> threads;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    threads[i] = std::thread([&answers, i] { answers[i] = has_two_avx512_units(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool answer : answers) EXPECT_EQ(answer, has_two_avx512_units());
}

}  // namespace
}  // namespace tessera::cpu
