// Philox calls of several rows of the same columns, cheaper than one by one (core/philox.h).
#pragma once

#include <cstdint>

#include "core/base/host_device.h"
#include "core/philox.h"

namespace tessera::cuda {

// What the calls of one column group and pair share for every row. The row is one word of the
// counter, and it takes two rounds to reach all four words. A caller that needs several rows of the
// same columns saves almost a third.
struct DropoutColumns {
  std::uint32_t second2;                 // enters word 2 of the second round
  std::uint32_t third0, third2, third3;  // enter words 0, 2 and 3 of the third
};

TESSERA_HD constexpr DropoutColumns dropout_columns(const core::DropoutStream& stream,
                                                    std::int64_t column_group, int pair) {
  static_assert(core::kPhiloxRounds > 3);
  const core::PhiloxBlock first = core::philox_round(
      {{static_cast<std::uint32_t>(column_group * 4 + pair), 0, stream.high0, stream.high1}}, stream.key0,
      stream.key1, 0);  // words 1, 2, 3 are right
  const core::PhiloxBlock second = core::philox_round({{0, first.word[1], first.word[2], first.word[3]}},
                                                      stream.key0, stream.key1, 1);  // 0 and 1
  const core::PhiloxBlock third =
      core::philox_round({{second.word[0], second.word[1], 0, 0}}, stream.key0, stream.key1, 2);
  return {second.word[2], third.word[0], third.word[2], third.word[3]};
}

// The call for one row of these columns: core::dropout_call(stream, row, column_group, pair).
TESSERA_HD constexpr core::PhiloxBlock dropout_call(const core::DropoutStream& stream,
                                                    const DropoutColumns& columns, std::int64_t row) {
  const core::PhiloxBlock first = core::philox_round({{0, static_cast<std::uint32_t>(row), stream.high0, 0}},
                                                     stream.key0, stream.key1, 0);  // word 0 is right
  const std::uint64_t product0 = std::uint64_t{core::kPhiloxMultiplier0} * first.word[0];
  const std::uint32_t second2 = static_cast<std::uint32_t>(product0 >> 32) ^ columns.second2;
  const std::uint64_t product1 = std::uint64_t{core::kPhiloxMultiplier1} * second2;
  core::PhiloxBlock block{{static_cast<std::uint32_t>(product1 >> 32) ^ columns.third0,
                           static_cast<std::uint32_t>(product1),
                           static_cast<std::uint32_t>(product0) ^ columns.third2, columns.third3}};
  for (int round = 3; round < core::kPhiloxRounds; ++round)
    block = core::philox_round(block, stream.key0, stream.key1, round);
  return block;
}

}  // namespace tessera::cuda
