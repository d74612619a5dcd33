#include "cuda/common/dropout_columns.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace tessera::cuda {
namespace {

TEST(DropoutColumns, GiveTheCallsOfEveryRow) {
  for (const std::uint64_t seed : {0UL, 42UL, ~0UL}) {
    const core::DropoutStream stream = core::dropout_stream(seed, 7, 1, 2);
    for (const std::int64_t group : {0L, 3L, 99999L, (1L << 32) - 5}) {
      for (int pair = 0; pair < 4; ++pair) {
        const DropoutColumns columns = dropout_columns(stream, group, pair);
        for (const std::int64_t row : {0L, 1L, 77L, 1L << 31, (1L << 32) - 1}) {
          const core::PhiloxBlock whole = core::dropout_call(stream, row, group, pair);
          const core::PhiloxBlock shared = dropout_call(stream, columns, row);
          for (int m = 0; m < 4; ++m) EXPECT_EQ(shared.word[m], whole.word[m]) << "word " << m;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cuda
