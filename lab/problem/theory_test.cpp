#include "lab/problem/theory.h"

#include <gtest/gtest.h>

namespace tessera::lab {
namespace {

Problem square(std::int64_t length, bool causal, Pass direction = Pass::forward) {
  Problem problem{.batch = 2, .seq = length, .heads = 3, .dim = 16, .causal = causal};
  problem.direction = direction;
  return problem;
}

TEST(ExecutedFlops, AreThoseOfTheLoopsOfADenseProblem) {
  const Operation operation(square(96, false));
  constexpr double kHeads = 6, kPairs = 96.0 * 96, kDim = 16, kRows = 96;
  const double products = kPairs * 4 * kDim, softmax = kPairs * 5;
  auto flops = [&](Algorithm algorithm, std::int64_t block_q, std::int64_t block_k) {
    return executed_flops(operation, Direction::forward, algorithm, block_q, block_k) / kHeads;
  };
  EXPECT_DOUBLE_EQ(flops(Algorithm::standard, 96, 96), products + softmax + kPairs);
  EXPECT_DOUBLE_EQ(flops(Algorithm::flash2, 32, 48),
                   products + softmax + 2 * kRows * (kDim + 1) + kRows * kDim);
  EXPECT_DOUBLE_EQ(flops(Algorithm::flash1, 32, 48), products + softmax + 2 * kRows * (3 * kDim + 1));
  const double nominal = kPairs * 4 * kDim;
  EXPECT_GT(flops(Algorithm::flash1, 32, 16), flops(Algorithm::flash2, 32, 16))
      << "smaller tiles rescale more";
  EXPECT_GT(flops(Algorithm::flash2, 32, 16), flops(Algorithm::flash2, 32, 96));
  EXPECT_GT(flops(Algorithm::flash2, 32, 96), nominal);
}

TEST(ExecutedFlops, BackwardComputesScoresAgain) {
  const Operation operation(square(64, false, Pass::backward));
  constexpr double kHeads = 6, kPairs = 64.0 * 64, kDim = 16, kRows = 64;
  for (const Algorithm algorithm : {Algorithm::standard, Algorithm::flash1, Algorithm::flash2}) {
    EXPECT_DOUBLE_EQ(executed_flops(operation, Direction::backward, algorithm, 32, 32) / kHeads,
                     kPairs * (5 * 2 * kDim + 5) + 2 * kRows * kDim);
  }
}

TEST(ExecutedFlops, CountWholeTilesAndOnlyThoseThatAreVisited) {
  const Operation causal(square(128, true)), full(square(128, false));
  auto share = [&](Algorithm algorithm, std::int64_t tile) {
    return executed_flops(causal, Direction::forward, algorithm, tile, tile) /
           executed_flops(full, Direction::forward, algorithm, tile, tile);
  };
  EXPECT_DOUBLE_EQ(share(Algorithm::standard, 128), 1) << "the whole matrix";
  EXPECT_NEAR(share(Algorithm::flash2, 16), (8.0 * 9 / 2) / 64, 0.01) << "36 of 64 tiles";
  EXPECT_NEAR(share(Algorithm::flash2, 64), 3.0 / 4, 0.01);
}

TEST(Theory, NamesTheFastMemoryOfItsBound) {
  const Operation operation(square(128, false));
  const Theory theory = theory_of(operation, Direction::forward, 32, 64);
  EXPECT_DOUBLE_EQ(theory.bound_memory_bytes, 64.0 * (16 + 16) * 4);
  const double elements = 6 * 128.0 * 128 * 16 * 16 / (theory.bound_memory_bytes / 4);
  EXPECT_DOUBLE_EQ(theory.bound_bytes, elements * 4);
}

}  // namespace
}  // namespace tessera::lab
