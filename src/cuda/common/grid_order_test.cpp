// The GPU's arithmetic finds the tasks of core/task_order.h.
#include "cuda/common/grid_order.h"

#include <gtest/gtest.h>

namespace tessera::cuda {
namespace {

TEST(Divider, DividesEveryNumberBelowTwoToThe31) {
  for (const std::uint32_t d : {1U, 2U, 3U, 5U, 7U, 12U, 64U, 641U, 65535U, 65537U, 6700417U, 0x7FFFFFFFU}) {
    const Divider divider(d);
    for (std::uint64_t n = 0; n < 1000; ++n)
      ASSERT_EQ(divider.quotient(static_cast<std::uint32_t>(n)), n / d);
    for (std::uint64_t multiple = d; multiple < (std::uint64_t{1} << 31); multiple += d * 1009ULL) {
      for (const std::uint64_t n : {multiple - 1, multiple, multiple + 1}) {
        if (n >> 31 != 0) continue;
        ASSERT_EQ(divider.quotient(static_cast<std::uint32_t>(n)), n / d) << n << " / " << d;
        ASSERT_EQ(divider.remainder(static_cast<std::uint32_t>(n)), n % d);
      }
    }
    EXPECT_EQ(divider.quotient(0x7FFFFFFF), 0x7FFFFFFFU / d);
  }
}

TEST(GridOrder, IsTheTaskOrder) {
  for (const core::TileOrder order : {core::TileOrder::ascending, core::TileOrder::descending}) {
    for (const std::int64_t sequences : {1, 2, 5}) {
      for (const std::int64_t heads : {1, 3, 8}) {
        for (const std::int64_t tiles : {1, 2, 7, 33}) {
          for (const std::int64_t together : {0, 1, 4, 7, 100}) {
            const core::TaskOrder tasks{sequences, heads, tiles, order, together};
            const GridOrder grid(tasks);
            for (std::int64_t i = 0; i < tasks.count(); ++i) {
              const core::BasicTask<std::uint32_t> task = grid[static_cast<std::uint32_t>(i)];
              ASSERT_EQ(task.sequence, tasks[i].sequence);
              ASSERT_EQ(task.head, tasks[i].head);
              ASSERT_EQ(task.tile, tasks[i].tile);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cuda
