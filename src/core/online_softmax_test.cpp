#include "core/online_softmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace tessera::core {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A row of scores and values, worked on in blocks as a kernel does.
struct Row {
  RowStatistics<double> statistics{};
  double output = 0;  // sum of exp(score - maximum) * value

  void add(const std::vector<double>& scores, const std::vector<double>& values) {
    double largest = -kInfinity;
    for (const double s : scores) largest = std::max(largest, s);
    output *= statistics.raise(largest);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const double p = exp_relative(scores[i], statistics.maximum);
      statistics.sum += p;
      output += p * values[i];
    }
  }
};

TEST(RowStatistics, NothingSeen) {
  Row row;
  EXPECT_EQ(row.statistics.lse(), -kInfinity);
  EXPECT_EQ(row.statistics.normaliser(), 0);
  row.add({-kInfinity, -kInfinity}, {1, 2});  // everything masked
  EXPECT_EQ(row.statistics.lse(), -kInfinity);
  EXPECT_EQ(row.output * row.statistics.normaliser(), 0);
}

TEST(RowStatistics, MaskedBlocksBeforeBetweenAndAfterChangeNothing) {
  Row plain, with_masked;
  plain.add({1, 2}, {10, 20});
  plain.add({3}, {30});
  const std::vector<double> masked(3, -kInfinity), values(3, 7);
  with_masked.add(masked, values);
  with_masked.add({1, 2}, {10, 20});
  with_masked.add(masked, values);
  with_masked.add({3}, {30});
  with_masked.add(masked, values);
  EXPECT_EQ(plain.output, with_masked.output);
  EXPECT_EQ(plain.statistics.sum, with_masked.statistics.sum);
}

TEST(RowStatistics, RaiseReturnsTheFactorForWhatWasAccumulated) {
  RowStatistics<double> row;
  EXPECT_EQ(row.raise(2), 0);  // nothing accumulated: anything times 0
  row.sum = 1;
  EXPECT_EQ(row.raise(1), 1);  // lower: nothing to do
  EXPECT_EQ(row.raise(2), 1);
  EXPECT_EQ(row.raise(-kInfinity), 1);
  EXPECT_DOUBLE_EQ(row.raise(5), std::exp(-3.0));
  EXPECT_DOUBLE_EQ(row.sum, std::exp(-3.0));
  EXPECT_EQ(row.maximum, 5);
}

TEST(RowStatistics, OneKeyGivesItsValueExactly) {
  Row row;
  row.add({-1e5}, {0.1});
  EXPECT_EQ(row.output * row.statistics.normaliser(), 0.1);
  EXPECT_EQ(row.statistics.lse(), -1e5);
}

TEST(RowStatistics, AnyOrderAndAnyBlocksGiveTheSoftmax) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> score(-1000, 1000), value(-1, 1);
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<double> scores(37), values(37);
    std::generate(scores.begin(), scores.end(), [&] { return score(random); });
    std::generate(values.begin(), values.end(), [&] { return value(random); });
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0, output = 0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      sum += std::exp(scores[i] - largest);
      output += std::exp(scores[i] - largest) * values[i];
    }
    Row forward, backward;
    for (std::size_t i = 0; i < scores.size();) {
      const std::size_t end = std::min(scores.size(), i + 1 + random() % 9);
      forward.add({scores.begin() + i, scores.begin() + end}, {values.begin() + i, values.begin() + end});
      i = end;
    }
    for (std::size_t i = scores.size(); i-- > 0;) backward.add({scores[i]}, {values[i]});
    for (const Row& row : {forward, backward}) {
      ASSERT_NEAR(row.output * row.statistics.normaliser(), output / sum, 1e-14);
      ASSERT_NEAR(row.statistics.lse(), largest + std::log(sum), 1e-12);
    }
  }
}

TEST(RowStatistics, NanScoresReachTheResult) {
  Row first, later;
  first.add({kNan}, {1});
  first.add({1, 2}, {1, 1});
  later.add({1, 2}, {1, 1});
  later.output *= later.statistics.raise(kNan);
  for (const Row& row : {first, later}) {
    EXPECT_TRUE(std::isnan(row.statistics.lse()));
    EXPECT_TRUE(std::isnan(row.output * row.statistics.normaliser()));
  }
}

TEST(RowStatistics, InfiniteScoresGiveNanNotAWrongNumber) {
  Row row;
  row.add({1, kInfinity}, {1, 1});
  EXPECT_TRUE(std::isnan(row.statistics.lse()));
}

TEST(Merge, EmptyPartsAreNeutral) {
  const MergeWeights<double> none = merge(-kInfinity, -kInfinity);
  EXPECT_EQ(none.first, 0);
  EXPECT_EQ(none.second, 0);
  EXPECT_EQ(none.lse, -kInfinity);
  const MergeWeights<double> first = merge(3.0, -kInfinity), second = merge(-kInfinity, 3.0);
  EXPECT_EQ(first.first, 1);
  EXPECT_EQ(first.second, 0);
  EXPECT_EQ(first.lse, 3);
  EXPECT_EQ(second.first, 0);
  EXPECT_EQ(second.second, 1);
  EXPECT_EQ(second.lse, 3);
}

TEST(Merge, IsSymmetricAndExact) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> lse(-2000, 2000);
  for (int repeat = 0; repeat < 1000; ++repeat) {
    const double a = lse(random), b = repeat % 2 == 0 ? lse(random) : a + lse(random) / 1000;
    const MergeWeights<double> one = merge(a, b), other = merge(b, a);
    ASSERT_EQ(one.lse, other.lse);
    ASSERT_EQ(one.first, other.second);
    ASSERT_EQ(one.second, other.first);
    ASSERT_NEAR(one.first + one.second, 1, 1e-15);
    const double larger = std::max(a, b);
    ASSERT_NEAR(one.lse, larger + std::log1p(std::exp(-std::abs(a - b))), 1e-12);
  }
}

TEST(Merge, OrderOfManyPartsDoesNotMatter) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(-20, 20);
  std::vector<std::pair<double, double>> parts{{-kInfinity, 0}};  // (lse, output)
  for (int i = 0; i < 8; ++i) parts.emplace_back(uniform(random), uniform(random));
  auto fold = [&] {
    double lse = -kInfinity, output = 0;
    for (const auto& [part_lse, part_output] : parts) {
      const MergeWeights<double> weights = merge(lse, part_lse);
      output = weights.first * output + weights.second * part_output;
      lse = weights.lse;
    }
    return std::pair{lse, output};
  };
  const auto [lse, output] = fold();
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::shuffle(parts.begin(), parts.end(), random);
    const auto [other_lse, other_output] = fold();
    ASSERT_NEAR(other_lse, lse, 1e-13);
    ASSERT_NEAR(other_output, output, 1e-12);
  }
}

TEST(Merge, NanReachesTheResultFromEitherSide) {
  for (const double other : {-kInfinity, -5.0, 5.0}) {
    EXPECT_TRUE(std::isnan(merge(kNan, other).lse)) << other;
    EXPECT_TRUE(std::isnan(merge(other, kNan).lse)) << other;
    EXPECT_TRUE(std::isnan(merge(kNan, other).first)) << other;
    EXPECT_TRUE(std::isnan(merge(other, kNan).second)) << other;
  }
}

}  // namespace
}  // namespace tessera::core
