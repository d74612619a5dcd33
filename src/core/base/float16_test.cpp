#include "core/base/float16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tessera::core {
namespace {

struct HalfFormat {
  using Type = Half;
  static constexpr int kExponentBits = 5, kFractionBits = 10;
  static Type round(float x) { return to_half(x); }
};

struct BFloat16Format {
  using Type = BFloat16;
  static constexpr int kExponentBits = 8, kFractionBits = 7;
  static Type round(float x) { return to_bfloat16(x); }
};

// The value of a finite pattern by the definition of an IEEE format; of the infinity, what the next
// finite value would be, which is how rounding decides about overflow.
template <typename Format>
double value_of(std::uint32_t magnitude) {
  constexpr int kBias = (1 << (Format::kExponentBits - 1)) - 1;
  const auto exponent = static_cast<int>(magnitude >> Format::kFractionBits);
  const auto fraction = static_cast<double>(magnitude & ((1U << Format::kFractionBits) - 1));
  const double scaled = std::ldexp(fraction, -Format::kFractionBits);
  if (exponent == 0) return std::ldexp(scaled, 1 - kBias);
  return std::ldexp(1 + scaled, exponent - kBias);
}

template <typename Format>
constexpr std::uint32_t infinity_of() {
  return ((1U << Format::kExponentBits) - 1) << Format::kFractionBits;
}

// The nearest pattern to |x|, the even one when two are equally near.
template <typename Format>
std::uint32_t nearest(float x) {
  static const std::vector<double> values = [] {
    std::vector<double> all;
    for (std::uint32_t m = 0; m <= infinity_of<Format>(); ++m) all.push_back(value_of<Format>(m));
    return all;
  }();
  const double magnitude = std::abs(static_cast<double>(x));
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude) - values.begin();
  if (above == static_cast<std::ptrdiff_t>(values.size())) return infinity_of<Format>();
  if (above == 0) return 0;
  const double up = values[above] - magnitude, down = magnitude - values[above - 1];
  const auto index = static_cast<std::uint32_t>(above);
  if (up != down) return up < down ? index : index - 1;
  return index % 2 == 0 ? index : index - 1;
}

template <typename Format>
class Float16 : public testing::Test {};

using Formats = testing::Types<HalfFormat, BFloat16Format>;
TYPED_TEST_SUITE(Float16, Formats);

TYPED_TEST(Float16, EveryPatternMakesTheRoundTrip) {
  constexpr std::uint32_t kInfinity = infinity_of<TypeParam>();
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const float x = to_float(typename TypeParam::Type{static_cast<std::uint16_t>(pattern)});
    const std::uint32_t magnitude = pattern & 0x7FFF;
    ASSERT_EQ(std::signbit(x), pattern >= 0x8000) << pattern;
    std::uint32_t expected = pattern;
    if (magnitude > kInfinity) {
      ASSERT_TRUE(std::isnan(x)) << pattern;
      expected |= 1U << (TypeParam::kFractionBits - 1);  // a NaN becomes quiet
    } else if (magnitude == kInfinity) {
      ASSERT_TRUE(std::isinf(x)) << pattern;
    } else {
      ASSERT_EQ(std::abs(static_cast<double>(x)), value_of<TypeParam>(magnitude)) << pattern;
    }
    ASSERT_EQ(TypeParam::round(x).bits, expected) << pattern;
  }
}

TYPED_TEST(Float16, RoundsToNearestEvenAroundEveryMidpoint) {
  constexpr std::uint32_t kInfinity = infinity_of<TypeParam>();
  for (std::uint32_t m = 0; m < kInfinity; ++m) {
    const double middle = (value_of<TypeParam>(m) + value_of<TypeParam>(m + 1)) / 2;
    const auto x = static_cast<float>(middle);
    if (static_cast<double>(x) != middle) continue;  // below what a float can hold
    for (const float y : {std::nextafter(x, 0.0F), x, std::nextafter(x, INFINITY)}) {
      ASSERT_EQ(TypeParam::round(y).bits, nearest<TypeParam>(y)) << y;
      ASSERT_EQ(TypeParam::round(-y).bits, nearest<TypeParam>(y) | 0x8000) << -y;
    }
  }
}

TYPED_TEST(Float16, RoundsRandomNumbersToTheNearest) {
  std::mt19937 random(1);
  for (int repeat = 0; repeat < 200000; ++repeat) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(x)) continue;
    const std::uint32_t sign = std::signbit(x) ? 0x8000 : 0;
    ASSERT_EQ(TypeParam::round(x).bits, nearest<TypeParam>(x) | sign) << x;
  }
}

TYPED_TEST(Float16, EveryNaNStaysNaN) {
  for (const std::uint32_t payload : {1U, 0x1000U, 0x1FFFU, 0x2000U, 0x400000U, 0x7FFFFFU}) {
    for (const std::uint32_t sign : {0U, 0x80000000U}) {
      const auto x = std::bit_cast<float>(sign | 0x7F800000 | payload);
      EXPECT_TRUE(std::isnan(to_float(TypeParam::round(x)))) << payload;
      EXPECT_EQ(TypeParam::round(x).bits >> 15, sign >> 31);
    }
  }
}

TEST(Half, OverflowAndSubnormals) {
  EXPECT_EQ(to_half(65504.0F).bits, 0x7BFF);
  EXPECT_EQ(to_half(65519.996F).bits, 0x7BFF);
  EXPECT_EQ(to_half(65520.0F).bits, 0x7C00);
  EXPECT_EQ(to_half(std::numeric_limits<float>::max()).bits, 0x7C00);
  EXPECT_EQ(to_half(-INFINITY).bits, 0xFC00);
  EXPECT_EQ(to_half(0x1p-24F).bits, 0x0001);
  EXPECT_EQ(to_half(0x1p-25F).bits, 0x0000);  // a tie, to even
  EXPECT_EQ(to_half(0x1.000002p-25F).bits, 0x0001);
  EXPECT_EQ(to_half(-0.0F).bits, 0x8000);
}

TEST(BFloat16, OverflowAndSubnormals) {
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(to_bfloat16(0x1.FEp127F).bits, 0x7F7F);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::denorm_min()).bits, 0x0000);
  EXPECT_EQ(to_bfloat16(0x1p-133F).bits, 0x0001);
  EXPECT_EQ(to_bfloat16(-0.0F).bits, 0x8000);
}

TEST(Element, LoadsAndStoresEveryType) {
  EXPECT_EQ(Element<Half>::load(Element<Half>::store(1.5F)), 1.5F);
  EXPECT_EQ(Element<BFloat16>::load(Element<BFloat16>::store(1.5F)), 1.5F);
  EXPECT_EQ(Element<float>::load(0.1F), 0.1F);
  EXPECT_EQ(Element<double>::load(0.1), 0.1);
  for (const DType dtype : {DType::fp64, DType::fp32, DType::fp16, DType::bf16}) {
    EXPECT_EQ(with_type(dtype, []<typename T>() { return Element<T>::kDType; }), dtype);
    EXPECT_EQ(with_type(dtype, []<typename T>() { return sizeof(T); }), size_of(dtype));
    EXPECT_EQ(with_type(dtype, []<typename T>() { return sizeof(Accumulator<T>); }),
              size_of(accumulator_of(dtype)));
  }
}

}  // namespace
}  // namespace tessera::core
