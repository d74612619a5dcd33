#include "core/cost.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <vector>

#include "core/test_problems.h"

namespace tessera::core {
namespace {

constexpr Algorithm kAlgorithms[] = {Algorithm::standard, Algorithm::flash1,  Algorithm::flash2,
                                     Algorithm::flash3,   Algorithm::minimal, Algorithm::automatic};

Problem square(std::int64_t length, std::int64_t heads = 1, std::int64_t dim = 64) {
  Problem p;
  p.batch = 1;
  p.q_length = p.k_length = p.q_tokens = p.k_tokens = length;
  p.q_heads = p.kv_heads = heads;
  p.qk_dim = p.v_dim = dim;
  p.has_lse = true;
  return p;
}

Problem backward(Problem p) {
  p.direction = Direction::backward;
  p.has_grad_q = p.has_grad_k = p.has_grad_v = true;
  return p;
}

// Everything the model counts, by enumeration of pairs.
struct Counted {
  double pairs = 0, area = 0, key_loads = 0, query_loads = 0, visited = 0;
};

Counted enumerate(const TestProblem& test, std::int64_t block_q, std::int64_t block_k) {
  Counted counted;
  const Problem& p = test.p;
  for (std::int64_t index = 0; index < p.batch; ++index) {
    const Sequence s = sequence(p, index);
    for (std::int64_t head = 0; head < p.q_heads; ++head) {
      auto sees = [&](std::int64_t i, std::int64_t j) { return test.visible(s, head, i, j); };
      for (std::int64_t i = 0; i < s.q_length; ++i) {
        for (std::int64_t j = 0; j < s.k_length; ++j) {
          counted.area += 1;
          counted.pairs += sees(i, j) ? 1 : 0;
        }
      }
      const Tiling q_tiles{s.q_length, block_q, p.blocks.block_q};
      for (std::int64_t t = 0; t < q_tiles.count(); ++t) {
        const Interval rows = q_tiles[t];
        for (std::int64_t j = 0; j < s.k_length; ++j) {
          bool any = false;
          for (std::int64_t i = rows.begin; i < rows.end; ++i) any |= sees(i, j);
          counted.key_loads += any ? 1 : 0;
          counted.visited += any ? static_cast<double>(rows.end - rows.begin) : 0;
        }
      }
      const Tiling k_tiles{s.k_length, block_k, p.blocks.block_k};
      for (std::int64_t t = 0; t < k_tiles.count(); ++t) {
        const Interval columns = k_tiles[t];
        for (std::int64_t i = 0; i < s.q_length; ++i) {
          bool any = false;
          for (std::int64_t j = columns.begin; j < columns.end; ++j) any |= sees(i, j);
          counted.query_loads += any ? 1 : 0;
        }
      }
    }
  }
  return counted;
}

TEST(Cost, EqualsWhatEnumerationCounts) {
  std::mt19937 random(1);
  for (int repeat = 0; repeat < 300; ++repeat) {
    const auto test = random_problem(random);
    Problem& p = test->p;
    SCOPED_TRACE(testing::Message() << "case " << repeat);
    const std::int64_t block_q = draw(random, 1, 12), block_k = draw(random, 1, 12);
    const Counted counted = enumerate(*test, block_q, block_k);
    const double rows = static_cast<double>(p.q_tokens * p.q_heads);
    const double keys = static_cast<double>(p.k_tokens * p.kv_heads);
    const double d = static_cast<double>(p.qk_dim), e = static_cast<double>(p.v_dim);
    p.dtype = DType::fp16;  // elements of 2 bytes, accumulators of 4
    const double minimum = rows * (d + e) * 2 + keys * (d + e) * 2;

    const Cost flash2 = cost(p, Algorithm::flash2, block_q, block_k, 0);
    ASSERT_EQ(flash2.visible_pairs, counted.pairs);
    ASSERT_EQ(flash2.minimum_bytes, minimum);
    ASSERT_EQ(flash2.traffic_bytes, rows * (d + e) * 2 + std::max(keys, counted.key_loads) * (d + e) * 2);
    const Cost flash1 = cost(p, Algorithm::flash1, block_q, block_k, 0);
    ASSERT_EQ(
        flash1.traffic_bytes,
        keys * (d + e) * 2 + std::max(rows * (d + e) * 2, counted.query_loads * (d * 2 + 2 * (e + 2) * 4)));
    ASSERT_EQ(flash1.extra_bytes, rows * (e + 2) * 4);
    const Cost standard = cost(p, Algorithm::standard, block_q, block_k, 0);
    ASSERT_EQ(standard.traffic_bytes, minimum + counted.area * 4 * 4);
    ASSERT_EQ(standard.extra_bytes, counted.area * 4);

    p.has_bias = true;  // of the element type, over rows and keys, shared by batch and heads
    p.bias_dtype = DType::fp16;
    p.bias_rows = p.q_length;
    const double bias = static_cast<double>(p.q_length * p.k_length) * 2;
    ASSERT_EQ(cost(p, Algorithm::flash2, block_q, block_k, 0).traffic_bytes,
              flash2.traffic_bytes + std::max(bias, counted.visited * 2));
  }
}

TEST(Cost, FlopsFollowTheConventionOfFlashAttention) {
  Problem p = square(1024, 16, 64);
  p.batch = 2;
  p.q_tokens = p.k_tokens = 2048;
  const double full = 4.0 * 2 * 16 * 1024 * 1024 * 64;
  EXPECT_EQ(cost(p, Algorithm::flash2, 128, 128, 0).flops, full);
  EXPECT_EQ(cost(backward(p), Algorithm::flash2, 128, 128, 0).flops, 2.5 * full);
  p.right = 0;
  EXPECT_EQ(cost(p, Algorithm::flash2, 128, 128, 0).flops, full / 2);
  EXPECT_EQ(cost(p, Algorithm::standard, 0, 0, 0).flops, full / 2);
  EXPECT_EQ(cost(p, Algorithm::flash2, 128, 128, 0).visible_pairs, 2 * 16 * 1024 * 1025 / 2.0);
  p.left = 127;  // not plain causal: the pairs themselves
  const Cost window = cost(p, Algorithm::flash2, 128, 128, 0);
  EXPECT_EQ(window.flops, 4 * 64 * window.visible_pairs);
}

TEST(Cost, MinimumNeverExceedsTraffic) {
  std::mt19937 random(2);
  for (int repeat = 0; repeat < 400; ++repeat) {
    const auto test = random_problem(random);
    Problem& p = test->p;
    p.dtype = static_cast<DType>(random() % 4);
    auto coin = [&] { return draw(random, 0, 1) == 1; };
    if (coin()) p.direction = Direction::backward;
    p.has_lse = coin();
    p.has_grad_lse = coin();
    p.has_grad_q = coin();
    p.has_grad_k = coin();
    p.has_grad_v = coin();
    p.has_bias = coin();
    p.has_grad_bias = p.has_bias && coin();
    if (coin()) p.bias_batch = p.batch;
    if (coin()) p.bias_heads = p.q_heads;
    if (coin()) p.bias_rows = p.q_length;
    p.dropout = coin();
    for (const double fast : {0.0, 1e3, 1e4, 1e9}) {
      for (const Algorithm algorithm : kAlgorithms) {
        const Cost c = cost(p, algorithm, draw(random, 1, 16), draw(random, 1, 16), fast);
        ASSERT_GT(c.minimum_bytes, 0);
        ASSERT_GE(c.traffic_bytes, c.minimum_bytes) << name(algorithm) << " case " << repeat;
      }
    }
  }
}

TEST(Cost, SmallerMasksMoveLess) {
  for (const Problem& start : {square(4096, 2), backward(square(4096, 2))}) {
    for (const Algorithm algorithm : {Algorithm::flash1, Algorithm::flash2}) {
      Problem p = start;
      double before = cost(p, algorithm, 128, 128, 0).traffic_bytes;
      p.right = 0;
      for (const std::int64_t left : {-1, 2048, 1024, 512, 256}) {
        p.left = left;
        const double now = cost(p, algorithm, 128, 128, 0).traffic_bytes;
        EXPECT_LT(now, before) << name(algorithm) << " window " << left;
        before = now;
      }
      p = start;
      before = cost(p, algorithm, 128, 128, 0).traffic_bytes;
      for (const double density : {0.5, 0.25, 0.125}) {
        const BlockMask blocks = BlockMask::random({4096, 4096, 128, 128, 1}, density);
        p.blocks = view(blocks);
        const double now = cost(p, algorithm, 128, 128, 0).traffic_bytes;
        EXPECT_LT(now, before) << name(algorithm) << " density " << density;
        before = now;
      }
    }
    Problem causal = start;
    causal.right = 0;  // the matrix of the standard algorithm is there whatever the mask
    EXPECT_EQ(cost(causal, Algorithm::standard, 0, 0, 0).traffic_bytes,
              cost(start, Algorithm::standard, 0, 0, 0).traffic_bytes);
  }
}

TEST(Cost, LargerTilesMoveLessUntilEverythingFits) {
  for (const Problem& p : {square(8192), backward(square(8192))}) {
    for (const Algorithm algorithm : {Algorithm::flash1, Algorithm::flash2}) {
      double before = 1e300;
      for (std::int64_t tile = 16; tile < 8192; tile *= 2) {
        const double now = cost(p, algorithm, tile, tile, 0).traffic_bytes;
        EXPECT_LT(now, before) << name(algorithm) << " tile " << tile;
        before = now;
      }
      const Cost fits = cost(p, algorithm, 64, 64, 1e12);
      EXPECT_LE(fits.traffic_bytes, before);
      EXPECT_LE(fits.traffic_bytes, 1.3 * fits.minimum_bytes);
      EXPECT_EQ(fits.traffic_bytes, cost(p, algorithm, 512, 512, 1e12).traffic_bytes);
    }
  }
}

TEST(Cost, AWindowThatFitsIsReadOnce) {
  Problem p = square(100000);
  p.left = 256;
  p.right = 0;
  const Cost c = cost(p, Algorithm::flash2, 64, 64, 1 << 20);  // 320 keys are live, of 25 MB of K
  EXPECT_EQ(c.traffic_bytes, c.minimum_bytes);
}

// The growth that the papers prove: standard with N^2, flash2 with N^2 d^2 / M, memory with N.
TEST(Cost, GrowsAsThePapersSay) {
  auto ratio = [](Algorithm algorithm, auto member) {
    return cost(square(65536), algorithm, 128, 128, 0).*member /
           (cost(square(32768), algorithm, 128, 128, 0).*member);
  };
  EXPECT_NEAR(ratio(Algorithm::standard, &Cost::traffic_bytes), 4, 0.01);
  EXPECT_NEAR(ratio(Algorithm::flash2, &Cost::traffic_bytes), 4, 0.02);
  EXPECT_EQ(ratio(Algorithm::standard, &Cost::extra_bytes), 4);
  EXPECT_EQ(ratio(Algorithm::flash1, &Cost::extra_bytes), 2);
  EXPECT_EQ(ratio(Algorithm::flash2, &Cost::extra_bytes), 2);
  // Twice the fast memory: twice the tile: half of the traffic.
  const double small = cost(square(65536), Algorithm::flash2, 64, 64, 0).traffic_bytes;
  EXPECT_NEAR(small / cost(square(65536), Algorithm::flash2, 128, 64, 0).traffic_bytes, 2, 0.02);
}

// FlashAttention, figure 2: GPT-2 medium (N = 1024, d = 64, 16 heads, batch 64) forward and
// backward on an A100 moves 40.3 GB by the standard algorithm and 4.4 GB by FlashAttention, 9 times
// less.
TEST(Cost, GainsAsMuchAsThePaperMeasures) {
  Problem p = square(1024, 16, 64);
  p.batch = 64;
  p.q_tokens = p.k_tokens = 64 * 1024;
  p.dtype = DType::fp16;
  p.dropout = true;
  auto both = [&](Algorithm algorithm) {
    return cost(p, algorithm, 128, 256, 0).traffic_bytes +
           cost(backward(p), algorithm, 128, 256, 0).traffic_bytes;
  };
  const double standard = both(Algorithm::standard);
  EXPECT_GT(standard, 30e9);
  EXPECT_LT(standard, 100e9);
  EXPECT_GT(standard / both(Algorithm::flash1), 5);
  EXPECT_LT(standard / both(Algorithm::flash1), 40);
  EXPECT_LT(both(Algorithm::flash2), both(Algorithm::flash1));
}

TEST(Cost, SharedKeysAndValuesCountOnce) {
  Problem p = square(4096, 8);
  const Cost plain = cost(p, Algorithm::flash2, 128, 128, 1e9);
  p.kv_heads = 2;
  const Cost grouped = cost(p, Algorithm::flash2, 128, 128, 1e9);
  const double one = 4096.0 * 64 * 4;  // bytes of K of one head
  EXPECT_EQ(plain.traffic_bytes - grouped.traffic_bytes, 6 * 2 * one);
  EXPECT_EQ(plain.flops, grouped.flops);
}

TEST(Cost, StandardBackwardCountsThePassesItNeeds) {
  Problem p = square(1024);
  p.direction = Direction::backward;
  const double matrix = 1024.0 * 1024 * 4;
  auto passes = [&] {
    const Cost c = cost(p, Algorithm::standard, 0, 0, 1e9);
    return (c.traffic_bytes - c.minimum_bytes) / matrix;
  };
  p.has_grad_v = true;
  EXPECT_EQ(passes(), 4);  // S, P and dV
  p.has_grad_q = true;
  EXPECT_EQ(passes(), 9);  // and dP, dS, dQ
  p.has_grad_k = true;
  EXPECT_EQ(passes(), 10);
  p.dropout = true;
  EXPECT_EQ(passes(), 12);
  p.has_bias = p.has_grad_bias = true;
  EXPECT_EQ(passes(), 13);
}

TEST(Cost, UnknownLengthsCountAsTheLongest) {
  Problem p = square(512, 2);
  p.batch = 4;
  p.q_tokens = p.k_tokens = 4 * 512;
  p.right = 0;
  const Cost plain = cost(p, Algorithm::flash2, 64, 64, 0);
  p.packed = true;
  EXPECT_EQ(cost(p, Algorithm::flash2, 64, 64, 0).visible_pairs, plain.visible_pairs);
  EXPECT_EQ(cost(p, Algorithm::flash2, 64, 64, 0).traffic_bytes, plain.traffic_bytes);
  const std::vector<std::int32_t> lengths{0, 512, 512, 600, 1112};
  p.cumulative_q = p.cumulative_k = lengths.data();
  EXPECT_EQ(cost(p, Algorithm::flash2, 64, 64, 0).visible_pairs, 2 * (2 * 512 * 513 / 2.0 + 88 * 89 / 2.0));
  p.device = Device::cuda();  // the lengths are there, too: not read
  EXPECT_EQ(cost(p, Algorithm::flash2, 64, 64, 0).visible_pairs, plain.visible_pairs);
}

TEST(Cost, EmptyProblemsCostNothing) {
  for (const Algorithm algorithm : kAlgorithms) {
    const Cost none = cost(square(0), algorithm, 64, 64, 0);
    EXPECT_EQ(none.flops, 0);
    EXPECT_EQ(none.traffic_bytes, 0);
    Problem no_keys = square(64);
    no_keys.k_length = no_keys.k_tokens = 0;
    const Cost zeros = cost(no_keys, algorithm, 64, 64, 0);
    EXPECT_EQ(zeros.visible_pairs, 0);
    EXPECT_EQ(zeros.traffic_bytes, zeros.minimum_bytes) << name(algorithm);
    Problem no_batch = square(64);
    no_batch.batch = no_batch.q_tokens = no_batch.k_tokens = 0;
    EXPECT_EQ(cost(no_batch, algorithm, 64, 64, 0).traffic_bytes, 0);
  }
}

TEST(Cost, IsQuickForAMillionTokens) {
  const auto start = std::chrono::steady_clock::now();
  Problem p = square(1 << 20, 32, 128);
  p.right = 0;
  EXPECT_EQ(cost(p, Algorithm::flash2, 64, 64, 0).visible_pairs, 32.0 * (1 << 20) * ((1 << 20) + 1.0) / 2);
  const BlockMask blocks = BlockMask::local({1 << 20, 1 << 20, 128, 128, 1}, 64);
  p.blocks = view(blocks);
  EXPECT_GT(cost(p, Algorithm::flash2, 64, 64, 0).visible_pairs, 0);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  EXPECT_LT(taken.count(), 5) << "a plan must not take seconds";
}

}  // namespace
}  // namespace tessera::core
