#include "cuda/sm90/forward/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <tuple>
#include <vector>

namespace tessera::cuda::sm90::forward {
namespace {

using core::TileOrder;

constexpr int kWorkers = 132;

TEST(HopperSchedule, TakesEveryTileOnce) {
  for (const TileOrder order : {TileOrder::plain, TileOrder::ascending, TileOrder::descending}) {
    for (const std::int64_t sequences : {1, 3, 32}) {
      for (const std::int64_t heads : {1, 5, 16}) {
        for (const std::int64_t tiles : {1, 4, 7, 128, 300}) {
          const Schedule schedule(sequences, heads, tiles, order, kWorkers);
          ASSERT_EQ(schedule.count(), sequences * heads * tiles);
          std::vector<int> seen(schedule.count(), 0);
          for (std::uint32_t i = 0; i < schedule.count(); ++i) {
            const TileIndex at = schedule[i];
            ASSERT_TRUE(at.sequence < sequences && at.head < heads && at.tile < tiles);
            ++seen[(at.sequence * heads + at.head) * tiles + at.tile];
          }
          for (const int times : seen) ASSERT_EQ(times, 1);
        }
      }
    }
  }
  EXPECT_EQ(Schedule(0, 8, 4, TileOrder::descending, kWorkers).count(), 0U);
  EXPECT_EQ(Schedule(2, 8, 0, TileOrder::plain, kWorkers).count(), 0U);
}

// Workers that take tiles as they become free finish at almost the same time. Causal, 16384 tokens,
// 2048 columns.
TEST(HopperSchedule, EndsEvenly) {
  for (const auto& [dim, block_q, block_k] :
       {std::tuple{64, 256, 64}, {64, 192, 96}, {128, 128, 128}, {256, 128, 64}}) {
    for (const int length : {512, 1024, 2048, 4096, 8192, 16384}) {
      const int tiles = (length + block_q - 1) / block_q;
      const Schedule schedule(16384 / length, 2048 / dim, tiles, TileOrder::descending, kWorkers);
      std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
      for (int w = 0; w < kWorkers; ++w) free_at.push(0);
      double all = 0, last = 0, longest = 0;
      for (std::uint32_t i = 0; i < schedule.count(); ++i) {
        const int first = static_cast<int>(schedule[i].tile) * block_q;
        const int end = first + block_q < length ? first + block_q : length;
        const Steps steps = visible_steps(first, end - 1, {-(1 << 30), 0}, length, block_k);
        const double time = steps.top - steps.bottom + 1 + 128.0 / block_k;  // + the change
        longest = std::max(longest, time);
        const double begin = free_at.top();
        free_at.pop();
        free_at.push(begin + time);
        last = std::max(last, begin + time);
        all += time;
      }
      EXPECT_LE(last, std::max(1.10 * all / kWorkers, longest) + 128.0 / block_k)
          << dim << " " << block_q << " " << length;
    }
  }
}

// The keys that the last row of a tile may see.
int keys_of(const PackedLengths& lengths, const TileIndex& at, int block_q) {
  return std::min(lengths.k, (static_cast<int>(at.tile) + 1) * block_q + lengths.high);
}

template <PackedOrder Order>
void takes_every_tile_once(bool causal) {
  constexpr int kBlockQ = 128, kFar = 1 << 30;
  std::mt19937 random(1);
  for (const int heads : {1, 5, 16}) {
    for (const int sequences : {1, 3, 40}) {
      std::vector<PackedLengths> lengths;
      std::int64_t tokens = 0;
      for (int i = 0; i < sequences; ++i) {
        // Also the borders of passes.
        constexpr int kKeys[] = {0, 1, 281, 300, 562, 2250, 4500, 9000};
        const int q = static_cast<int>(random() % 3 == 0 ? 0 : random() % 3000), k = kKeys[random() % 8];
        const int highs[] = {0, k - q, -kFar};
        lengths.push_back({q, k, causal ? highs[random() % 3] : kFar});
        tokens += q;
      }
      auto length = [&](int i) { return lengths[static_cast<std::size_t>(i)]; };
      std::vector<int> order;
      std::int64_t expected = 0;
      for (const PackedLengths& l : lengths) expected += heads * ((l.q + kBlockQ - 1) / kBlockQ);
      std::map<std::tuple<unsigned, unsigned, unsigned>, int> seen;
      PackedTiles<Order> walk(sequences, heads, kBlockQ, 9000);
      TileIndex at;
      unsigned index = 0;
      for (; walk.find(index, length, at); ++index) {
        ASSERT_TRUE(at.sequence < lengths.size() && at.head < static_cast<unsigned>(heads));
        ASSERT_LT(static_cast<int>(at.tile) * kBlockQ, lengths[at.sequence].q);
        ++seen[{at.sequence, at.head, at.tile}];
        const PackedLengths& l = lengths[at.sequence];
        order.push_back(Order == PackedOrder::tiles ? keys_of(l, at, kBlockQ) : l.k);
        // A search that begins at this tile finds the same.
        TileIndex again;
        ASSERT_TRUE(PackedTiles<Order>(sequences, heads, kBlockQ, 9000).find(index, length, again));
        ASSERT_TRUE(again.sequence == at.sequence && again.head == at.head && again.tile == at.tile);
      }
      EXPECT_EQ(static_cast<std::int64_t>(index), expected);
      EXPECT_EQ(static_cast<std::int64_t>(seen.size()), expected);
      EXPECT_LE(expected, most_packed_tiles(sequences, heads, tokens, kBlockQ));
      EXPECT_FALSE(walk.find(index + 7, length, at));
      const int unsorted = Order == PackedOrder::tiles ? 281 : 563;
      for (std::size_t i = 1; i < order.size(); ++i)
        EXPECT_TRUE(order[i - 1] * 2 >= order[i] || order[i] <= unsorted) << order[i - 1] << " " << order[i];
    }
  }
}

TEST(HopperPackedTiles, TakesEveryTileOnceAndLongSequencesFirst) {
  takes_every_tile_once<PackedOrder::sequences>(false);
  takes_every_tile_once<PackedOrder::sequences>(true);
}

TEST(HopperPackedTiles, TakesEveryTileOnceAndLongOnesFirst) {
  takes_every_tile_once<PackedOrder::tiles>(false);
  takes_every_tile_once<PackedOrder::tiles>(true);
}

// When the last worker finishes, relative to the mean. Each takes a tile when it has finished the
// one before. Causal, 2048 columns.
template <PackedOrder Order>
double end_of(const std::vector<int>& batch, int dim, int block_q, int block_k) {
  auto length = [&](int i) {
    const int n = batch[static_cast<std::size_t>(i)];
    return PackedLengths{n, n, 0};
  };
  const int longest = *std::max_element(batch.begin(), batch.end());
  PackedTiles<Order> walk(static_cast<int>(batch.size()), 2048 / dim, block_q, longest);
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int w = 0; w < kWorkers; ++w) free_at.push(0);
  double all = 0, last = 0;
  TileIndex at;
  for (unsigned i = 0; walk.find(i, length, at); ++i) {
    const int steps = (keys_of(length(static_cast<int>(at.sequence)), at, block_q) - 1) / block_k + 1;
    const double time = steps + 1.5 * 128 / block_k;  // + the change
    const double begin = free_at.top();
    free_at.pop();
    free_at.push(begin + time);
    last = std::max(last, begin + time), all += time;
  }
  return last / (all / kWorkers);
}

TEST(HopperPackedTiles, LongOnesFirstEndEvenly) {
  std::vector<std::vector<int>> batches = {
      {4096, 2048, 1024, 1024, 1024, 1024, 777, 777, 777, 777, 512, 512, 512, 512, 432, 300, 128, 128},
      {300, 4096, 777, 2048, 128, 1355, 1024, 4096, 512, 2048}};
  for (const int length : {512, 1024, 2048, 4096})
    batches.emplace_back(static_cast<std::size_t>(16384 / length), length);
  for (const auto& [dim, block_q, block_k] : {std::tuple{64, 256, 64}, {128, 128, 128}, {256, 128, 64}}) {
    for (const std::vector<int>& batch : batches) {
      const double tiles = end_of<PackedOrder::tiles>(batch, dim, block_q, block_k);
      const double sequences = end_of<PackedOrder::sequences>(batch, dim, block_q, block_k);
      EXPECT_LE(tiles, 1.06) << dim << ", " << batch.size() << " sequences";
      EXPECT_LE(tiles, sequences + 0.01) << dim << ", " << batch.size() << " sequences";
    }
  }
}

TEST(HopperSteps, OfAGroupAreItsOwn) {
  const Diagonals d{-100, 20};
  const Steps tile = visible_steps(0, 255, d, 500, 64);
  for (int group = 0; group < 4; ++group) {
    const int first = group * 64, last = first + 63;
    const GroupSteps steps = group_steps(tile, first, last, d, 500, 64, 1, 2);
    const Steps own = own_steps(tile, visible_steps(first, last, d, 500, 64), 1, 2);
    const WholeSteps whole = whole_steps(first, last, d, 500, 64);
    EXPECT_TRUE(steps.top == own.top && steps.bottom == own.bottom);
    EXPECT_TRUE(steps.whole_begin == whole.begin && steps.whole_end == whole.end);
    EXPECT_TRUE(steps.above == tile.top - own.top && steps.below == own.bottom - tile.bottom);
  }
}

// Compares with the definition, element by element.
TEST(HopperSteps, CoverWhatIsVisible) {
  for (const int width : {64, 96, 128}) {
    for (const int keys : {1, 63, 64, 200, 500}) {
      for (const Diagonals d : {Diagonals{-(1 << 30), 1 << 30},
                                {-(1 << 30), 0},
                                {-(1 << 30), 130},
                                {-(1 << 30), -70},
                                {-100, 20},
                                {0, 0},
                                {400, 1 << 30},
                                {-3, 200}}) {
        for (int first = 0; first < 600; first += 64) {
          const int last = first + 63;
          const Steps steps = visible_steps(first, last, d, keys, width);
          const WholeSteps whole = whole_steps(first, last, d, keys, width);
          ASSERT_TRUE(steps.bottom >= 0 && steps.top >= steps.bottom);
          for (int step = 0; step * width < keys + width; ++step) {
            bool any = false, all = true;
            for (int key = step * width; key < (step + 1) * width; ++key) {
              for (int row = first; row <= last; ++row) {
                const bool seen = key < keys && key >= row + d.low && key <= row + d.high;
                any = any || seen, all = all && seen;
              }
            }
            if (any) {
              ASSERT_TRUE(step >= steps.bottom && step <= steps.top);
            }
            ASSERT_EQ(step >= whole.begin && step < whole.end, all) << step << " of " << width;
          }
        }
      }
    }
  }
}

TEST(HopperSteps, OwnStepsAreWhatIsSeenWithinBounds) {
  for (int tile_bottom = 0; tile_bottom < 4; ++tile_bottom) {
    for (int tile_top = tile_bottom; tile_top < 8; ++tile_top) {
      for (int bottom = 0; bottom < 9; ++bottom) {
        for (int top = bottom; top < 10; ++top) {
          for (const auto& [above, below] : {std::pair{0, 3}, {1, 0}, {2, 1}, {3, 0}}) {
            const Steps own = own_steps({tile_top, tile_bottom}, {top, bottom}, above, below);
            ASSERT_TRUE(own.bottom <= own.top && own.bottom >= tile_bottom && own.top <= tile_top);
            ASSERT_TRUE(tile_top - own.top <= above && own.bottom - tile_bottom <= below);
            for (int step = std::max(bottom, tile_bottom); step <= std::min(top, tile_top); ++step) {
              ASSERT_TRUE(step >= own.bottom && step <= own.top);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cuda::sm90::forward
