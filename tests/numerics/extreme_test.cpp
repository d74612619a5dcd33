// Values at the edge: huge and tiny scores, long uniform rows, and how far one NaN
// or infinity reaches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "cpu/machine/target.h"
#include "reference/tolerance/check.h"
#include "reference/tolerance/low_precision.h"
#include "support/build.h"
#include "support/kernels.h"
#include "support/tensors.h"

namespace tessera::test {
namespace {

using reference::BiasKind;
using reference::Case;
using reference::CaseSpec;
using reference::Expected;
using reference::ForceKernel;
using reference::model_backward;
using reference::model_forward;
using reference::oracle_forward;
using reference::read;
using reference::Verdict;

void fill_tensor(const Tensor& t, double value) {
  for (std::int64_t e = 0; e < reference::count(t.shape); ++e) reference::write(t, 0, 0, 0, e, value);
}

void copy_values(const Tensor& from, const Tensor& to) {
  if (!from.given()) return;
  for (std::int64_t e = 0; e < reference::count(from.shape); ++e) {
    reference::write(to, 0, 0, 0, e, reference::read(from, 0, 0, 0, e));
  }
}

void scale(std::vector<double>& values, double factor) {
  for (double& x : values) x *= factor;
}

// What a case should give when scores are large. Two things differ from ordinary
// cases: the model computes in fp32, since such scores are beyond fp16; and
// rounding may do its worst, since one rounding of a score or of an LSE of 1e5
// (0.004 in fp32) outweighs all others, so that there is nothing to cancel it.
Expected expect_extreme(const Case& problem) {
  Expected expected = expect(problem);
  if (problem.spec().dtype != DType::fp64) {
    CaseSpec spec = problem.spec();
    spec.dtype = DType::fp32;
    Case wide(spec);
    copy_values(problem.forward.q, wide.forward.q);
    copy_values(problem.forward.k, wide.forward.k);
    copy_values(problem.forward.v, wide.forward.v);
    copy_values(problem.forward.bias, wide.forward.bias);
    copy_values(problem.backward.grad_out, wide.backward.grad_out);
    copy_values(problem.backward.grad_lse, wide.backward.grad_lse);
    expected.model = model_forward(wide.attention, wide.forward);
    expected.model_gradients = model_backward(wide.attention, wide.backward);
  }
  constexpr double kWorst = 8;  // rounding.h expects an eighth of the worst case
  reference::Rounding& rounding = expected.rounding;
  for (auto* values : {&rounding.forward.out, &rounding.forward.lse, &rounding.gradients.q,
                       &rounding.gradients.k, &rounding.gradients.v, &rounding.gradients.bias}) {
    scale(*values, kWorst);
  }
  return expected;
}

class ExtremeTest : public testing::TestWithParam<TypeAndKernel> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  const std::string& kernel() const { return std::get<1>(GetParam()); }

