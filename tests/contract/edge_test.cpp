// Sizes, addresses and shapes at the edge: everything that is no multiple of
// anything, and nothing at all.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <set>
#include <string>

#include "cpu/machine/target.h"
#include "reference/tolerance/check.h"
#include "support/build.h"
#include "support/kernels.h"
#include "support/one_key.h"
#include "support/tensors.h"

namespace tessera::test {
namespace {

using reference::BiasKind;
using reference::BlockKind;
using reference::Case;
using reference::CaseSpec;
using reference::Expected;
using reference::ForceKernel;
using reference::oracle_forward;
using reference::read;
using reference::Verdict;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// The kernels give what the oracle gives.
void expect_right(const CaseSpec& spec, const std::vector<std::string>& kernels = cpu_kernels()) {
  SCOPED_TRACE(describe(spec));
  Case problem(spec);
  const Expected expected = expect(problem);
  for (const std::string& kernel : kernels) {
    problem.poison();
    run(problem, kernel);
    const Verdict verdict = judge(problem, expected);
    EXPECT_TRUE(verdict.ok) << kernel << ": " << verdict.message;
  }
}

DType rotating_dtype(std::int64_t index) { return kDTypes[static_cast<std::size_t>(index) % kDTypes.size()]; }

void expect_all(const Tensor& tensor, double value, const char* name) {
  for (const double x : reference::values(tensor)) ASSERT_EQ(x, value) << name;
}

// ---- addresses ----------------------------------------------------------------------------------

class EdgeTest : public testing::TestWithParam<TypeAndKernel> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  const std::string& kernel() const { return std::get<1>(GetParam()); }
};

TEST_P(EdgeTest, AnyBaseAddress) {
  const ForceKernel forced(kernel());
  Case aligned({.dtype = dtype(),
                .q_length = 35,
                .k_length = 41,
                .qk_dim = 19,
                .v_dim = 19,
                .right = 0,
                .bias = BiasKind::per_head,
                .grad_lse = true});
  run(aligned, kernel());
  for (std::int64_t offset = 1; offset <= 15; ++offset) {
    RelaidCase shifted(aligned, {.offset = offset});
    tessera::forward(shifted.attention, shifted.forward);
    tessera::backward(shifted.attention, shifted.backward);
    EXPECT_EQ(first_difference(aligned.forward, shifted.forward), "") << "offset " << offset;
    EXPECT_EQ(first_difference(aligned.backward, shifted.backward), "") << "offset " << offset;
    EXPECT_EQ(shifted.damage(), "") << "offset " << offset;
  }
}

// ---- sizes --------------------------------------------------------------------------------------

// Every integer from 1 to 256 in every build; types take turns, so each sees 64 of them.
TEST(EdgeSizes, EveryHeadDim) {
  for (std::int64_t dim = 1; dim <= 256; ++dim) {
    expect_right({.dtype = rotating_dtype(dim),
                  .batch = 1,
                  .q_length = 7,
                  .k_length = 11,
                  .q_heads = 2,
                  .kv_heads = 1,
                  .qk_dim = dim,
                  .v_dim = dim,
                  .right = 0});
  }
}

TEST(EdgeSizes, EveryValueDim) {
  for (std::int64_t dim = 1; dim <= 256; ++dim) {
    expect_right({.dtype = rotating_dtype(dim + 1),
                  .batch = 1,
                  .q_length = 5,
                  .k_length = 9,
                  .q_heads = 1,
                  .kv_heads = 1,
                  .qk_dim = 257 - dim,
                  .v_dim = dim});
  }
}

// Every N from 1 to 513 in a release build; elsewhere the edges of tiles and a few between.
TEST(EdgeSizes, EveryLength) {
  const int step = scaled(1, 61, "lengths besides tile edges: one of");
  std::set<std::int64_t> lengths;
  for (std::int64_t n = 1; n <= 513; n += step) lengths.insert(n);
  for (const std::int64_t edge : {16, 32, 64, 128, 256, 512}) {
    for (const std::int64_t n : {edge - 1, edge, edge + 1}) lengths.insert(n);
  }
  for (const std::int64_t n : lengths) {
    expect_right({.dtype = rotating_dtype(n),
                  .batch = 1,
                  .q_length = n,
                  .k_length = n,
                  .q_heads = 1,
                  .kv_heads = 1,
                  .qk_dim = 4,
                  .v_dim = 4,
                  .right = 0,
                  .seed = static_cast<std::uint64_t>(n)});
  }
}

TEST(EdgeSizes, EveryPairOfSmallLengths) {
  for (std::int64_t q = 1; q <= 9; ++q) {
    for (std::int64_t k = 1; k <= 9; ++k) {
      expect_right({.dtype = rotating_dtype(q + k),
                    .batch = 1,
                    .q_length = q,
                    .k_length = k,
                    .q_heads = 1,
                    .kv_heads = 1,
                    .qk_dim = 3,
                    .v_dim = 2,
                    .left = 2,
                    .right = 1});
    }
  }
}

// ---- nothing ------------------------------------------------------------------------------------

TEST_P(EdgeTest, NoKeys) {
  for (const bool packed : {false, true}) {
    Case problem({.dtype = dtype(), .k_length = 0, .packed = packed, .grad_lse = true});
    run(problem, kernel());
    expect_all(problem.forward.out, 0, "out");
    expect_all(problem.forward.lse, kMinusInfinity, "lse");
    expect_all(problem.backward.grad_q, 0, "grad_q");
  }
}

TEST_P(EdgeTest, NoQueries) {
  for (const bool packed : {false, true}) {
    Case problem({.dtype = dtype(), .q_length = 0, .packed = packed, .bias = BiasKind::row});
    run(problem, kernel());
    expect_all(problem.backward.grad_k, 0, "grad_k");
    expect_all(problem.backward.grad_v, 0, "grad_v");
    expect_all(problem.backward.grad_bias, 0, "grad_bias");
  }
}

TEST_P(EdgeTest, EmptyBatch) {
  Case problem({.dtype = dtype(), .batch = 0, .right = 0, .bias = BiasKind::per_head});
  run(problem, kernel());
  expect_all(problem.backward.grad_bias, 0, "grad_bias");
}

TEST_P(EdgeTest, TensorsWithoutElementsMayBeNull) {
  Case problem({.dtype = dtype(), .q_length = 0});
  for (Tensor* t :
       {&problem.forward.q, &problem.forward.out, &problem.forward.lse, &problem.backward.q,
        &problem.backward.out, &problem.backward.lse, &problem.backward.grad_out, &problem.backward.grad_q}) {
    t->data = nullptr;
  }
  run(problem, kernel());
  expect_all(problem.backward.grad_k, 0, "grad_k");
}

// NumPy and PyTorch give arrays without elements strides of 0, and others may leave them unset.
TEST_P(EdgeTest, TensorsWithoutElementsMayHaveAnyStrides) {
  for (const std::int64_t garbage : {std::int64_t{0}, std::int64_t{7}, INT64_MIN}) {
    for (const bool keys : {false, true}) {
      SCOPED_TRACE(std::string(keys ? "keys" : "queries") + ", strides " + std::to_string(garbage));
      Case problem({.dtype = dtype(), .q_length = keys ? 5 : 0, .k_length = keys ? 0 : 5});
      auto spoil = [&](std::initializer_list<Tensor*> tensors) {
        for (Tensor* t : tensors) t->strides = {garbage, garbage, garbage, garbage};
      };
      ForwardTensors& f = problem.forward;
      BackwardTensors& b = problem.backward;
      if (keys) spoil({&f.k, &f.v, &b.k, &b.v, &b.grad_k, &b.grad_v});
      else spoil({&f.q, &f.out, &f.lse, &b.q, &b.out, &b.lse, &b.grad_out, &b.grad_q});
      run(problem, kernel());
      if (keys) expect_all(b.grad_q, 0, "grad_q");
      else expect_all(b.grad_k, 0, "grad_k");
    }
  }
}

TEST_P(EdgeTest, EmptySequencesAmongOthers) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    expect_right({.dtype = dtype(),
                  .batch = 7,
                  .q_length = 20,
                  .k_length = 20,
                  .q_heads = 2,
                  .kv_heads = 1,
                  .qk_dim = 8,
                  .v_dim = 8,
                  .right = seed % 2 == 0 ? 0 : -1,
                  .packed = true,
                  .grad_lse = true,
                  .seed = seed},
                 {kernel()});
  }
}

