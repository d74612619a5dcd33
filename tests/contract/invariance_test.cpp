// A row does not depend on what else is in the call: a sequence gives the same bits
// alone and beside others, in a packed batch, a plain batch and a shard by heads,
// forward and backward, for every CPU kernel. Lengths reach every rule by which a
// kernel cuts its work: chunks of keys backward, splits of cpu.decode, keys per step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

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
using reference::VisibleKind;

// This kernel takes nothing but packed sequences.
constexpr const char* kPackedAlone = "cpu.packed";

// Without a name the library chooses: also between kernels, and so must not look at neighbours.
constexpr const char* kAutomatic = "";

// A call with all its tensors.
struct Call {
  Attention attention;
  ForwardTensors forward;
  BackwardTensors backward;
};

bool exists(const std::string& kernel, Direction direction) {
  for (const KernelInfo& info : kernels()) {
    if (info.name == kernel && info.direction == direction) return true;
  }
  return false;
}

// A kernel without backward leaves that to the automatic choice.
void run_forward(const Call& call, const std::string& kernel, const Execution& execution) {
  const ForceKernel forced(kernel);
  forward(call.attention, call.forward, execution);
}
void run_backward(const Call& call, const std::string& kernel, const Execution& execution) {
  const ForceKernel forced(exists(kernel, Direction::backward) ? kernel : kAutomatic);
  backward(call.attention, call.backward, execution);
}

// Which part of a call: one sequence (or batch entry) and some key/value heads with
// their query heads.
struct Part {
  std::int64_t sequence = 0;
  std::int64_t kv_head = 0;
  std::int64_t kv_heads = 1;
};

// What belongs to a part of a call, in the tensors of the whole.
Call part_of(const Call& whole, const Part& part) {
  const Lengths& lengths = whole.attention.mask.lengths;
  const bool packed = lengths.count != 0;
  const std::int64_t group = whole.forward.q.shape[2] / whole.forward.k.shape[2];
  const std::int64_t head = part.kv_head * group, heads = part.kv_heads * group;
  auto rows = [&](const Tensor& t, int dimension, const std::int32_t* cumulative) {
    if (!packed) return slice(t, 0, part.sequence, 1);
    const std::int64_t begin = cumulative[part.sequence];
    return slice(t, dimension, begin, cumulative[part.sequence + 1] - begin);
  };
  auto of_queries = [&](const Tensor& t) { return slice(rows(t, 1, lengths.q), 2, head, heads); };
  auto of_keys = [&](const Tensor& t) {
    return slice(rows(t, 1, lengths.k), 2, part.kv_head, part.kv_heads);
  };
  auto of_rows = [&](const Tensor& t) { return slice(rows(t, 2, lengths.q), 1, head, heads); };
  Call result = whole;
  ForwardTensors& f = result.forward;
  BackwardTensors& b = result.backward;
  for (Tensor* t : {&f.q, &f.out, &b.q, &b.out, &b.grad_out, &b.grad_q}) *t = of_queries(*t);
  for (Tensor* t : {&f.k, &f.v, &b.k, &b.v, &b.grad_k, &b.grad_v}) *t = of_keys(*t);
  for (Tensor* t : {&f.lse, &b.lse, &b.grad_lse}) *t = of_rows(*t);
  for (Tensor* t : {&f.bias, &b.bias, &b.grad_bias, &f.visible, &b.visible}) {
    if (!t->given()) continue;
    *t = slice(slice(*t, 0, part.sequence, 1), 1, head, heads);
    if (packed) *t = slice(slice(*t, 2, 0, f.q.shape[1]), 3, 0, f.k.shape[1]);
  }
  result.attention.mask.lengths = {};
  result.attention.origin.batch += part.sequence;
  result.attention.origin.head += head;
  Alibi& alibi = result.attention.alibi;
  if (alibi.slopes != nullptr) alibi.slopes += part.sequence * alibi.batch_stride + head;
  return result;
}

// How a sequence is alone: as a plain batch of one, or as the only one of a packed call.
enum class Form { plain, packed };