  void expect_right(Case& problem) {
    SCOPED_TRACE(describe(problem.spec()));
    const Expected expected = expect_extreme(problem);
    for (const auto& values : {expected.exact.out, expected.model.out, expected.model_gradients.q}) {
      for (const double x : values) ASSERT_TRUE(std::isfinite(x));
    }
    run(problem, kernel());
    const Verdict verdict = judge(problem, expected);
    EXPECT_TRUE(verdict.ok) << verdict.message;
  }
};

// Products of +-1e5 and beyond: softmax is all but one-hot.
TEST_P(ExtremeTest, LogitsOf100000) {
  Case problem({.dtype = dtype(), .q_length = 70, .k_length = 90, .right = 0, .input_scale = 50, .scale = 5});
  expect_right(problem);
}

// All scores of a row far below zero, yet visible: no sentinel value may be taken for a mask.
TEST_P(ExtremeTest, ScoresFarBelowZeroAreNotMasked) {
  for (const double level : {-1e3, -6e4, -1e5}) {
    Case problem({.dtype = dtype(),
                  .q_length = 66,
                  .k_length = 70,
                  .bias = BiasKind::row,
                  .bias_in_accumulator_type = true});
    fill_tensor(problem.forward.bias, level);
    run(problem, kernel());
    for (const double x : reference::values(problem.forward.lse)) ASSERT_NEAR(x, level, 50);
    expect_right(problem);
  }
}

// LSE below -88.7, where exp of it is 0 in fp32, at a length of 64 modulo 128.
TEST_P(ExtremeTest, SmallLse) {
  Case problem({.dtype = dtype(),
                .batch = 1,
                .q_length = 192,
                .k_length = 192,
                .q_heads = 2,
                .kv_heads = 1,
                .qk_dim = 16,
                .v_dim = 16,
                .right = 0,
                .bias = BiasKind::row,
                .grad_lse = true,
                .bias_in_accumulator_type = true});
  fill_tensor(problem.forward.bias, -200);
  expect_right(problem);
  for (const double x : reference::values(problem.backward.grad_q)) ASSERT_TRUE(std::isfinite(x));
}

// Scores far above zero: exp of them overflows without the maximum subtracted.
TEST_P(ExtremeTest, LargeLse) {
  Case problem({.dtype = dtype(), .right = 0, .bias = BiasKind::row, .bias_in_accumulator_type = true});
  fill_tensor(problem.forward.bias, 5000);
  expect_right(problem);
}

// One maximum after the other: the running maximum grows with every key.
TEST_P(ExtremeTest, GrowingScores) {
  Case problem({.dtype = dtype(),
                .q_length = 20,
                .k_length = 300,
                .bias = BiasKind::row,
                .bias_in_accumulator_type = true});
  for (std::int64_t j = 0; j < 300; ++j)
    reference::write(problem.forward.bias, 0, 0, 0, j, 2 * static_cast<double>(j));
  expect_right(problem);
}

// A million equal scores: neither the sum nor the mean loses its digits.
TEST_P(ExtremeTest, LongUniformRows) {
  const int keys = scaled(1 << 20, 1 << 16, "keys of a uniform row:");
  Case problem({.dtype = dtype(),
                .batch = 1,
                .q_length = 2,
                .k_length = keys,
                .q_heads = 1,
                .kv_heads = 1,
                .qk_dim = 2,
                .v_dim = 2});
  fill_tensor(problem.forward.q, 0);
  for (std::int64_t e = 0; e < 2 * keys; ++e) {
    reference::write(problem.forward.v, 0, 0, 0, e, 1 + reference::read(problem.forward.v, 0, 0, 0, e) / 8);
  }
  const ForceKernel forced(kernel());
  tessera::forward(problem.attention, problem.forward);
  const reference::Forward exact = oracle_forward(problem.attention, problem.forward);
  for (std::int64_t e = 0; e < 4; ++e) {
    EXPECT_NEAR(read(problem.forward.out, 0, 0, 0, e), exact.out[static_cast<std::size_t>(e)],
                dtype() == DType::fp64 ? 1e-12 : std::max(reference::epsilon(dtype()), 2e-6));
  }
  EXPECT_NEAR(read(problem.forward.lse, 0, 0, 0, 0), std::log(static_cast<double>(keys)),
              dtype() == DType::fp64 ? 1e-11 : 1e-5);
}

// Scale and softcap at both ends of what is accepted. Backward is left out where
// scores of 2^100 have an LSE whose rounding is beyond any exponent, and where the
// gradients are below fp16's smallest number.
TEST_P(ExtremeTest, ScaleAndSoftcapAtTheEndsOfTheirRange) {
  const bool fp64 = dtype() == DType::fp64;
  const double least = fp64 ? 0x1p-1000 : 0x1p-100, most = 1 / least;
  struct Factors {
    double scale, softcap;
  };
  for (const auto& [scale, softcap] :
       {Factors{least, 0}, Factors{-least, 0}, Factors{most, 0}, Factors{-most, 0}, Factors{0, 0},
        Factors{0, most}, Factors{0, least}, Factors{0.25, least}, Factors{0.25, most / 4},
        Factors{least, least}, Factors{most, most}}) {
    for (const std::int64_t right : {-1, 0}) {
      Case problem({.dtype = dtype(),
                    .q_length = 20,
                    .k_length = 33,
                    .right = right,
                    .softcap = softcap,
                    .grad_lse = true,
                    .scale = scale});
      SCOPED_TRACE(describe(problem.spec()));
      const bool too_small = dtype() == DType::fp16 && std::abs(scale) == least;
      if (std::abs(scale) <= 1 && !too_small) {
        expect_right(problem);
        continue;
      }
      const ForceKernel forced(kernel());
      tessera::forward(problem.attention, problem.forward);
      for (const Tensor& t : {problem.forward.out, problem.forward.lse}) {
        for (const double x : reference::values(t)) ASSERT_TRUE(std::isfinite(x));
      }
    }
  }
}

// Values as large as the header allows: what a row sees of them adds up to no more
// than the accumulator holds.
TEST_P(ExtremeTest, ValuesUpToTheirRange) {
  constexpr std::int64_t kCount = 64;
  const double largest = dtype() == DType::fp64   ? std::numeric_limits<double>::max()
                         : dtype() == DType::fp16 ? 65504.0 * kCount
                                                  : std::numeric_limits<float>::max();
  const double value = largest / kCount * 0.99;
  Case problem({.dtype = dtype(), .q_length = 20, .k_length = kCount});
  fill_tensor(problem.forward.q, 0);
  fill_tensor(problem.forward.v, value);
  std::vector<std::string> kernels{kernel()};
  if (obstacle("cpu.decode").empty()) kernels.emplace_back("cpu.decode");
  for (const std::string& each : kernels) {
    const ForceKernel forced(each);
    problem.poison();
    tessera::forward(problem.attention, problem.forward);
    const double stored = read(problem.forward.v, 0, 0, 0, 0);
    for (const double x : reference::values(problem.forward.out)) {
      ASSERT_NEAR(x, stored, kCount * reference::epsilon(dtype()) * stored) << each;
    }
  }
}

// ALiBi as far from its diagonal as is accepted, in both directions.
TEST_P(ExtremeTest, AlibiFarFromItsDiagonal) {
  for (const std::int64_t diagonal : {(std::int64_t{1} << 29) - 1, 1 - (std::int64_t{1} << 29)}) {
    Case problem({.dtype = dtype(), .q_length = 20, .k_length = 33, .diagonal = diagonal, .alibi = true});
    expect_right(problem);
  }
}

// Without ALiBi a diagonal, and the positions of a shard, may lie anywhere.
TEST_P(ExtremeTest, PositionsFarAway) {
  Case here({.dtype = dtype(), .q_length = 20, .k_length = 33, .right = 0, .diagonal = 3});
  Case far({.dtype = dtype(),
            .q_length = 20,
            .k_length = 33,
            .right = 0,
            .diagonal = 3 - (std::int64_t{1} << 31),
            .origin = {.row = std::int64_t{1} << 31, .column = 0}});
  run(here, kernel());
  run(far, kernel());
  EXPECT_EQ(first_difference(here.forward, far.forward), "");
  EXPECT_EQ(first_difference(here.backward, far.backward), "");
}

// ---- one NaN or infinity ------------------------------------------------------------------------

// Elements of rows for which `reached` is false must be as in the clean result. Not
// bit by bit: a kernel may multiply operands that are not finite in another order.
template <typename Reached>
void expect_unreached(const char* name, const Tensor& clean, const Tensor& poisoned, Reached&& reached,
                      bool is_lse = false) {
  for (std::int64_t b = 0; b < clean.shape[0]; ++b) {
    for (std::int64_t head = 0; head < clean.shape[is_lse ? 1 : 2]; ++head) {
      for (std::int64_t row = 0; row < clean.shape[is_lse ? 2 : 1]; ++row) {
        if (reached(b, head, row)) continue;
        auto element = [&](const Tensor& tensor, std::int64_t d) {
          return is_lse ? read(tensor, b, head, row, d) : read(tensor, b, row, head, d);
        };
        double largest = 0;
        for (std::int64_t d = 0; d < clean.shape[3]; ++d) {
          if (std::isfinite(element(clean, d))) largest = std::max(largest, std::abs(element(clean, d)));
        }
        for (std::int64_t d = 0; d < clean.shape[3]; ++d) {
          const double before = element(clean, d), after = element(poisoned, d);
          // A few roundings of the accumulator, the last digit of what is stored, and
          // of the weights where a kernel keeps them in the type of the tensors:
          // their errors are relative to the row, not to an element that cancels.
          const double tolerance =
              16 * reference::epsilon(accumulator_of(clean.dtype)) * (1 + std::abs(before)) +
              reference::epsilon(clean.dtype) * (std::abs(before) + largest);
          ASSERT_NEAR(before, after, tolerance)
              << name << " batch " << b << " head " << head << " row " << row;
        }
      }
    }
  }
}

class PoisonTest : public ExtremeTest {
 protected:
  // Row i sees columns i - 9 .. i: the rest of every tile is masked.
  CaseSpec spec() const {
    return {.dtype = dtype(),
            .batch = 2,
            .q_length = 100,
            .k_length = 100,
            .q_heads = 4,
            .kv_heads = 2,
            .qk_dim = 16,
            .v_dim = 16,
            .left = 9,
            .right = 0,
            .grad_lse = true};
  }
};

constexpr std::int64_t kRow = 37;  // where the poison is, in batch entry 1, key/value head 1 or query head 2

// In k or v: rows kRow .. kRow + 9 of query heads 2 and 3 see it; their
// probabilities reach the keys those rows see.
TEST_P(PoisonTest, InKeysAndValues) {
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const bool in_values : {false, true}) {
      SCOPED_TRACE(std::string(in_values ? "v" : "k") + (std::isnan(value) ? " NaN" : " infinity"));
      Case clean(spec()), poisoned(spec());
      run(clean, kernel());
      reference::write(in_values ? poisoned.forward.v : poisoned.forward.k, 1, kRow, 1, 3, value);
      run(poisoned, kernel());
      auto sees = [](std::int64_t b, std::int64_t head, std::int64_t row) {
        return b == 1 && head >= 2 && row >= kRow && row <= kRow + 9;
      };
      auto shares = [](std::int64_t b, std::int64_t kv_head, std::int64_t row) {
        return b == 1 && kv_head == 1 && row >= kRow - 9 && row <= kRow + 9;
      };
      expect_unreached("out", clean.forward.out, poisoned.forward.out, sees);
      expect_unreached("lse", clean.forward.lse, poisoned.forward.lse, sees, true);
      expect_unreached("grad_q", clean.backward.grad_q, poisoned.backward.grad_q, sees);
      expect_unreached("grad_k", clean.backward.grad_k, poisoned.backward.grad_k, shares);
      expect_unreached("grad_v", clean.backward.grad_v, poisoned.backward.grad_v, shares);
      if (!std::isnan(value) && !in_values) continue;          // a score of -inf rightly hides the key
      for (std::int64_t row = kRow; row <= kRow + 9; ++row) {  // it is not swallowed
        EXPECT_FALSE(std::isfinite(read(poisoned.forward.out, 1, row, 3, 3))) << "row " << row;
      }
    }
  }
}