TEST_P(EdgeTest, OnlyEmptySequences) {
  Case problem({.dtype = dtype(), .batch = 3, .q_length = 0, .k_length = 0, .packed = true});
  run(problem, kernel());
}

// ---- rows that see nothing ----------------------------------------------------------------------

// Rows at the start, at the end, in the middle of a tile and whole tiles: O = 0,
// LSE = -inf, gradients 0.
TEST_P(EdgeTest, FullyMaskedRowsAnywhere) {
  const CaseSpec base{.dtype = dtype(),
                      .q_length = 150,
                      .k_length = 140,
                      .q_heads = 2,
                      .kv_heads = 1,
                      .qk_dim = 16,
                      .v_dim = 16,
                      .grad_lse = true};
  std::vector<CaseSpec> specs(6, base);
  specs[0].right = 0, specs[0].diagonal = -70;                     // the first 70 rows
  specs[1].left = 0, specs[1].diagonal = 60;                       // the last rows
  specs[2].left = 3, specs[2].right = 3, specs[2].diagonal = -80;  // both ends
  specs[3].blocks = BlockKind::random, specs[3].block_q = 16, specs[3].block_k = 16;
  specs[3].left = 4, specs[3].right = 0;          // scattered
  specs[4].right = 0, specs[4].diagonal = -1000;  // all of them
  specs[5].right = 0, specs[5].q_length = 200, specs[5].dropout = 0.5, specs[5].bias = BiasKind::per_head;
  for (const CaseSpec& spec : specs) {
    SCOPED_TRACE(describe(spec));
    Case problem(spec);
    const reference::Forward exact = oracle_forward(problem.attention, problem.forward);
    run(problem, kernel());
    int empty = 0;
    for (std::int64_t b = 0; b < spec.batch; ++b) {
      for (std::int64_t h = 0; h < spec.q_heads; ++h) {
        for (std::int64_t i = 0; i < spec.q_length; ++i) {
          const std::int64_t at = reference::dense_index(problem.forward.lse.shape, b, h, i, 0);
          if (exact.lse[static_cast<std::size_t>(at)] != kMinusInfinity) continue;
          ++empty;
          ASSERT_EQ(read(problem.forward.lse, b, h, i, 0), kMinusInfinity) << "row " << i;
          for (std::int64_t d = 0; d < spec.v_dim; ++d) {
            ASSERT_EQ(read(problem.forward.out, b, i, h, d), 0) << "row " << i;
            ASSERT_EQ(read(problem.backward.grad_q, b, i, h, d), 0) << "row " << i;
          }
        }
      }
    }
    EXPECT_GT(empty, 0);
    expect_right(spec, {kernel()});
  }
}

