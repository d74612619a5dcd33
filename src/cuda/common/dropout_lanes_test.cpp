#include "cuda/common/dropout_lanes.h"

#include <gtest/gtest.h>

#include <array>

namespace tessera::cuda::flash2 {
namespace {

// All lanes of a warp, 32 keys x 32 queries, against the definition of single elements.
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
    const DropoutColumns columns = dropout_columns(stream, kColumn / core::kDropoutGroup, drawn_pair(lane));
    for (int j = 0; j < 4; ++j) {
      drawn[lane] |=
          drawn_bits(dropout_call(stream, columns, kRow + 8 * j + drawn_query(lane)), j, kept_halves);
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
}  // namespace tessera::cuda::flash2
