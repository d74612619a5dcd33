#include "core/task_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

#include "core/tiling.h"

namespace tessera::core {
namespace {

constexpr Band kCausal{kUnbounded, 0, 0};

TEST(TileOrder, FollowsTheGrowthOfTheBand) {
  EXPECT_EQ(tile_order({}, 100, 100), TileOrder::plain);
  EXPECT_EQ(tile_order(kCausal, 100, 100), TileOrder::descending);
  EXPECT_EQ(tile_order(kCausal.transposed(), 100, 100),
            TileOrder::ascending);  // keys: the first are seen most
  EXPECT_EQ(tile_order({kUnbounded, 0, 100}, 100, 200), TileOrder::descending);
  EXPECT_EQ(tile_order({0, kUnbounded, 0}, 100, 100), TileOrder::ascending);
  EXPECT_EQ(tile_order({10, 0, 0}, 100, 100), TileOrder::descending);  // a window grows at the start only
  EXPECT_EQ(tile_order({0, 10, 0}, 100, 100), TileOrder::ascending);
}

TEST(TileOrder, IsPlainWhereAllRowsSeeEquallyMuch) {
  EXPECT_EQ(tile_order({kUnbounded, 0, 1000}, 100, 200),
            TileOrder::plain);                                    // everything is before the diagonal
  EXPECT_EQ(tile_order({5, 5, 50}, 100, 200), TileOrder::plain);  // the window stays inside
  EXPECT_EQ(tile_order({1000, 1000, 0}, 100, 100), TileOrder::plain);
  EXPECT_EQ(tile_order(kCausal, 1, 100), TileOrder::plain);
  EXPECT_EQ(tile_order(kCausal, 100, 0), TileOrder::plain);
}

TEST(TaskOrder, IsABijection) {
  for (const TileOrder order : {TileOrder::plain, TileOrder::ascending, TileOrder::descending}) {
    for (const std::int64_t sequences : {0, 1, 3}) {
      for (const std::int64_t heads : {1, 2, 5}) {
        for (const std::int64_t tiles : {0, 1, 4, 7}) {
          for (const std::int64_t together : {0, 1, 2, 4, 100}) {
            const TaskOrder tasks{sequences, heads, tiles, order, together};
            ASSERT_EQ(tasks.count(), sequences * heads * tiles);
            std::vector<int> seen(static_cast<std::size_t>(tasks.count()), 0);
            for (std::int64_t t = 0; t < tasks.count(); ++t) {
              const Task task = tasks[t];
              ASSERT_TRUE(task.sequence >= 0 && task.sequence < sequences);
              ASSERT_TRUE(task.head >= 0 && task.head < heads);
              ASSERT_TRUE(task.tile >= 0 && task.tile < tiles);
              ++seen[(task.sequence * heads + task.head) * tiles + task.tile];
            }
            for (const int times : seen) ASSERT_EQ(times, 1);
          }
        }
      }
    }
  }
}

TEST(TaskOrder, HeadsThatShareKeysAreNeighbours) {
  const TaskOrder plain{2, 4, 3, TileOrder::plain, 0};
  EXPECT_EQ(plain[0].head, plain[2].head);  // all tiles of a head, then the next head
  EXPECT_EQ(plain[3].head, 1);
  EXPECT_EQ(plain[12].sequence, 1);
  const TaskOrder balanced{2, 4, 3, TileOrder::descending, 0};
  for (std::int64_t t = 0; t < 8; ++t) {  // the last tile of every head first
    EXPECT_EQ(balanced[t].tile, 2);
    EXPECT_EQ(balanced[t].head, t % 4);
    EXPECT_EQ(balanced[t].sequence, t / 4);
  }
  const TaskOrder sections{2, 4, 3, TileOrder::descending, 2};
  for (std::int64_t t = 0; t < 6; ++t) {  // two heads through all their tiles, then the next two
    EXPECT_EQ(sections[t].head, t % 2);
    EXPECT_EQ(sections[t].tile, 2 - t / 2);
  }
  EXPECT_EQ(sections[6].head, 2);
}

// A call under a band: heads with tiles of queries, each worth what it sees.
struct Shape {
  std::int64_t heads, length, tile;
  Band band;

  std::int64_t tiles() const { return Tiling{length, tile, 0}.count(); }
  double work(const Task& task) const {
    const Interval rows = Tiling{length, tile, 0}[task.tile];
    Band band_of_tile = band;
    band_of_tile.diagonal += rows.begin;
    return visible_pairs(band_of_tile, rows.length(), length);
  }
};

// When the last of `workers` is done, each taking the next task as soon as it is free.
double makespan(const Shape& shape, const TaskOrder& tasks, int workers) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int w = 0; w < workers; ++w) free_at.push(0);
  double end = 0;
  for (std::int64_t t = 0; t < tasks.count(); ++t) {
    const double done = free_at.top() + shape.work(tasks[t]);
    free_at.pop();
    free_at.push(done);
    end = std::max(end, done);
  }
  return end;
}

TEST(TaskOrder, BalancesCausalWork) {
  double worst_of_few = 0, worst_of_many = 0;  // at least 2 and 4 tasks per worker
  for (const std::int64_t heads : {1, 2, 3, 8, 16}) {
    for (const std::int64_t length : {512, 1000, 2048, 4096}) {
      for (const int workers : {2, 3, 4, 7, 8, 16, 32}) {
        for (const Band& band : {kCausal, Band{0, kUnbounded, 0}, Band{300, 0, 0}}) {
          const Shape shape{heads, length, 64, band};
          const TileOrder order = tile_order(band, length, length);
          ASSERT_NE(order, TileOrder::plain);
          const TileOrder opposite =
              order == TileOrder::descending ? TileOrder::ascending : TileOrder::descending;
          const TaskOrder tasks{1, heads, shape.tiles(), order, 0};
          const double total = visible_pairs(band, length, length) * static_cast<double>(heads);
          const double ideal = std::max(total / workers, shape.work(tasks[0]));
          const double ours = makespan(shape, tasks, workers);
          EXPECT_LE(ours, makespan(shape, {1, heads, shape.tiles(), opposite, 0}, workers));
          // The tiles of a window are nearly equal: no order helps where they do not come out even.
          if (band.left != kUnbounded && band.right != kUnbounded) continue;
          if (tasks.count() >= 2 * workers) worst_of_few = std::max(worst_of_few, ours / ideal);
          if (tasks.count() >= 4 * workers) worst_of_many = std::max(worst_of_many, ours / ideal);
        }
      }
    }
  }
  EXPECT_LE(worst_of_few, 1.12);
  EXPECT_LE(worst_of_many, 1.05);
}

TEST(TaskOrder, IsClearlyBetterThanTheOtherWayRound) {
  const Shape shape{3, 2048, 64, kCausal};  // 96 tasks for 32 workers
  const double ours = makespan(shape, {1, 3, 32, TileOrder::descending, 0}, 32);
  EXPECT_LT(ours * 1.2, makespan(shape, {1, 3, 32, TileOrder::ascending, 0}, 32));
  EXPECT_LT(ours * 1.2, makespan(shape, {1, 3, 32, TileOrder::plain, 0}, 32));
}

TEST(TaskOrder, SectionsStayBalancedWhileTheyHoldEnoughHeads) {
  const Shape shape{64, 2048, 128, kCausal};
  const double total = visible_pairs(kCausal, 2048, 2048) * 64;
  for (const std::int64_t together : {8, 16, 32}) {
    EXPECT_LE(makespan(shape, {1, 64, 16, TileOrder::descending, together}, 8), 1.05 * total / 8);
  }
}

}  // namespace
}  // namespace tessera::core