// The part of a call as a call of its own, with results of its own.
class Alone {
 public:
  Alone(const Call& whole, const Part& part, Form form) : within_(part_of(whole, part)), call_(within_) {
    if (form == Form::packed) {
      q_[1] = static_cast<std::int32_t>(call_.forward.q.shape[1]);
      k_[1] = static_cast<std::int32_t>(call_.forward.k.shape[1]);
      call_.attention.mask.lengths = {.q = q_, .k = k_, .count = 1};
    }
    auto fresh = [&](Tensor& t) {
      if (!t.given()) return;
      results_.emplace_back(t.dtype, t.shape, MemoryLayout{});
      t = results_.back().view();
    };
    ForwardTensors& f = call_.forward;
    BackwardTensors& b = call_.backward;
    for (Tensor* t : {&f.out, &f.lse, &b.grad_q, &b.grad_k, &b.grad_v, &b.grad_bias}) fresh(*t);
  }

  // Where the results of the whole call and of this one differ, in words. Backward gets
  // what the whole call's forward wrote, so that each direction is judged for itself.
  std::string difference(const std::string& kernel, const Execution& execution) {
    run_forward(call_, kernel, execution);
    run_backward(call_, kernel, execution);
    return first_difference(within_.forward, call_.forward) +
           first_difference(within_.backward, call_.backward);
  }

 private:
  Call within_, call_;
  std::int32_t q_[2] = {}, k_[2] = {};
  std::vector<OwnedTensor> results_;
};

