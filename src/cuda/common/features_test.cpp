#include "cuda/common/features.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/base/float16.h"
#include "core/philox.h"

namespace tessera::cuda {
namespace {

// ptx::at_least_or_nan for one half, by the definition of fp16.
bool at_least_or_nan(std::uint32_t a, std::uint32_t b) {
  const auto x = core::to_float(core::Half{static_cast<std::uint16_t>(a)});
  const auto y = core::to_float(core::Half{static_cast<std::uint16_t>(b)});
  return std::isnan(x) || std::isnan(y) || x >= y;
}

// Every random number, for thresholds from "keep all" to "drop all" and on both sides of where fp16's infinity lies.
TEST(DropoutComparison, KeepsWhatReachesTheThreshold) {
  for (const std::uint32_t threshold : {0U, 1U, 3277U, 0x3FFFU, 0x4000U, 0x4001U, 0x7BFFU, 0x7C00U, 0x7C01U,
                                        0x7D71U, 0x7FFEU, 0x7FFFU, 0x8000U}) {
    const DropoutComparison comparison = DropoutComparison::of(threshold);
    for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
      const std::uint32_t word = bits << 16 | (bits ^ 0x5A5A);
      const std::uint32_t operand = comparison.operand(word);
      for (int half = 0; half < 2; ++half) {
        const bool reached = at_least_or_nan(operand >> (16 * half) & 0xFFFF, comparison.limit & 0xFFFF);
        const bool inverted = (comparison.invert & 1) != 0;
        ASSERT_EQ(reached != inverted, core::dropout_half(word, half) >= threshold)
            << threshold << ' ' << word << ' ' << half;
      }
    }
    EXPECT_EQ(comparison.limit >> 16, comparison.limit & 0xFFFF);
    EXPECT_TRUE(comparison.invert == 0 || comparison.invert == ~0U);
  }
}

}  // namespace
}  // namespace tessera::cuda
