// Which elements dropout drops: by the definition, the same in every kernel, type
// and direction, and as random as it says.
#include <gtest/gtest.h>

#include <cmath>

#include "core/philox.h"
#include "reference/tolerance/check.h"
#include "support/kernels.h"

namespace tessera::test {
namespace {

using reference::Case;
using reference::CaseSpec;
using reference::ForceKernel;
using reference::read;
using reference::write;

constexpr std::int64_t kSize = 128;  // queries, keys and head_dim of v: one column of v per key

// Scores of 0 and v = identity make the output the matrix of probabilities after dropout: row
// i, column j of a head is 0 where it is dropped and 1 / (kSize * (1 - p)) where it is kept.
Case mask_case(const CaseSpec& changes) {
  CaseSpec spec = changes;
  spec.q_length = spec.k_length = spec.v_dim = kSize;
  spec.qk_dim = 2;
  spec.q_heads = spec.kv_heads = 3;
  Case problem(spec);
  for (std::int64_t b = 0; b < spec.batch; ++b) {
    for (std::int64_t h = 0; h < 3; ++h) {
      for (std::int64_t i = 0; i < kSize; ++i) {
        for (std::int64_t d = 0; d < 2; ++d) write(problem.forward.q, b, i, h, d, 0);
        for (std::int64_t d = 0; d < kSize; ++d) {
          write(problem.forward.v, b, i, h, d, d == i ? 1 : 0);
          write(problem.backward.grad_out, b, i, h, d, d == i ? 1 : 0);
        }
      }
    }
  }
  return problem;
}

// 1 where an element is kept, in the order (batch, head, row, column).
std::vector<int> kept_in_forward(const Case& problem) {
  std::vector<int> kept;
  for (std::int64_t b = 0; b < problem.spec().batch; ++b) {
    for (std::int64_t h = 0; h < 3; ++h) {
      for (std::int64_t i = 0; i < kSize; ++i) {
        for (std::int64_t j = 0; j < kSize; ++j) kept.push_back(read(problem.forward.out, b, i, h, j) != 0);
      }
    }
  }
  return kept;
}

// The gradient of v is the transposed matrix times grad_out = identity.
std::vector<int> kept_in_backward(const Case& problem) {
  std::vector<int> kept;
  for (std::int64_t b = 0; b < problem.spec().batch; ++b) {
    for (std::int64_t h = 0; h < 3; ++h) {
      for (std::int64_t i = 0; i < kSize; ++i) {
        for (std::int64_t j = 0; j < kSize; ++j)
          kept.push_back(read(problem.backward.grad_v, b, j, h, i) != 0);
      }
    }
  }
  return kept;
}

// A probability in whole steps of 2^-15, by the words of the header: not by the library's function.
double steps_of(double probability) { return std::floor(probability * 32768 + 0.5); }

std::vector<int> kept_by_definition(const Case& problem) {
  const Dropout& dropout = problem.attention.dropout;
  const Origin& origin = problem.attention.origin;
  const std::uint64_t seed = dropout.state != nullptr ? dropout.state[0] : dropout.seed;
  const std::uint64_t offset = dropout.state != nullptr ? dropout.state[1] : dropout.offset;
  std::vector<int> kept;
  for (std::int64_t b = 0; b < problem.spec().batch; ++b) {
    for (std::int64_t h = 0; h < 3; ++h) {
      const core::DropoutStream stream =
          core::dropout_stream(seed, offset, origin.batch + b, origin.head + h);
      for (std::int64_t i = 0; i < kSize; ++i) {
        for (std::int64_t j = 0; j < kSize; ++j) {
          kept.push_back(core::dropout_bits(stream, origin.row + i, origin.column + j) >=
                         steps_of(dropout.probability));
        }
      }
    }
  }
  return kept;
}

TEST(Dropout, IsTheSameEverywhere) {
  for (const CaseSpec& spec :
       {CaseSpec{.dropout = 0.1}, CaseSpec{.dropout = 0.5, .dropout_state = true},
        CaseSpec{.dropout = 0.75, .origin = {.row = 77, .column = 1001, .batch = 9, .head = 4}, .seed = 3}}) {
    for (const DType dtype : kDTypes) {
      CaseSpec typed = spec;
      typed.dtype = dtype;
      Case problem = mask_case(typed);
      const std::vector<int> expected = kept_by_definition(problem);
      for (const std::string& kernel : cpu_kernels()) {
        problem.poison();
        run(problem, kernel);
        EXPECT_EQ(kept_in_forward(problem), expected) << kernel << ' ' << name(dtype);
        EXPECT_EQ(kept_in_backward(problem), expected) << kernel << ' ' << name(dtype) << " backward";
      }
    }
  }
}

// Keep rate, and correlation of neighbours along rows and columns and of equal
// places in two heads and two batch entries: all within 4 standard deviations.
TEST(Dropout, IsAsRandomAsItSays) {
  for (const double probability : {0.1, 0.5, 0.9}) {
    Case problem = mask_case({.dropout = probability});
    tessera::forward(problem.attention, problem.forward);
    const std::vector<int> kept = kept_in_forward(problem);
    const auto total = static_cast<double>(kept.size());
    const double keep = 1 - steps_of(probability) / 32768;
    double sum = 0;
    for (const int bit : kept) sum += bit;
    EXPECT_NEAR(sum / total, keep, 4 * std::sqrt(keep * (1 - keep) / total)) << "p = " << probability;
    const std::size_t head = kSize * kSize;
    for (const std::size_t distance : {std::size_t{1}, std::size_t{2}, std::size_t{8}, std::size_t{32},
                                       std::size_t{kSize}, head, 3 * head}) {
      double correlation = 0, pairs = 0;
      for (std::size_t e = 0; e + distance < kept.size(); ++e, ++pairs) {
        correlation += (kept[e] - keep) * (kept[e + distance] - keep);
      }
      correlation /= pairs * keep * (1 - keep);
      EXPECT_NEAR(correlation, 0, 4 / std::sqrt(pairs)) << "p = " << probability << ", distance " << distance;
    }
  }
}

// What is kept is scaled by the inverse of the rate at which it is kept, in every
// kernel, type and direction: also where a step of 2^-15 is most of the difference
// between the probability and 0 or 1.
TEST(Dropout, KeepsTheMeanNearBothEnds) {
  for (const double probability : {2e-5, 0.001, 0.9, 0.999, 0.9999, 0.99996}) {
    const double factor = 32768 / (32768 - steps_of(probability));
    for (const DType dtype : kDTypes) {
      Case problem = mask_case({.dtype = dtype, .dropout = probability});
      for (const std::string& kernel : cpu_kernels()) {
        SCOPED_TRACE(std::string(name(dtype)) + ' ' + kernel + ", p = " + std::to_string(probability));
        problem.poison();
        run(problem, kernel);
        const double tolerance = 16 * reference::epsilon(dtype) * factor;
        for (const Tensor& result : {problem.forward.out, problem.backward.grad_v}) {
          for (const double x : reference::values(result)) {
            ASSERT_TRUE(x == 0 || std::abs(x * kSize - factor) <= tolerance) << x * kSize;
          }
        }
      }
    }
  }
}

TEST(Dropout, KeepRateNearBothEnds) {
  for (const double probability : {0.0002, 0.002, 0.998, 0.9998}) {
    Case problem = mask_case({.batch = 8, .dropout = probability});
    tessera::forward(problem.attention, problem.forward);
    const std::vector<int> kept = kept_in_forward(problem);
    const double keep = 1 - steps_of(probability) / 32768, total = static_cast<double>(kept.size());
    double sum = 0;
    for (const int bit : kept) sum += bit;
    EXPECT_NEAR(sum / total, keep, 4 * std::sqrt(keep * (1 - keep) / total)) << "p = " << probability;
  }
}

TEST(Dropout, SeedAndOffsetChooseOtherBits) {
  Case problem = mask_case({.dropout = 0.5});
  auto bits = [&] {
    tessera::forward(problem.attention, problem.forward);
    return kept_in_forward(problem);
  };
  const std::vector<int> first = bits();
  EXPECT_EQ(bits(), first);
  ++problem.attention.dropout.offset;
  const std::vector<int> second = bits();
  --problem.attention.dropout.offset;
  problem.attention.dropout.seed += std::uint64_t{1} << 40;
  const std::vector<int> third = bits();
  for (const auto& [a, b] : {std::pair{first, second}, {first, third}, {second, third}}) {
    double equal = 0;
    for (std::size_t e = 0; e < a.size(); ++e) equal += a[e] == b[e];
    const auto total = static_cast<double>(a.size());
    EXPECT_NEAR(equal / total, 0.5, 4 * std::sqrt(0.25 / total));
  }
}

// The mean over many draws is the result without dropout.
TEST(Dropout, IsUnbiased) {
  Case problem({.dtype = DType::fp64,
                .batch = 1,
                .q_length = 8,
                .k_length = 32,
                .q_heads = 1,
                .kv_heads = 1,
                .qk_dim = 4,
                .v_dim = 4,
                .dropout = 0.3});
  const ForceKernel forced("cpu.flash2");
  constexpr int kDraws = 4000;
  std::vector<double> sum(32), squares(32);
  for (int draw = 0; draw < kDraws; ++draw) {
    problem.attention.dropout.offset = static_cast<std::uint64_t>(draw);
    tessera::forward(problem.attention, problem.forward);
    const std::vector<double> out = reference::values(problem.forward.out);
    for (std::size_t e = 0; e < out.size(); ++e) sum[e] += out[e], squares[e] += out[e] * out[e];
  }
  problem.attention.dropout.probability = 0;
  tessera::forward(problem.attention, problem.forward);
  const std::vector<double> exact = reference::values(problem.forward.out);
  for (std::size_t e = 0; e < exact.size(); ++e) {
    const double mean = sum[e] / kDraws, variance = squares[e] / kDraws - mean * mean;
    EXPECT_NEAR(mean, exact[e], 4.5 * std::sqrt(variance / kDraws)) << "element " << e;
  }
}

}  // namespace
}  // namespace tessera::test