// Compares every sequence, with all heads or head by head, with what it gives alone.
void expect_independent(const Call& whole, const std::string& kernel, std::int64_t sequences,
                        std::int64_t heads_together, Form form = Form::plain) {
  run_forward(whole, kernel, {.threads = 5});
  run_backward(whole, kernel, {.threads = 2});
  const std::int64_t kv_heads = whole.forward.k.shape[2];
  for (std::int64_t s = 0; s < sequences; ++s) {
    for (std::int64_t h = 0; h < kv_heads; h += heads_together) {
      Alone alone(whole, {s, h, std::min(heads_together, kv_heads - h)}, form);
      for (const int threads : {1, 2, 5}) {
        EXPECT_EQ(alone.difference(kernel, {.threads = threads}), "")
            << "sequence " << s << " key/value heads from " << h << ", alone with " << threads << " threads";
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// CPU kernels that run forward here, and the automatic choice. `packed`: also those
// for packed sequences alone.
std::vector<std::string> forward_kernels(bool packed) {
  std::vector<std::string> names = {kAutomatic};
  for (const KernelInfo& info : kernels()) {
    if (info.device != DeviceType::cpu || info.direction != Direction::forward) continue;
    const ForceKernel forced(info.name);
    Attention attention;
    if (packed) attention.mask.lengths = {nullptr, nullptr, 2, 8, 8};
    try {
      (void)plan(attention, Shapes{.batch = packed ? 2 : 1, .q_length = 8, .k_length = 8});
      names.push_back(info.name);
    } catch (const Error& error) {
      std::cout << "note: " << reference::what_it_lacks(info.name, error.what()) << '\n';
    }
  }
  return names;
}

std::string invariance_name(const testing::TestParamInfo<TypeAndKernel>& info) {
  const std::string& kernel = std::get<1>(info.param);
  return kernel.empty() ? std::string(name(std::get<0>(info.param))) + "_automatic" : test_name(info);
}

class Invariance : public testing::TestWithParam<TypeAndKernel> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  const std::string& kernel() const { return std::get<1>(GetParam()); }
};

// ---- packed sequences ---------------------------------------------------------------------------

struct PackedLengths {
  std::vector<std::int64_t> q, k;
};

// The problem of a spec as packed sequences of these lengths; q_length, k_length
// and batch of the spec do not matter.
class PackedProblem {
 public:
  PackedProblem(CaseSpec spec, const PackedLengths& lengths)
      : cumulative_q_(cumulative(lengths.q)), cumulative_k_(cumulative(lengths.k)), case_([&] {
          spec.batch = 1;
          spec.q_length = cumulative_q_.back();
          spec.k_length = cumulative_k_.back();
          return spec;
        }()) {
    case_.attention.mask.lengths = {.q = cumulative_q_.data(),
                                    .k = cumulative_k_.data(),
                                    .count = static_cast<std::int64_t>(lengths.q.size())};
  }

  [[nodiscard]] Call call() const { return {case_.attention, case_.forward, case_.backward}; }
  [[nodiscard]] std::int64_t sequences() const { return static_cast<std::int64_t>(cumulative_q_.size()) - 1; }

 private:
  static std::vector<std::int32_t> cumulative(const std::vector<std::int64_t>& lengths) {
    std::vector<std::int32_t> sums{0};
    for (const std::int64_t length : lengths) sums.push_back(sums.back() + static_cast<std::int32_t>(length));
    return sums;
  }

  std::vector<std::int32_t> cumulative_q_, cumulative_k_;
  Case case_;
};

class PackedInvariance : public Invariance {
 protected:
  void expect_each_alone(CaseSpec spec, const PackedLengths& lengths) {
    spec.dtype = dtype();
    SCOPED_TRACE(describe(spec));
    const PackedProblem problem(spec, lengths);
    if (kernel() != kPackedAlone) {
      expect_independent(problem.call(), kernel(), problem.sequences(), spec.kv_heads);
    }
    expect_independent(problem.call(), kernel(), problem.sequences(), spec.kv_heads, Form::packed);
  }
};

const CaseSpec kSmall{.q_heads = 2, .kv_heads = 2, .qk_dim = 8, .v_dim = 8};

// 512 and 1024 keys: two chunks backward, four.
TEST_P(PackedInvariance, SequencesOfAnyLength) {
  const std::int64_t longest = scaled(1500, 1030, "keys of the longest of packed sequences:");
  const PackedLengths lengths{{5, 600, 0, 100, longest}, {5, 600, 30, 100, longest}};
  CaseSpec spec = kSmall;
  expect_each_alone(spec, lengths);
  spec.right = 0;
  expect_each_alone(spec, lengths);
}

// 16 queries are cpu.decode's; 17 are not.
TEST_P(PackedInvariance, FewAndManyQueries) {
  const PackedLengths lengths{{16, 17, 1, 3, 64}, {1100, 1100, 2900, 9, 300}};
  CaseSpec spec{.q_heads = 6, .kv_heads = 2, .qk_dim = 64, .v_dim = 32, .right = 0};
  expect_each_alone(spec, lengths);
  spec.alibi = true;
  spec.dropout = 0.2;
  spec.softcap = 5;
  spec.left = 700;
  expect_each_alone(spec, lengths);
}

// From 4096 keys on a causal mask has twice as many chunks.
TEST_P(PackedInvariance, ChunksOfLongSequences) {
  const PackedLengths lengths{{40, 40, 20, 18}, {600, 4200, 2100, 4095}};
  for (const std::int64_t right : {-1, 0}) {
    CaseSpec spec = kSmall;
    spec.right = right;
    spec.grad_lse = true;
    expect_each_alone(spec, lengths);
  }
}

// Steps grow with the keys, so that a row of a million is no sum of too many.
TEST_P(PackedInvariance, KeysPerStep) {
  if (kernel() == "cpu.standard" || kernel() == "cpu.flash1") {
    GTEST_SKIP() << "too slow over so many keys; its steps have one length";
  }
  const std::int64_t many = scaled(1 << 20, 1 << 19, "keys of one of two sequences:");
  expect_each_alone({.q_heads = 1, .kv_heads = 1, .qk_dim = 2, .v_dim = 2}, {{17, 17}, {700, many}});
}

// What lies past the end of a sequence in the tensor of the mask must not count.
TEST_P(PackedInvariance, ABooleanMaskOfItsOwn) {
  for (const VisibleKind kind : {VisibleKind::full, VisibleKind::per_head, VisibleKind::padding}) {
    const CaseSpec spec{.dtype = dtype(),
                        .batch = 4,
                        .q_length = 150,
                        .k_length = 600,
                        .q_heads = 4,
                        .kv_heads = 2,
                        .qk_dim = 8,
                        .v_dim = 8,
                        .packed = true,
                        .seed = 4,
                        .visible = kind};
    SCOPED_TRACE(describe(spec));
    const Case problem(spec);
    const Call call{problem.attention, problem.forward, problem.backward};
    if (kernel() != kPackedAlone) expect_independent(call, kernel(), spec.batch, spec.kv_heads);
    expect_independent(call, kernel(), spec.batch, spec.kv_heads, Form::packed);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, PackedInvariance,
                         testing::Combine(testing::ValuesIn(kDTypes),
                                          testing::ValuesIn(forward_kernels(true))),
                         invariance_name);

// cpu.packed cuts short sequences out of the call: everything that belongs to them must come along.
TEST(PackedKernel, AgreesWithTheOracleWhereEverySequenceHasItsOwn) {
  if (const std::vector<std::string> names = forward_kernels(true);
      std::find(names.begin(), names.end(), kPackedAlone) == names.end()) {
    GTEST_SKIP() << "no vector instruction set";
  }
  const CaseSpec plain{
      .batch = 6, .q_length = 40, .k_length = 90, .q_heads = 4, .kv_heads = 2, .packed = true};
  std::vector<CaseSpec> specs(6, plain);
  specs[0].bias = BiasKind::full;
  specs[1].blocks = BlockKind::random_per_head, specs[1].block_q = 8, specs[1].block_k = 16;
  specs[2].alibi = specs[2].alibi_per_batch = true, specs[2].right = 0;
  specs[3].dropout = 0.3, specs[3].origin = {.row = 3, .column = 5, .batch = 2, .head = 9};
  specs[4].kv_heads = 4, specs[4].blocks = BlockKind::random_per_head, specs[4].bias = BiasKind::per_batch;
  specs[5].visible = VisibleKind::full;
  for (CaseSpec& spec : specs) {
    for (const DType dtype : kDTypes) {
      spec.dtype = dtype;
      const reference::Verdict verdict = reference::verify(spec, kPackedAlone);
      EXPECT_TRUE(verdict.ok) << describe(spec) << ": " << verdict.message;
    }
  }
}

// ---- batch and heads ----------------------------------------------------------------------------

class BatchInvariance : public Invariance {
 protected:
  void expect_each_alone(CaseSpec spec, std::int64_t heads_together) {
    spec.dtype = dtype();
    SCOPED_TRACE(describe(spec));
    const Case problem(spec);
    expect_independent({problem.attention, problem.forward, problem.backward}, kernel(), spec.batch,
                       heads_together);
  }
};

TEST_P(BatchInvariance, ABatchEntry) {
  CaseSpec spec{.batch = 3,
                .q_length = 200,
                .k_length = 1100,
                .q_heads = 2,
                .kv_heads = 1,
                .qk_dim = 16,
                .v_dim = 8,
                .right = 0};
  expect_each_alone(spec, 1);
  spec.q_length = 3;
  spec.alibi = true;
  spec.alibi_per_batch = true;
  spec.dropout = 0.1;
  spec.grad_lse = true;
  expect_each_alone(spec, 1);
}

// A shard by heads, which its origin places: one head, or four, of eight.
TEST_P(BatchInvariance, ShardsByHeads) {
  CaseSpec spec{.batch = 1,
                .q_length = 150,
                .k_length = 4200,
                .q_heads = 8,
                .kv_heads = 8,
                .qk_dim = 8,
                .v_dim = 8,
                .right = 0};
  expect_each_alone(spec, 4);
  spec.q_heads = 16;
  spec.k_length = 700;
  spec.dropout = 0.1;
  spec.alibi = true;
  spec.origin = {.row = 5, .column = 3, .batch = 2, .head = 7};
  for (const std::int64_t together : {1, 4}) expect_each_alone(spec, together);
  spec.q_length = 2;
  expect_each_alone(spec, 1);
}

// What is not finite in one query head changes no bit of another one, which may share its keys.
TEST_P(BatchInvariance, ANonFiniteHeadBesideIt) {
  for (const std::int64_t q_length : {3, 40}) {
    const CaseSpec spec{.dtype = dtype(),
                        .batch = 2,
                        .q_length = q_length,
                        .k_length = 700,
                        .q_heads = 4,
                        .kv_heads = 2,
                        .qk_dim = 64,
                        .v_dim = 64};
    SCOPED_TRACE(describe(spec));
    const Case clean(spec), poisoned(spec);
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    for (std::int64_t i = 0; i < q_length; ++i) reference::write(poisoned.forward.q, 0, i, 1, i, kNaN);
    for (const Case* problem : {&clean, &poisoned}) {
      run_forward({problem->attention, problem->forward, {}}, kernel(), {.threads = 2});
    }
    for (std::int64_t b = 0; b < spec.batch; ++b) {
      for (std::int64_t h = 0; h < spec.q_heads; ++h) {
        auto head = [&](const Tensor& t) { return slice(slice(t, 0, b, 1), 2, h, 1); };
        if (b == 0 && h == 1) {
          EXPECT_TRUE(std::isnan(reference::read(poisoned.forward.out, 0, 0, 1, 0)));
        } else {
          EXPECT_EQ(first_difference(head(clean.forward.out), head(poisoned.forward.out)), "")
              << "batch " << b << " head " << h;
        }
      }
    }
  }
}

// A key that is not finite takes another product with it, which must not round
// differently: how many keys share it depends on the number of threads.
TEST_P(BatchInvariance, ANonFiniteKeyForAnyNumberOfThreads) {
  for (const std::int64_t dim : {8, 64}) {
    const CaseSpec spec{.dtype = dtype(),
                        .batch = 1,
                        .q_length = 1100,
                        .k_length = 1100,
                        .q_heads = 1,
                        .kv_heads = 1,
                        .qk_dim = dim,
                        .v_dim = dim,
                        .right = 0};
    Case problem(spec);
    reference::write(problem.forward.k, 0, 700, 0, 1, std::numeric_limits<double>::infinity());
    const Call call{problem.attention, problem.forward, problem.backward};
    run_forward(call, kernel(), {});
    std::vector<double> expected;
    for (const int threads : {1, 2, 3, 5, 8}) {
      run_backward(call, kernel(), {.threads = threads});
      std::vector<double> result = reference::values(problem.backward.grad_q);
      for (const Tensor& t : {problem.backward.grad_k, problem.backward.grad_v}) {
        const std::vector<double> more = reference::values(t);
        result.insert(result.end(), more.begin(), more.end());
      }
      if (expected.empty()) expected = result;
      std::size_t finite = 0, different = 0;
      for (std::size_t e = 0; e < result.size(); ++e) {
        finite += std::isfinite(result[e]) ? 1 : 0;
        different += result[e] == expected[e] || (std::isnan(result[e]) && std::isnan(expected[e])) ? 0 : 1;
      }
      EXPECT_EQ(different, 0U) << threads << " threads, dim " << dim;
      EXPECT_GT(finite, 600U * static_cast<std::size_t>(dim)) << "rows that do not see the key";
    }
  }
}

// The gradient of a bias that was not broadcast, too.
TEST_P(BatchInvariance, WithABiasOfItsOwn) {
  const CaseSpec spec{.batch = 2,
                      .q_length = 70,
                      .k_length = 600,
                      .q_heads = 4,
                      .kv_heads = 2,
                      .qk_dim = 8,
                      .v_dim = 8,
                      .blocks = BlockKind::local,
                      .bias = BiasKind::full,
                      .softcap = 4};
  expect_each_alone(spec, 1);
}

TEST_P(BatchInvariance, WithABooleanMaskOfItsOwn) {
  CaseSpec spec{.batch = 2,
                .q_length = 140,
                .k_length = 600,
                .q_heads = 4,
                .kv_heads = 2,
                .qk_dim = 8,
                .v_dim = 8,
                .right = 0,
                .visible = VisibleKind::full};
  expect_each_alone(spec, 1);
  spec.visible = VisibleKind::padding;
  expect_each_alone(spec, 1);
  spec.q_length = 3;
  spec.visible = VisibleKind::full;
  expect_each_alone(spec, 1);
}

INSTANTIATE_TEST_SUITE_P(Cpu, BatchInvariance,
                         testing::Combine(testing::ValuesIn(kDTypes),
                                          testing::ValuesIn(forward_kernels(false))),
                         invariance_name);

}  // namespace
}  // namespace tessera::test