// In q or grad_out: that row alone, and the keys it sees.
TEST_P(PoisonTest, InQueriesAndOutputGradients) {
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const bool in_gradient : {false, true}) {
      SCOPED_TRACE(std::string(in_gradient ? "grad_out" : "q") + (std::isnan(value) ? " NaN" : " infinity"));
      Case clean(spec()), poisoned(spec());
      run(clean, kernel());
      reference::write(in_gradient ? poisoned.backward.grad_out : poisoned.forward.q, 1, kRow, 2, 3, value);
      run(poisoned, kernel());
      auto itself = [](std::int64_t b, std::int64_t head, std::int64_t row) {
        return b == 1 && head == 2 && row == kRow;
      };
      auto nothing = [](std::int64_t, std::int64_t, std::int64_t) { return false; };
      auto seen = [](std::int64_t b, std::int64_t kv_head, std::int64_t row) {
        return b == 1 && kv_head == 1 && row >= kRow - 9 && row <= kRow;
      };
      if (in_gradient) {
        expect_unreached("out", clean.forward.out, poisoned.forward.out, nothing);
      } else {
        expect_unreached("out", clean.forward.out, poisoned.forward.out, itself);
        expect_unreached("lse", clean.forward.lse, poisoned.forward.lse, itself, true);
        EXPECT_TRUE(!std::isnan(value) || std::isnan(read(poisoned.forward.out, 1, kRow, 2, 0)));
      }
      expect_unreached("grad_q", clean.backward.grad_q, poisoned.backward.grad_q, itself);
      expect_unreached("grad_k", clean.backward.grad_k, poisoned.backward.grad_k, seen);
      expect_unreached("grad_v", clean.backward.grad_v, poisoned.backward.grad_v, seen);
    }
  }
}

