#include <gtest/gtest.h>

#include "lab/fit_model.h"

namespace tessera::lab {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

TEST(Fit, TheLongestFitsAndOneStepMoreDoesNot) {
  for (const bool train : {false, true}) {
    const Transformer model{.width = 512, .depth = 6, .heads = 8, .train = train};
    for (const FitChoice& choice : fit_choices(train)) {
      const Fit fit = longest_fit(model, choice, 2 * kGiB, Device::cpu());
      ASSERT_GT(fit.length, 0) << choice.name;
      EXPECT_EQ(fit.length % kFitStep, 0);
      EXPECT_LE(fit.memory.total(), 2 * kGiB);
      EXPECT_GT(memory_of(model, choice, fit.length + kFitStep, Device::cpu()).total(), 2 * kGiB)
          << choice.name;
    }
  }
}

TEST(Fit, FlashIsLinearAndStandardQuadratic) {
  const Transformer model{.width = 512, .depth = 6, .heads = 8, .train = true};
  const std::vector<FitChoice> choices = fit_choices(true);
  auto longest = [&](const FitChoice& choice, double bytes) {
    return static_cast<double>(longest_fit(model, choice, bytes, Device::cpu()).length);
  };
  auto grown = [&](const FitChoice& choice) {
    return longest(choice, 16 * kGiB) / longest(choice, 4 * kGiB);
  };
  EXPECT_NEAR(grown(choices.front()), 2, 0.2);  // P kept: four times the memory, twice the length
  EXPECT_NEAR(grown(choices.back()), 4, 0.5);
}

TEST(Fit, MoreMemoryNeverFitsLess) {
  const Transformer model{.width = 768, .depth = 12, .heads = 12};
  for (const FitChoice& choice : fit_choices(false)) {
    std::int64_t before = 0;
    for (double bytes = 0.25 * kGiB; bytes < 8 * kGiB; bytes *= 1.5) {
      const std::int64_t length = longest_fit(model, choice, bytes, Device::cpu()).length;
      EXPECT_GE(length, before) << choice.name;
      before = length;
    }
  }
}

TEST(Fit, NothingFitsBesideItsParameters) {
  const Transformer model{.width = 4096, .depth = 48, .heads = 32, .train = true};
  for (const FitChoice& choice : fit_choices(true)) {
    EXPECT_EQ(longest_fit(model, choice, kGiB, Device::cpu()).length, 0) << choice.name;
  }
}

TEST(Fit, PartsAreCounted) {
  const Transformer model{.width = 256, .depth = 2, .heads = 4, .dtype = DType::fp32, .train = true};
  const FitMemory m = memory_of(model, fit_choices(true).back(), 128, Device::cpu());
  EXPECT_EQ(m.parameters, 12.0 * 256 * 256 * 2 * 4);
  EXPECT_EQ(m.states, 12.0 * 256 * 256 * 2 * (4 + 8));
  EXPECT_EQ(m.activations, 16.0 * 128 * 256 * 4 * 2);
  const FitMemory kept = memory_of(model, fit_choices(true).front(), 128, Device::cpu());
  const FitMemory again = memory_of(model, fit_choices(true)[1], 128, Device::cpu());
  EXPECT_EQ(kept.attention - again.attention, 4.0 * 128 * 128 * 4 * 2);
}

}  // namespace
}  // namespace tessera::lab