// A bias of -inf hides keys as a mask does; a row of nothing else gives 0.
TEST_P(EdgeTest, BiasOfMinusInfinity) {
  Case problem({.dtype = dtype(),
                .q_length = 70,
                .k_length = 75,
                .qk_dim = 16,
                .v_dim = 16,
                .bias = BiasKind::per_head,
                .grad_lse = true});
  const Tensor& bias = problem.forward.bias;
  for (std::int64_t i = 0; i < 70; ++i) {
    for (std::int64_t j = 0; j < 75; ++j) {
      const bool hidden = i == 0 || i == 31 || i == 69 || j == 0 || j == 64 || (i > 40 && j > 10 && j < 70);
      if (!hidden) continue;
      for (std::int64_t h = 0; h < 4; ++h) reference::write(bias, 0, h, i, j, kMinusInfinity);
    }
  }
  run(problem, kernel());
  const Verdict verdict = judge(problem, expect(problem));
  EXPECT_TRUE(verdict.ok) << verdict.message;
  for (const std::int64_t i : {0, 31, 69}) {
    for (std::int64_t d = 0; d < 16; ++d) {
      EXPECT_EQ(read(problem.forward.out, 1, i, 2, d), 0);
      EXPECT_EQ(read(problem.backward.grad_q, 1, i, 2, d), 0);
    }
    for (std::int64_t j = 0; j < 75; ++j) EXPECT_EQ(read(problem.backward.grad_bias, 0, 2, i, j), 0);
    EXPECT_EQ(read(problem.forward.lse, 1, 2, i, 0), kMinusInfinity);
  }
}