// In the keys of one packed sequence: no other sequence notices.
TEST_P(PoisonTest, InOnePackedSequence) {
  CaseSpec packed = spec();
  packed.packed = true;
  packed.batch = 5;
  packed.left = -1;
  Case clean(packed), poisoned(packed);
  const Lengths lengths = clean.attention.mask.lengths;
  std::int64_t victim = 0;
  while (lengths.k[victim + 1] == lengths.k[victim]) ++victim;
  run(clean, kernel());
  reference::write(poisoned.forward.k, 0, lengths.k[victim], 0, 3, std::nan(""));
  reference::write(poisoned.forward.v, 0, lengths.k[victim], 0, 3, std::nan(""));
  run(poisoned, kernel());
  auto in_q = [&](std::int64_t, std::int64_t, std::int64_t row) {
    return row >= lengths.q[victim] && row < lengths.q[victim + 1];
  };
  auto in_k = [&](std::int64_t, std::int64_t, std::int64_t row) {
    return row >= lengths.k[victim] && row < lengths.k[victim + 1];
  };
  expect_unreached("out", clean.forward.out, poisoned.forward.out, in_q);
  expect_unreached("grad_q", clean.backward.grad_q, poisoned.backward.grad_q, in_q);
  expect_unreached("grad_k", clean.backward.grad_k, poisoned.backward.grad_k, in_k);
  expect_unreached("grad_v", clean.backward.grad_v, poisoned.backward.grad_v, in_k);
}

