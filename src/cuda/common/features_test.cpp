#include "cuda/common/features.h"

#include <gtest/gtest.h>

#include <array>
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

// Every random number, for thresholds from "keep all" to "drop all" and on both sides of where
// fp16's infinity lies.
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

// All lanes of a warp, 32 keys x 32 queries, against the definition for single elements.
TEST(DropoutLanes, LanesExchangeTheBitsOfTheirKeys) {
  constexpr std::uint32_t kThreshold = 1 << 13;
  constexpr std::int64_t kRow = 77, kColumn = 96;  // of the first query and key
  const core::DropoutStream stream = core::dropout_stream(5, 6, 7, 8);
  auto kept_halves = [](std::uint32_t word) {
    return (core::dropout_half(word, 0) >= kThreshold ? 0xFFFFU : 0U) |
           (core::dropout_half(word, 1) >= kThreshold ? 0xFFFF0000U : 0U);
  };
  std::array<std::uint32_t, 32> drawn{};
  for (int lane = 0; lane < 32; ++lane) {
    const core::DropoutColumns columns =
        core::dropout_columns(stream, kColumn / core::kDropoutGroup, drawn_pair(lane));
    for (int j = 0; j < 4; ++j) {
      drawn[lane] |=
          drawn_bits(core::dropout_call(stream, columns, kRow + 8 * j + drawn_query(lane)), j, kept_halves);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const std::uint32_t bits = exchanged_bits(lane, drawn[lane], drawn[lane ^ 4]);
    for (int x = 0; x < 2; ++x) {
      for (int j = 0; j < 4; ++j) {
        for (int r = 0; r < 4; ++r) {
          const std::int64_t query = kRow + 8 * j + lane % 4 * 2 + x, key = kColumn + lane / 4 + 8 * r;
          EXPECT_EQ(bits >> kept_bit(x, j, r) & 1,
                    core::dropout_bits(stream, query, key) >= kThreshold ? 1U : 0U)
              << "lane " << lane << ", query " << query << ", key " << key;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cuda