// The same over whole steps of keys, for all rows of a tile or some: no product is computed there.
TEST_P(EdgeTest, BiasOfMinusInfinityOverWholeSteps) {
  for (const std::int64_t right : {-1, 0}) {
    Case problem({.dtype = dtype(),
                  .batch = 1,
                  .q_length = 600,
                  .k_length = 1100,
                  .q_heads = 2,
                  .kv_heads = 1,
                  .qk_dim = 16,
                  .v_dim = 16,
                  .right = right,
                  .bias = BiasKind::full,
                  .grad_lse = true});
    for (std::int64_t i = 0; i < 600; ++i) {
      for (std::int64_t j = 0; j < 1100; ++j) {
        const bool hidden = (j >= 200 && j < 730) || (i < 330 && j >= 850) || (i >= 520 && j < 140);
        if (!hidden) continue;
        for (std::int64_t h = 0; h < 2; ++h)
          reference::write(problem.forward.bias, 0, h, i, j, kMinusInfinity);
      }
    }
    run(problem, kernel());
    const Verdict verdict = judge(problem, expect(problem));
    EXPECT_TRUE(verdict.ok) << verdict.message;
    for (const Tensor& grad : {problem.backward.grad_k, problem.backward.grad_v}) {
      for (std::int64_t j = 200; j < 730; ++j) EXPECT_EQ(read(grad, 0, j, 0, 3), 0) << "key " << j;
    }
  }
}

// ---- rows that see one key ----------------------------------------------------------------------

void hide_all_but_the_diagonal(const Tensor& bias) {
  for (std::int64_t b = 0; b < bias.shape[0]; ++b) {
    for (std::int64_t h = 0; h < bias.shape[1]; ++h) {
      for (std::int64_t i = 0; i < bias.shape[2]; ++i) {
        for (std::int64_t j = 0; j < bias.shape[3]; ++j) {
          if (i != j) reference::write(bias, b, h, i, j, kMinusInfinity);
        }
      }
    }
  }
}

TEST(OneVisibleKey, GivesItsValueBitForBit) {
  const CaseSpec base{.q_length = 70,
                      .k_length = 70,
                      .q_heads = 2,
                      .kv_heads = 1,
                      .qk_dim = 32,
                      .v_dim = 32,
                      .left = 0,
                      .right = 0};
  std::vector<CaseSpec> specs(8, base);
  specs[1].alibi = true;
  specs[2].softcap = 3, specs[2].input_scale = 5;
  specs[3].bias = BiasKind::full, specs[3].bias_in_accumulator_type = true;
  specs[4].input_scale = 60, specs[4].scale = 20;
  specs[5].left = specs[5].right = -1, specs[5].k_length = 1;
  specs[6].qk_dim = 16, specs[6].v_dim = 24;
  specs[7].left = specs[7].right = -1, specs[7].bias = BiasKind::full;  // hides the other keys
  std::vector<std::string> kernels = cpu_kernels();
  if (obstacle("cpu.decode").empty()) kernels.emplace_back("cpu.decode");
  for (CaseSpec spec : specs) {
    for (const DType dtype : kDTypes) {
      spec.dtype = dtype;
      Case problem(spec);
      write_special_values(problem.forward.v);
      if (spec.bias == BiasKind::full && spec.left < 0) hide_all_but_the_diagonal(problem.forward.bias);
      for (const cpu::Target target : cpu::available_targets()) {
        if (target_for_type(target, dtype) != target) continue;
        const ForcedTarget forced_target(name(target));
        const bool bf16_products = target == cpu::Target::avx512_bf16 || target == cpu::Target::amx;
        for (const std::string& kernel : kernels) {
          if (!obstacle(kernel).empty()) continue;  // needs vectors
          SCOPED_TRACE(describe(spec) + ", " + kernel + " on " + name(target));
          const ForceKernel forced(kernel);
          problem.poison();
          tessera::forward(problem.attention, problem.forward);
          const bool flushes = bf16_products && (kernel == "cpu.flash2" || kernel == "cpu.decode");
          ASSERT_EQ(first_wrong_value(problem, flushes), "");
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, EdgeTest,
                         testing::Combine(testing::ValuesIn(kDTypes), testing::ValuesIn(cpu_kernels())),
                         test_name);

}  // namespace
}  // namespace tessera::test
