#include "core/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <tuple>
#include <vector>

namespace tessera::core {
namespace {

void expect_words(const PhiloxBlock& block, const std::array<std::uint32_t, 4>& expected) {
  for (int m = 0; m < 4; ++m) EXPECT_EQ(block.word[m], expected[m]) << "word " << m;
}

// The known-answer vectors that Random123 publishes for philox4x32, with 7 and with 10 rounds.
TEST(Philox, KnownAnswers) {
  constexpr std::uint32_t kOnes = 0xffffffff;
  constexpr PhiloxBlock kZeroCounter{{0, 0, 0, 0}}, kOnesCounter{{kOnes, kOnes, kOnes, kOnes}},
      kPiCounter{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}};
  static_assert(kPhiloxRounds == 7);
  expect_words(philox4x32(kZeroCounter, 0, 0), {0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48});
  expect_words(philox4x32(kOnesCounter, kOnes, kOnes), {0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662});
  expect_words(philox4x32(kPiCounter, 0xa4093822, 0x299f31d0),
               {0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a});
  expect_words(philox4x32<10>(kZeroCounter, 0, 0), {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect_words(philox4x32<10>(kOnesCounter, kOnes, kOnes), {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect_words(philox4x32<10>(kPiCounter, 0xa4093822, 0x299f31d0),
               {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Philox, RunsAtCompileTime) { static_assert(philox4x32({{0, 0, 0, 0}}, 0, 0).word[0] == 0x5f6fb709); }

// Eight elements of one row per call, columns {8m + 2t, 8m + 2t + 1 : m = 0..3} of an aligned
// 32-column group, t = (column mod 8) / 2.
TEST(Dropout, EightColumnsOfARowShareOneCall) {
  const DropoutStream stream = dropout_stream(42, 7, 1, 2);
  for (std::int64_t group = 0; group < 5; ++group) {
    for (int t = 0; t < 4; ++t) {
      const PhiloxBlock call = dropout_call(stream, 11, group, t);
      for (int m = 0; m < 4; ++m) {
        const std::int64_t column = group * 32 + 8 * m + 2 * t;
        EXPECT_EQ(dropout_bits(stream, 11, column), call.word[m] & 0x7FFF);
        EXPECT_EQ(dropout_bits(stream, 11, column + 1), call.word[m] >> 16 & 0x7FFF);
      }
    }
  }
}

TEST(Dropout, GroupsEqualSingleElements) {
  const DropoutStream stream = dropout_stream(1, 2, 3, 4);
  for (const std::int64_t row : {0L, 1L, 1000000L}) {
    for (const std::int64_t group : {0L, 1L, 99999L}) {
      std::uint16_t bits[kDropoutGroup];
      dropout_group_bits(stream, row, group, bits);
      for (int c = 0; c < kDropoutGroup; ++c) {
        ASSERT_EQ(bits[c], dropout_bits(stream, row, group * kDropoutGroup + c));
      }
    }
  }
}

TEST(Dropout, ThresholdCountsIn32768ths) {
  EXPECT_EQ(dropout_threshold(0), 0U);
  EXPECT_EQ(dropout_threshold(0.5), 16384U);
  EXPECT_EQ(dropout_threshold(0.1), 3277U);
  EXPECT_EQ(dropout_threshold(1.0 / 32768), 1U);
}

// The bits of `rows` x `columns` elements, row by row.
std::vector<std::uint32_t> bits_of(const DropoutStream& stream, int rows, int columns) {
  std::vector<std::uint32_t> bits;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) bits.push_back(dropout_bits(stream, row, column));
  }
  return bits;
}

TEST(Dropout, KeepRateIsWithinFourSigma) {
  const std::vector<std::uint32_t> bits = bits_of(dropout_stream(123, 0, 0, 0), 512, 512);
  const auto count = static_cast<double>(bits.size());
  for (const double probability : {0.01, 0.1, 0.25, 0.5, 0.9}) {
    const std::uint32_t threshold = dropout_threshold(probability);
    double kept = 0;
    for (const std::uint32_t b : bits) kept += b >= threshold ? 1 : 0;
    const double expected = 1 - threshold / 32768.0;
    const double sigma = std::sqrt(expected * (1 - expected) / count);
    EXPECT_NEAR(kept / count, expected, 4 * sigma) << probability;
  }
}

TEST(Dropout, ChiSquaredOfBothBytesIsUnsuspicious) {
  const std::vector<std::uint32_t> bits = bits_of(dropout_stream(99, 5, 1, 1), 512, 512);
  for (const int shift : {0, 7}) {
    std::vector<double> bins(256, 0);
    for (const std::uint32_t b : bits) bins[b >> shift & 0xFF] += 1;
    const double expected = static_cast<double>(bits.size()) / 256;
    double chi_squared = 0;
    for (const double bin : bins) chi_squared += (bin - expected) * (bin - expected) / expected;
    // 255 degrees of freedom: mean 255, standard deviation sqrt(510). Both tails are suspicious.
    EXPECT_NEAR(chi_squared, 255, 4 * std::sqrt(510.0)) << "shift " << shift;
  }
}

// Correlation of two equally long sequences of 15-bit values.
double correlation(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) {
  constexpr double kMean = 16383.5, kVariance = (32768.0 * 32768.0 - 1) / 12;
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - kMean) * (b[i] - kMean);
  return sum / (kVariance * static_cast<double>(a.size()));
}

TEST(Dropout, NeighboursAreUncorrelated) {
  constexpr int kSize = 512;
  const std::vector<std::uint32_t> bits = bits_of(dropout_stream(7, 0, 2, 3), kSize, kSize);
  const double limit = 4 / std::sqrt(static_cast<double>(bits.size()));
  for (const int lag : {1, 2, 8, 32, kSize, kSize + 1}) {  // columns, pairs, groups, rows
    const std::vector<std::uint32_t> first(bits.begin(), bits.end() - lag);
    const std::vector<std::uint32_t> second(bits.begin() + lag, bits.end());
    EXPECT_LT(std::abs(correlation(first, second)), limit) << "lag " << lag;
  }
}

TEST(Dropout, StreamsAreIndependent) {
  struct Name {
    std::uint64_t seed, offset;
    std::int64_t batch, head;
  };
  constexpr std::uint64_t kHigh = std::uint64_t{1} << 32;
  const std::vector<Name> names{{0, 0, 0, 0}, {1, 0, 0, 0},     {0, 1, 0, 0},    {0, 0, 1, 0},
                                {0, 0, 0, 1}, {kHigh, 0, 0, 0}, {0, kHigh, 0, 0}};
  std::vector<std::vector<std::uint32_t>> bits;
  for (const Name& name : names) {
    bits.push_back(bits_of(dropout_stream(name.seed, name.offset, name.batch, name.head), 128, 256));
  }
  const double limit = 4 / std::sqrt(static_cast<double>(bits[0].size()));
  for (std::size_t a = 0; a < bits.size(); ++a) {
    for (std::size_t b = a + 1; b < bits.size(); ++b) {
      EXPECT_LT(std::abs(correlation(bits[a], bits[b])), limit) << a << " and " << b;
    }
  }
}

TEST(Dropout, NoTwoStreamsCoincide) {
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>> streams;
  std::size_t made = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    for (std::uint64_t offset = 0; offset < 4; ++offset) {
      for (std::int64_t batch = 0; batch < 16; ++batch) {
        for (std::int64_t head = 0; head < 16; ++head, ++made) {
          const DropoutStream s = dropout_stream(seed, offset, batch, head);
          streams.insert({s.key0, s.key1, s.high0, s.high1});
        }
      }
    }
  }
  EXPECT_EQ(streams.size(), made);
}

}  // namespace
}  // namespace tessera::core
