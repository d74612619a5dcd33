// cpu.decode: few queries, many keys. The whole contract at small q_length and
// several splits of the keys, on every vector instruction set; the same bits for
// every number of threads, batch and group; when it is chosen.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/base/environment.h"
#include "cpu/machine/target.h"
#include "reference/tolerance/check.h"
#include "support/build.h"
#include "support/kernels.h"
#include "support/tensors.h"
#include "tessera/error.h"

namespace tessera::test {
namespace {

using reference::BiasKind;
using reference::BlockKind;
using reference::Case;
using reference::CaseSpec;
using reference::ForceKernel;

constexpr const char* kKernel = "cpu.decode";

std::vector<cpu::Target> vector_targets() {
  std::vector<cpu::Target> targets = cpu::available_targets();
  std::erase(targets, cpu::Target::portable);
  return targets;
}

// On every instruction set; what the case should give is the slow part, and the same for all.
void expect_right(const CaseSpec& spec) {
  Case problem(spec);
  const reference::Expected expected = reference::expect(problem);
  for (const cpu::Target target : vector_targets()) {
    const ForcedTarget forced(name(target));
    problem.poison();
    reference::run(problem, kKernel);
    const reference::Verdict verdict = reference::judge(problem, expected);
    EXPECT_TRUE(verdict.ok) << name(target) << ' ' << describe(spec) << ": " << verdict.message;
  }
}

// Every feature with few queries and keys of several splits.
std::vector<CaseSpec> decode_cases(DType dtype) {
  const CaseSpec base{
      .batch = 1, .q_length = 2, .k_length = 1100, .q_heads = 6, .kv_heads = 2, .qk_dim = 128, .v_dim = 128};
  std::vector<CaseSpec> cases;
  auto add = [&](const char* name, auto&& change) {
    CaseSpec spec = base;
    spec.name = name;
    spec.dtype = dtype;
    change(spec);
    cases.push_back(std::move(spec));
  };
  add("plain", [](CaseSpec&) {});
  add("one query", [](CaseSpec& s) { s.q_length = 1; });
  add("one row", [](CaseSpec& s) { s.q_length = 1, s.q_heads = 2; });
  add("group of 4", [](CaseSpec& s) { s.q_length = 1, s.q_heads = 8; });
  add("group of 7", [](CaseSpec& s) { s.q_length = 1, s.q_heads = 14; });
  add("causal", [](CaseSpec& s) { s.right = 0; });
  add("causal, top left", [](CaseSpec& s) { s.right = 0, s.align = Align::top_left; });
  add("empty rows", [](CaseSpec& s) { s.right = 0, s.diagonal = -2; });
  add("nothing visible", [](CaseSpec& s) { s.right = 0, s.diagonal = -200; });
  add("window", [](CaseSpec& s) { s.left = 600, s.right = 0; });
  add("window in the middle", [](CaseSpec& s) { s.left = 3, s.right = 4, s.diagonal = 510; });
  add("blocks", [](CaseSpec& s) { s.blocks = BlockKind::random, s.block_q = 2, s.block_k = 40; });
  add("blocks per head",
      [](CaseSpec& s) { s.blocks = BlockKind::random_per_head, s.block_q = 1, s.block_k = 24, s.right = 0; });
  add("packed", [](CaseSpec& s) { s.packed = true, s.batch = 6; });
  add("packed, causal", [](CaseSpec& s) { s.packed = true, s.batch = 6, s.right = 0, s.seed = 3; });
  add("v wider", [](CaseSpec& s) { s.qk_dim = 40, s.v_dim = 200; });
  add("v narrower", [](CaseSpec& s) { s.qk_dim = 72, s.v_dim = 3; });
  add("bias", [](CaseSpec& s) { s.bias = BiasKind::full; });
  add("boolean mask", [](CaseSpec& s) { s.visible = reference::VisibleKind::full; });
  add("padding", [](CaseSpec& s) { s.visible = reference::VisibleKind::padding; });
  add("bias row", [](CaseSpec& s) { s.bias = BiasKind::row, s.bias_in_accumulator_type = true; });
  add("ALiBi", [](CaseSpec& s) { s.alibi = true, s.alibi_per_batch = true; });
  add("softcap", [](CaseSpec& s) { s.softcap = 5, s.input_scale = 2; });
  add("dropout", [](CaseSpec& s) { s.dropout = 0.3; });
  add("LSE gradient", [](CaseSpec& s) { s.grad_lse = true; });
  add("large logits", [](CaseSpec& s) { s.input_scale = 4; });
  add("shard", [](CaseSpec& s) {
    s.right = 0, s.align = Align::top_left, s.dropout = 0.2, s.alibi = true;
    s.origin = {.row = 2050, .column = 1003, .batch = 7, .head = 3};
  });
  add("everything", [](CaseSpec& s) {
    s.left = 900, s.right = 1, s.blocks = BlockKind::random_per_head, s.block_q = 2, s.block_k = 56;
    s.bias = BiasKind::per_head, s.alibi = true, s.softcap = 8, s.dropout = 0.1, s.qk_dim = 33, s.v_dim = 17;
    s.packed = true, s.batch = 4;
  });
  return cases;
}

class DecodeOracle : public testing::TestWithParam<DType> {};

TEST_P(DecodeOracle, AgreesWithOracle) {
  const int step = scaled(1, 6, "one case in `step`", 24);
  int index = 0;
  for (const CaseSpec& spec : decode_cases(GetParam())) {
    if (index++ % step == 0) expect_right(spec);
  }
}

TEST_P(DecodeOracle, ServesTheFeatureMatrix) {
  const int step = scaled(3, 40, "one case in `step`", 200);
  int index = 0;
  for (const CaseSpec& spec : reference::feature_matrix(GetParam())) {
    if (index++ % step == 0) expect_right(spec);
  }
}

TEST_P(DecodeOracle, AnyNumberOfKeysAndAnyHeadDim) {
  const int step = scaled(1, 8, "one size in `step`", 20);
  for (int i = 0; i < 40; i += step) {
    const std::int64_t keys = i < 20 ? 1 + i * 2 : 513 - (39 - i) * 23;
    expect_right({.dtype = GetParam(),
                  .batch = 1,
                  .q_length = 1 + i % 2,
                  .k_length = keys,
                  .q_heads = 1 + i % 5,
                  .kv_heads = 1,
                  .qk_dim = 1 + (i * 37) % 256,
                  .v_dim = 1 + (i * 83 + 90) % 256,
                  .seed = static_cast<std::uint64_t>(i)});
  }
}

INSTANTIATE_TEST_SUITE_P(Every, DecodeOracle, testing::ValuesIn(kDTypes), dtype_test_name);

// ---- bits ---------------------------------------------------------------------------------------

using Parameters = std::tuple<DType, cpu::Target>;

class Decode : public testing::TestWithParam<Parameters> {
 protected:
  static DType dtype() { return std::get<0>(GetParam()); }