// ---- the same on every instruction set, beyond one tile -----------------------------------------

using Sees = std::function<bool(std::int64_t row, std::int64_t key)>;

struct MaskCase {
  const char* name;
  std::int64_t left, right;
  double softcap;
};

// Lengths that are no multiple of any tile: masks end within the units that matrix
// instructions work on, which read memory that holds what an earlier tile left.
constexpr std::int64_t kQueries = 290, kKeys = 310;

using TargetParameters = std::tuple<DType, cpu::Target>;

class PoisonOnTargets : public testing::TestWithParam<TargetParameters> {
 protected:
  // Everything the poison at `at` of one operand cannot reach is as it was.
  static void expect_contained(const std::string& operand, std::int64_t at, const Sees& sees,
                               const Case& clean, const Case& poisoned) {
    const bool in_keys = operand == "k" || operand == "v";
    auto row_reached = [&](std::int64_t b, std::int64_t head, std::int64_t row) {
      if (b != 1) return false;
      return in_keys ? head >= 2 && sees(row, at) : head == 2 && row == at;
    };
    auto key_reached = [&](std::int64_t b, std::int64_t kv_head, std::int64_t key) {
      if (b != 1 || kv_head != 1) return false;
      if (!in_keys) return sees(at, key);
      for (std::int64_t row = 0; row < kQueries; ++row) {
        if (sees(row, at) && sees(row, key)) return true;
      }
      return key == at;
    };
    expect_unreached("out", clean.forward.out, poisoned.forward.out, row_reached);
    expect_unreached("lse", clean.forward.lse, poisoned.forward.lse, row_reached, true);
    expect_unreached("grad_q", clean.backward.grad_q, poisoned.backward.grad_q, row_reached);
    expect_unreached("grad_k", clean.backward.grad_k, poisoned.backward.grad_k, key_reached);
    expect_unreached("grad_v", clean.backward.grad_v, poisoned.backward.grad_v, key_reached);
  }
};

