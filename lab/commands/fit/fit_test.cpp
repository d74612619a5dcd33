#include <gtest/gtest.h>

#include <array>
#include <random>

#include "lab/commands/fit/fit_model.h"
#include "tessera/error.h"

namespace tessera::lab {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr Device kCpu = Device::cpu();

// Why standard cannot be planned here; empty: it can.
std::string standard_missing() {
  try {
    (void)plan({.algorithm = Algorithm::standard}, {.q_length = 1, .k_length = 1});
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

// Those of fit_choices that this machine has.
std::vector<FitChoice> choices(bool train) {
  std::vector<FitChoice> all = fit_choices(train, DeviceType::cpu);
  if (!standard_missing().empty())
    std::erase_if(all, [](const FitChoice& one) { return one.name == "standard"; });
  return all;
}

FitChoice choice(Algorithm algorithm) { return {name(algorithm), algorithm, false}; }

std::int64_t longest(const Transformer& model, const FitChoice& choice, double bytes) {
  return longest_fit(model, choice, bytes, kCpu).length;
}

// Models of every kind, small enough to fit somewhere.
std::vector<Transformer> some_models() {
  std::mt19937 random(7);
  auto any = [&](std::initializer_list<std::int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  std::vector<Transformer> models;
  for (int i = 0; i < 24; ++i) {
    Transformer model{.width = any({96, 256, 768, 1024}), .depth = any({1, 4, 12}), .batch = any({1, 3})};
    model.heads = model.width / any({32, 48, 96}) + 1;
    while (model.width % model.heads != 0) ++model.heads;
    model.vocabulary = any({0, 0, 1000, 50257});
    constexpr std::array kTypes = {DType::fp64, DType::fp32, DType::fp16, DType::bf16};
    model.dtype = kTypes[random() % kTypes.size()];
    model.causal = random() % 2 == 0;
    model.train = i % 2 == 0;
    model.optimizer = static_cast<Optimizer>(random() % 3);
    model.checkpoint = model.train && random() % 3 == 0;
    model.kv_cache = !model.train && random() % 3 == 0;
    models.push_back(model);
  }
  return models;
}

TEST(Fit, TheLongestFitsAndOneStepMoreDoesNot) {
  for (const Transformer& model : some_models()) {
    for (const FitChoice& choice : choices(model.train)) {
      const Fit fit = longest_fit(model, choice, 2 * kGiB, kCpu);
      EXPECT_EQ(fit.length % kFitStep, 0);
      EXPECT_EQ(fit.memory.total() <= 2 * kGiB, fit.length > 0) << choice.name;
      EXPECT_GT(memory_of(model, choice, fit.length + kFitStep, kCpu).total(), 2 * kGiB) << choice.name;
    }
  }
}

TEST(Fit, MoreMemoryNeverFitsLess) {
  for (const Transformer& model : some_models()) {
    for (const FitChoice& choice : choices(model.train)) {
      std::int64_t before = 0;
      for (double bytes = kGiB / 64; bytes < 8 * kGiB; bytes *= 1.7) {
        const std::int64_t length = longest(model, choice, bytes);
        EXPECT_GE(length, before) << choice.name;
        before = length;
      }
    }
  }
}

TEST(Fit, WhatTakesMoreNeverFitsMore) {
  for (const Transformer& model : some_models()) {
    std::vector<Transformer> heavier(3, model);
    heavier[0].depth += 1;
    heavier[1].batch += 1;
    heavier[2].vocabulary += 1000;
    if (model.train) {
      for (const Optimizer optimizer : {Optimizer::adam, Optimizer::sgd, Optimizer::none}) {
        if (optimizer > model.optimizer) break;
        heavier.push_back(model);
        heavier.back().optimizer = optimizer;
      }
      heavier.push_back(model);
      heavier.back().checkpoint = false;
    } else {
      heavier.push_back(model);
      heavier.back().kv_cache = true;
      heavier.push_back(model);
      heavier.back().kv_cache = false;
      heavier.back().train = true;
      if (model.kv_cache) heavier.pop_back();  // less than a cache, when checkpoints are not taken
    }
    for (const FitChoice& choice : choices(false)) {
      for (const Transformer& other : heavier) {
        EXPECT_LE(longest(other, choice, 3 * kGiB), longest(model, choice, 3 * kGiB)) << choice.name;
      }
    }
  }
}

TEST(Fit, LengthGrowsWithMemoryForFlashAndWithItsRootForStandard) {
  if (const std::string why = standard_missing(); !why.empty()) GTEST_SKIP() << why;
  const Transformer model{.width = 512, .depth = 6, .heads = 8, .train = true};
  auto grown = [&](const FitChoice& choice) {
    return static_cast<double>(longest(model, choice, 16 * kGiB)) /
           static_cast<double>(longest(model, choice, 4 * kGiB));
  };
  EXPECT_NEAR(grown(choices(true).front()), 2, 0.2);  // P kept: four times the memory, twice the length
  EXPECT_NEAR(grown(choice(Algorithm::standard)), 2, 0.2);
  EXPECT_NEAR(grown(choice(Algorithm::flash2)), 4, 0.5);
}

TEST(Fit, EveryAlgorithmOfTheDeviceIsAChoice) {
  std::vector<std::string> names;
  for (const FitChoice& choice : fit_choices(true, DeviceType::cpu)) names.push_back(choice.name);
  EXPECT_EQ(names, (std::vector<std::string>{"standard, P kept", "standard", "flash1", "flash2"}));
  EXPECT_EQ(fit_choices(false, DeviceType::cpu).size(), 3U);
}

// The counts of the header, by hand.
TEST(Fit, PartsOfTrainingAreCounted) {
  if (const std::string why = standard_missing(); !why.empty()) GTEST_SKIP() << why;
  Transformer model{.width = 256, .depth = 2, .heads = 4, .dtype = DType::fp32, .train = true};
  const double weights = 12.0 * 256 * 256 * 2, tokens = 128.0 * 256 * 4, matrix = 4.0 * 128 * 128 * 4;
  const FitMemory m = memory_of(model, choice(Algorithm::flash2), 128, kCpu);
  EXPECT_EQ(m.parameters, weights * 4);
  EXPECT_EQ(m.gradients, weights * 4);
  EXPECT_EQ(m.optimizer, weights * 8);
  EXPECT_EQ(m.activations, 16 * tokens * 2);
  EXPECT_EQ(m.attention, 4.0 * 128 * 4 * 2);  // LSE
  EXPECT_GE(m.working, 9 * tokens);

  const FitMemory kept = memory_of(model, choices(true).front(), 128, kCpu);
  EXPECT_EQ(kept.attention, matrix * 2);
  EXPECT_EQ(kept.working, std::max(9 * tokens, 5 * tokens + matrix));

  // Standard's backward holds P and dP.
  const FitMemory standard = memory_of(model, choice(Algorithm::standard), 512, kCpu);
  EXPECT_STREQ(standard.at_work, "attention");
  EXPECT_GE(standard.working, 5 * 4 * tokens + 2 * 16 * matrix);

  model.checkpoint = true;
  const FitMemory checkpoint = memory_of(model, choice(Algorithm::flash2), 128, kCpu);
  EXPECT_EQ(checkpoint.activations, (16 + 2) * tokens);
  EXPECT_EQ(checkpoint.attention, 4.0 * 128 * 4);
}

TEST(Fit, OptimizersKeepFp32NumbersAndACopyOfA16BitModel) {
  Transformer model{.width = 64, .depth = 1, .heads = 1, .train = true};
  const double weights = 12.0 * 64 * 64;
  auto per_parameter = [&](DType dtype, Optimizer optimizer) {
    model.dtype = dtype;
    model.optimizer = optimizer;
    return memory_of(model, choice(Algorithm::flash2), 64, kCpu).optimizer / weights;
  };
  EXPECT_EQ(per_parameter(DType::bf16, Optimizer::adam), 12);
  EXPECT_EQ(per_parameter(DType::fp16, Optimizer::sgd), 8);
  EXPECT_EQ(per_parameter(DType::bf16, Optimizer::none), 0);
  EXPECT_EQ(per_parameter(DType::fp32, Optimizer::adam), 8);
  EXPECT_EQ(per_parameter(DType::fp32, Optimizer::sgd), 4);
  EXPECT_EQ(per_parameter(DType::fp64, Optimizer::adam), 16);
}

TEST(Fit, VocabularyCountsAsEmbeddingAndLogits) {
  Transformer model{.width = 64, .depth = 1, .heads = 1, .vocabulary = 50257, .train = true};
  const FitMemory m = memory_of(model, choice(Algorithm::flash2), 1024, kCpu);
  EXPECT_EQ(m.parameters, (12.0 * 64 * 64 + 50257.0 * 64) * 2);
  EXPECT_STREQ(m.at_work, "logits");
  EXPECT_EQ(m.working, 1024.0 * 50257 * (2 + 4));
  model.train = false;  // the last token's alone
  EXPECT_STRNE(memory_of(model, choice(Algorithm::flash2), 1024, kCpu).at_work, "logits");
}

TEST(Fit, InferenceKeepsNothingButACache) {
  Transformer model{.width = 256, .depth = 3, .heads = 4};
  const FitMemory plain = memory_of(model, choice(Algorithm::flash2), 4096, kCpu);
  EXPECT_EQ(plain.gradients + plain.optimizer + plain.activations + plain.attention, 0);
  model.kv_cache = true;
  EXPECT_EQ(memory_of(model, choice(Algorithm::flash2), 4096, kCpu).activations, 2.0 * 4096 * 256 * 2 * 3);
}

TEST(Fit, LooksNoFartherThanItsLimit) {
  const Transformer model{.width = 8, .depth = 1, .heads = 1};
  EXPECT_EQ(longest(model, choice(Algorithm::flash2), 1e15), kLongestFit);
}

// The model of the issue that no 16 GiB hold: 16 bytes per parameter. Each remedy is one.
TEST(Fit, RemediesHelp) {
  const Transformer model{.width = 2048, .depth = 24, .heads = 16, .train = true};
  const FitChoice flash = choice(Algorithm::flash2);
  ASSERT_EQ(longest(model, flash, 16 * kGiB), 0);
  const std::vector<Remedy> found = remedies(model, flash, 16 * kGiB, kCpu, 2048);
  ASSERT_EQ(found.size(), 4U);
  Transformer lighter = model;
  lighter.optimizer = Optimizer::sgd;
  EXPECT_EQ(found[0].options, "--optimizer sgd");
  EXPECT_EQ(found[0].length, longest(lighter, flash, 16 * kGiB));
  EXPECT_EQ(found[1].options, "--optimizer none");
  EXPECT_GT(found[1].length, found[0].length);
  EXPECT_EQ(found[2].options.rfind("--depth ", 0), 0U);
  EXPECT_GE(found[2].length, 2048);
  EXPECT_EQ(found[3].options.rfind("--memory ", 0), 0U);
  EXPECT_GE(found[3].length, 2048);
}

}  // namespace
}  // namespace tessera::lab