 private:
  ForcedTarget forced_{name(std::get<1>(GetParam()))};
};

// Row 0 does not see the last keys, row 1 does: their NaN must not reach row 0, and
// must reach row 1.
TEST_P(Decode, NaNStaysWithTheRowsThatSeeIt) {
  for (const std::int64_t dim : {24, 64}) {
    const CaseSpec spec{.dtype = dtype(),
                        .batch = 1,
                        .q_length = 2,
                        .k_length = 700,
                        .q_heads = 2,
                        .kv_heads = 1,
                        .qk_dim = dim,
                        .v_dim = dim,
                        .right = 0};
    Case problem(spec);
    for (std::int64_t c = 0; c < dim; ++c) {
      reference::write(problem.forward.v, 0, spec.k_length - 1, 0, c,
                       std::numeric_limits<double>::quiet_NaN());
    }
    const ForceKernel forced(kKernel);
    forward(problem.attention, problem.forward);
    const std::vector<double> out = reference::values(problem.forward.out);  // (query, head, column)
    for (std::size_t e = 0; e < out.size(); ++e) {
      EXPECT_EQ(std::isnan(out[e]), e >= out.size() / 2) << "dim " << dim << " element " << e;
    }
  }
}

// The splits decide the order of sums; threads, their timing and repetition decide nothing.
TEST_P(Decode, AnyNumberOfThreadsGivesTheSameBits) {
  const ForceKernel forced(kKernel);
  for (const bool packed : {false, true}) {
    Case problem({.dtype = dtype(),
                  .batch = 3,
                  .q_length = 2,
                  .k_length = 2900,
                  .q_heads = 6,
                  .kv_heads = 3,
                  .qk_dim = 64,
                  .v_dim = 64,
                  .right = 0,
                  .packed = packed});
    forward(problem.attention, problem.forward, {.threads = 1});
    const std::vector<double> out = reference::values(problem.forward.out);
    const std::vector<double> lse = reference::values(problem.forward.lse);
    for (int threads = 1; threads <= 8; ++threads) {
      problem.poison();
      forward(problem.attention, problem.forward, {.threads = threads});
      EXPECT_EQ(reference::values(problem.forward.out), out) << threads << " threads";
      EXPECT_EQ(reference::values(problem.forward.lse), lse) << threads << " threads";
    }
  }
}

// How memory is read, which the machine decides, changes no bit, also where the band hides an
// infinite value from some rows.
TEST_P(Decode, AnyPrefetchGivesTheSameBits) {
  const ForceKernel forced(kKernel);
  for (const CaseSpec& mask : {CaseSpec{}, CaseSpec{.right = 0}, CaseSpec{.left = 300, .right = 0},
                               CaseSpec{.blocks = BlockKind::random_per_head, .block_q = 2, .block_k = 40}}) {
    CaseSpec spec = mask;
    spec.dtype = dtype(), spec.batch = 1, spec.q_length = 3, spec.k_length = 1800;
    spec.q_heads = 8, spec.kv_heads = 2, spec.qk_dim = spec.v_dim = 64;
    Case problem(spec);
    reference::write(problem.forward.v, 0, spec.k_length - 1, 0, 5, std::numeric_limits<double>::infinity());
    std::vector<double> out, lse;
    for (const char* prefetch : {"keep", "pass"}) {
      const core::EnvironmentOverride forced_prefetch(&core::Environment::decode_prefetch, prefetch);
      problem.poison();
      forward(problem.attention, problem.forward);
      const std::vector<double> values = reference::values(problem.forward.out);
      if (out.empty()) out = values, lse = reference::values(problem.forward.lse);
      ASSERT_EQ(values.size(), out.size());
      // Bytes, because some are NaN.
      EXPECT_EQ(std::memcmp(values.data(), out.data(), out.size() * sizeof(double)), 0) << prefetch;
      EXPECT_EQ(reference::values(problem.forward.lse), lse) << prefetch;
    }
  }
}

TEST(DecodePrefetch, KeepsOrPasses) {
  const ForceKernel forced(kKernel);
  Case problem({.batch = 1, .q_length = 1, .k_length = 64, .q_heads = 1, .kv_heads = 1});
  for (const char* wrong : {"", "nta", "Keep", "pass "}) {
    const core::EnvironmentOverride prefetch(&core::Environment::decode_prefetch, wrong);
    try {
      forward(problem.attention, problem.forward);
      ADD_FAILURE() << "accepted '" << wrong << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("TESSERA_DECODE_PREFETCH"), std::string::npos) << error.what();
    }
  }
}

// Heads side by side or apart, gaps, negative strides: the same bits, and nothing
// is touched around the tensors.
TEST_P(Decode, AnyLayoutGivesTheSameBits) {
  const ForceKernel forced(kKernel);
  for (const std::int64_t dim : {13, 40, 64}) {
    const Case problem({.dtype = dtype(),
                        .batch = 2,
                        .q_length = 1,
                        .k_length = 1061,
                        .q_heads = 8,
                        .kv_heads = 4,
                        .qk_dim = dim,
                        .v_dim = dim});
    forward(problem.attention, problem.forward);
    const MemoryLayout layouts[] = {
        {}, {.order = {0, 2, 1, 3}}, {.gap = 5, .offset = 1}, {.order = {1, 0, 2, 3}, .reversed = true}};
    for (const MemoryLayout& layout : layouts) {
      RelaidCase relaid(problem, layout);
      forward(relaid.attention, relaid.forward);
      EXPECT_EQ(first_difference(problem.forward, relaid.forward), "") << "dim " << dim;
      EXPECT_EQ(relaid.damage(), "");
    }
  }
}

// Neither the batch nor the heads of a call change a row: each query head alone
// gives the same bits.
TEST_P(Decode, ARowIsTheSameAloneAndInItsGroup) {
  const ForceKernel forced(kKernel);
  const CaseSpec spec{.dtype = dtype(),
                      .batch = 2,
                      .q_length = 1,
                      .k_length = 1300,
                      .q_heads = 14,
                      .kv_heads = 2,
                      .qk_dim = 96,
                      .v_dim = 64};
  Case problem(spec);
  forward(problem.attention, problem.forward);
  const ForwardTensors& t = problem.forward;
  for (std::int64_t b = 0; b < spec.batch; ++b) {
    for (std::int64_t h = 0; h < spec.q_heads; ++h) {
      auto one = [&](const Tensor& tensor, std::int64_t head) {
        return slice(slice(tensor, 0, b, 1), 2, head, 1);
      };
      const OwnedTensor out(dtype(), {1, 1, 1, spec.v_dim}, {});
      forward(problem.attention,
              {.q = one(t.q, h), .k = one(t.k, h / 7), .v = one(t.v, h / 7), .out = out.view()});
      EXPECT_EQ(first_difference(one(t.out, h), out.view()), "") << "batch " << b << " head " << h;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Decode, testing::ValuesIn(pairs_with_types(vector_targets())),
                         [](const testing::TestParamInfo<Parameters>& parameters) {
                           return std::string(name(std::get<0>(parameters.param))) + "_" +
                                  name(std::get<1>(parameters.param));
                         });

// ---- choice -------------------------------------------------------------------------------------

std::string why_not(const Plan& plan, const std::string& kernel) {
  for (const Rejection& rejection : plan.rejected) {
    if (rejection.kernel == kernel) return rejection.reason;
  }
  return "not among the rejections";
}

TEST(DecodeChoice, FewQueriesAreItsOwn) {
  if (vector_targets().empty()) GTEST_SKIP() << "no vector instruction set";
  const Plan decode = plan({}, Shapes{.q_length = 1, .k_length = 4096, .q_heads = 32, .kv_heads = 8});
  EXPECT_EQ(decode.kernel, kKernel);
  EXPECT_NE(decode.details.find("splits of"), std::string::npos) << decode.details;
  const Plan prefill = plan({}, Shapes{.q_length = 64, .k_length = 4096, .q_heads = 32, .kv_heads = 8});
  EXPECT_EQ(prefill.kernel, "cpu.flash2");
  EXPECT_EQ(why_not(prefill, kKernel), "supports at most 16 queries; this call has 64");
  EXPECT_EQ(plan({}, Shapes{.q_length = 12, .k_length = 64}).kernel, kKernel);
  EXPECT_EQ(plan({}, Shapes{.q_length = 12, .k_length = 32}).kernel, "cpu.flash2");
  EXPECT_EQ(plan({}, Shapes{.q_length = 16, .k_length = 513, .dtype = DType::fp16}).kernel, kKernel);
  EXPECT_EQ(plan({}, Shapes{.q_length = 16, .k_length = 512, .dtype = DType::fp16}).kernel, "cpu.flash2");
  const Plan cached = plan({}, Shapes{.q_length = 16, .k_length = 64});
  EXPECT_EQ(cached.kernel, "cpu.flash2");
  EXPECT_EQ(why_not(cached, kKernel), "is slower for 16 queries and 64 keys in fp32");
}

// What is chosen for a sequence alone does not change beside others.
TEST(DecodeChoice, PackedSequencesOfMoreQueriesAreDecidedOneByOne) {
  if (vector_targets().empty()) GTEST_SKIP() << "no vector instruction set";
  const std::vector<std::int32_t> q{0, 16, 32}, k{0, 64, 4160};
  const Shapes shapes{.batch = 2, .q_length = 16, .k_length = 4096};
  Attention attention;
  attention.mask.lengths = {.q = q.data(), .k = k.data(), .count = 2, .max_q = 16, .max_k = 4096};
  const Plan packed = plan(attention, shapes);
  EXPECT_EQ(packed.kernel, "cpu.packed");
}

TEST(DecodeChoice, WithoutVectorsItSaysSo) {
  const ForcedTarget forced(name(cpu::Target::portable));
  const Plan chosen = plan({}, Shapes{.q_length = 1, .k_length = 4096});
  EXPECT_EQ(chosen.kernel, "cpu.flash2");
  EXPECT_EQ(why_not(chosen, kKernel), "requires a vector instruction set; this CPU runs `portable`");
}

// The workspace is linear in the keys: one partial result per split.
TEST(DecodeChoice, WorkspaceIsLinearInTheKeys) {
  if (vector_targets().empty()) GTEST_SKIP() << "no vector instruction set";
  auto bytes = [](std::int64_t keys) {
    return static_cast<double>(plan({}, Shapes{.q_length = 1, .k_length = keys}).workspace_bytes);
  };
  EXPECT_LT(bytes(1 << 20), 2.5 * bytes(1 << 19));
}

}  // namespace
}  // namespace tessera::test