TEST_P(PoisonOnTargets, ReachesOnlyWhatSeesIt) {
  const auto& [dtype, target] = GetParam();
  const std::string kernel = "cpu.flash2";
  const cpu::Target used = target_for_type(target, dtype);
  if (used != target) GTEST_SKIP() << "runs as " << name(used);
  const ForcedTarget forced(name(target));
  const int masks = scaled(5, 2, "masks:");
  int tried = 0;
  for (const MaskCase& mask :
       {MaskCase{"causal", -1, 0, 0}, MaskCase{"window", 70, 3, 0}, MaskCase{"none", -1, -1, 0},
        MaskCase{"keys ahead", 5, -1, 0}, MaskCase{"causal, softcap", -1, 0, 20}}) {
    if (tried++ == masks) break;
    const CaseSpec spec{.dtype = dtype,
                        .batch = 2,
                        .q_length = kQueries,
                        .k_length = kKeys,
                        .q_heads = 4,
                        .kv_heads = 2,
                        .qk_dim = 64,
                        .v_dim = 64,
                        .left = mask.left,
                        .right = mask.right,
                        .softcap = mask.softcap};
    const Sees sees = [&](std::int64_t row, std::int64_t key) {
      const std::int64_t diagonal = row + kKeys - kQueries;
      return (mask.left < 0 || key >= diagonal - mask.left) &&
             (mask.right < 0 || key <= diagonal + mask.right);
    };
    Case clean(spec), poisoned(spec);
    run(clean, kernel);
    for (const auto& [operand, tensor] : {std::pair<std::string, Tensor>{"q", poisoned.forward.q},
                                          {"k", poisoned.forward.k},
                                          {"v", poisoned.forward.v},
                                          {"grad_out", poisoned.backward.grad_out}}) {
      const bool in_keys = operand == "k" || operand == "v";
      for (const double value :
           {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        const std::int64_t at = in_keys ? 150 : 5;
        SCOPED_TRACE(std::string(mask.name) + ", " + (std::isnan(value) ? "NaN" : "infinity") + " in " +
                     operand + " at " + std::to_string(at));
        const std::int64_t head = in_keys ? 1 : 2;
        const double before = read(tensor, 1, at, head, 3);
        reference::write(tensor, 1, at, head, 3, value);
        poisoned.poison();
        run(poisoned, kernel);
        expect_contained(operand, at, sees, clean, poisoned);
        reference::write(tensor, 1, at, head, 3, before);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Keys that a bias hides: like a band, in stripes of keys, and scattered, so that
// no tile is left out.
struct HiddenByBias {
  const char* name;
  bool (*sees)(std::int64_t row, std::int64_t key);
};

constexpr HiddenByBias kHiddenByBias[] = {
    {"causal", [](std::int64_t row, std::int64_t key) { return key <= row + 20; }},
    {"stripes", [](std::int64_t, std::int64_t key) { return key % 50 < 30 && key != 150; }},
    {"scattered", [](std::int64_t row, std::int64_t key) { return (7 * row + 3 * key) % 5 != 0; }},
};

TEST_P(PoisonOnTargets, ABiasOfMinusInfinityHidesLikeAMask) {
  const auto& [dtype, target] = GetParam();
  const cpu::Target used = target_for_type(target, dtype);
  if (used != target) GTEST_SKIP() << "runs as " << name(used);
  const ForcedTarget forced(name(target));
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const int patterns = scaled(2, 1, "patterns of hidden keys:");
  for (int turn = 0; turn < patterns; ++turn) {
    const int pattern = (turn + static_cast<int>(dtype) + static_cast<int>(target)) % 3;  // others elsewhere
    const auto& [pattern_name, sees] = kHiddenByBias[pattern];
    CaseSpec spec{.dtype = dtype,
                  .batch = 2,
                  .q_length = kQueries,
                  .k_length = kKeys,
                  .q_heads = 4,
                  .kv_heads = 2,
                  .qk_dim = 32,
                  .v_dim = 32,
                  .bias = BiasKind::per_head,
                  .softcap = pattern == 1 ? 20.0 : 0.0,
                  .dropout = pattern == 2 ? 0.1 : 0.0};
    Case clean(spec), poisoned(spec);
    for (const Case* problem : {&clean, &poisoned}) {
      for (std::int64_t row = 0; row < kQueries; ++row) {
        for (std::int64_t key = 0; key < kKeys; ++key) {
          for (std::int64_t h = 0; h < 4 && !sees(row, key); ++h) {
            reference::write(problem->forward.bias, 0, h, row, key, -kInfinity);
          }
        }
      }
    }
    for (const std::string& kernel : cpu_kernels()) {
      if (!obstacle(kernel).empty()) continue;  // requires vectors
      run(clean, kernel);
      for (const auto& [operand, tensor] : {std::pair<std::string, Tensor>{"q", poisoned.forward.q},
                                            {"k", poisoned.forward.k},
                                            {"v", poisoned.forward.v},
                                            {"grad_out", poisoned.backward.grad_out}}) {
        const bool in_keys = operand == "k" || operand == "v";
        for (const double value : {kNaN, kInfinity}) {
          const std::int64_t at = in_keys ? 150 : 5, head = in_keys ? 1 : 2;
          SCOPED_TRACE(kernel + ", " + pattern_name + (std::isnan(value) ? ", NaN" : ", infinity") + " in " +
                       operand);
          const double before = read(tensor, 1, at, head, 3);
          reference::write(tensor, 1, at, head, 3, value);
          poisoned.poison();
          run(poisoned, kernel);
          reference::write(tensor, 1, at, head, 3, before);
          expect_contained(operand, at, sees, clean, poisoned);
          if (HasFatalFailure()) return;
          for (std::int64_t key = 0; key < kKeys; ++key) {
            if (sees(5, key)) continue;
            ASSERT_EQ(read(poisoned.backward.grad_bias, 0, 2, 5, key), 0) << "key " << key;
          }
          if (operand != "v" || spec.dropout != 0) continue;   // a value that is dropped may be hidden
          for (std::int64_t row = 0; row < kQueries; ++row) {  // it is not swallowed
            const bool finite = std::isfinite(read(poisoned.forward.out, 1, row, 2, 3));
            ASSERT_TRUE(!finite || !sees(row, at)) << "row " << row;
          }
        }
      }
    }
  }
}

// The same in cpu.decode, which has no backward.
TEST_P(PoisonOnTargets, ABiasOfMinusInfinityHidesInDecode) {
  const auto& [dtype, target] = GetParam();
  const ForcedTarget forced(name(target));
  if (const std::string reason = obstacle("cpu.decode"); !reason.empty()) GTEST_SKIP() << reason;
  const ForceKernel kernel("cpu.decode");
  for (const bool in_values : {false, true}) {
    Case clean({.dtype = dtype, .q_length = 5, .k_length = 700, .bias = BiasKind::row});
    Case poisoned(clean.spec());
    for (const Case* problem : {&clean, &poisoned}) {
      for (std::int64_t j = 250; j < 700; ++j) {
        reference::write(problem->forward.bias, 0, 0, 0, j, -std::numeric_limits<double>::infinity());
      }
    }
    const Tensor& tensor = in_values ? poisoned.forward.v : poisoned.forward.k;
    for (std::int64_t j = 250; j < 700; ++j) reference::write(tensor, 1, j, 1, 3, std::nan(""));
    tessera::forward(clean.attention, clean.forward);
    tessera::forward(poisoned.attention, poisoned.forward);
    auto nothing = [](std::int64_t, std::int64_t, std::int64_t) { return false; };
    expect_unreached("out", clean.forward.out, poisoned.forward.out, nothing);
    expect_unreached("lse", clean.forward.lse, poisoned.forward.lse, nothing, true);
  }
}

// Like "bf16_amx".
std::string target_test_name(const testing::TestParamInfo<TargetParameters>& info) {
  const auto& [dtype, target] = info.param;
  return std::string(name(dtype)) + "_" + name(target);
}

INSTANTIATE_TEST_SUITE_P(Every, PoisonOnTargets,
                         testing::ValuesIn(pairs_with_types(cpu::available_targets())), target_test_name);

INSTANTIATE_TEST_SUITE_P(Cpu, ExtremeTest, testing::ValuesIn(pairs_with_types(cpu_kernels())), test_name);
INSTANTIATE_TEST_SUITE_P(Cpu, PoisonTest, testing::ValuesIn(pairs_with_types(cpu_kernels())), test_name);

}  // namespace
}  // namespace tessera::test
