#include "cuda/fp32/row_power.h"

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <limits>

namespace tessera::cuda::fp32 {
namespace {

// The largest number of a row comes into [2^14, 2^15), or below for subnormal rows. The factor
// reverses that exactly.
TEST(RowPower, BringsRowsIntoTheRangeOfHalves) {
  for (int exponent = -149; exponent <= 127; ++exponent) {
    const float x = std::ldexp(1.0F, exponent);
    const RowPower power = RowPower::of(x);
    EXPECT_TRUE(std::isnormal(power.scale) && std::isnormal(power.factor)) << exponent;
    EXPECT_EQ(power.scale * power.factor, 1.0F) << exponent;
    const float scaled = x * power.scale;
    EXPECT_LT(scaled, 32768.0F) << exponent;
    EXPECT_TRUE(scaled >= 16384.0F || exponent < -112) << exponent;
  }
}

// S of a large row and a tiny one, as multiply_split_rows computes it: 64 products of 1.
TEST(RowPower, LargeTimesTinyIsNeitherInfiniteNorZero) {
  for (int exponent = -126; exponent <= 126; ++exponent) {
    const float q = std::ldexp(1.0F, exponent), k = std::ldexp(1.0F, -exponent);
    const RowPower a = RowPower::of(q), b = RowPower::of(k);
    float sum = 0;
    for (int d = 0; d < 64; ++d) sum += (q * a.scale) * (k * b.scale);
    EXPECT_EQ(take_back(sum, a.factor, b.factor), 64.0F) << exponent;
    EXPECT_EQ(take_back(sum, b.factor, a.factor), 64.0F) << exponent;
  }
}

// Whatever the rows hold: a result that fp32 has is the right one, and a zero stays zero.
TEST(RowPower, NoPairOfRowsNeedsAnotherPath) {
  for (int left = -149; left <= 127; ++left) {
    for (int right = -149; right <= 127; ++right) {
      const float q = std::ldexp(1.0F, left), k = std::ldexp(1.0F, right);
      const RowPower a = RowPower::of(q), b = RowPower::of(k);
      const float sum = (q * a.scale) * (k * b.scale);
      const float exact = std::ldexp(1.0F, left) * std::ldexp(1.0F, right);  // rounded once
      const float got = take_back(sum, a.factor, b.factor);
      if (std::abs(exact) >= std::numeric_limits<float>::min()) {
        EXPECT_EQ(got, exact) << left << " " << right;
      } else {
        EXPECT_LE(std::abs(got - exact), std::numeric_limits<float>::min()) << left << " " << right;
      }
      EXPECT_EQ(take_back(0.0F, a.factor, b.factor), 0.0F) << left << " " << right;
    }
  }
}

}  // namespace
}  // namespace tessera::cuda::fp32
