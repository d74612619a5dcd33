// What must not matter: how tensors lie in memory, what was in outputs and
// workspace before, and what else is in the batch. Results are compared bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <span>

#include "reference/tolerance/check.h"
#include "support/build.h"
#include "support/kernels.h"
#include "support/tensors.h"
#include "tessera/error.h"

namespace tessera::test {
namespace {

using reference::BiasKind;
using reference::Case;
using reference::CaseSpec;
using reference::ForceKernel;

class LayoutTest : public testing::TestWithParam<TypeAndKernel> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  const std::string& kernel() const { return std::get<1>(GetParam()); }

  // A problem with a bit of everything, so that every tensor takes part.
  CaseSpec rich(std::int64_t head_dim) const {
    return {.dtype = dtype(),
            .q_length = 37,
            .k_length = 43,
            .q_heads = 4,
            .kv_heads = 2,
            .qk_dim = head_dim,
            .v_dim = head_dim,
            .right = 0,
            .bias = BiasKind::per_head,
            .dropout = 0.2,
            .grad_lse = true,
            .visible = reference::VisibleKind::per_head};
  }

  static void run_relaid(RelaidCase& relaid, const Execution& execution = {}) {
    tessera::forward(relaid.attention, relaid.forward, execution);
    tessera::backward(relaid.attention, relaid.backward, execution);
  }

  // The problem in another layout gives the same bits and touches nothing else.
  static void expect_same(const Case& plain, const MemoryLayout& layout, Fill outputs = Fill::nan,
                          const Execution& execution = {}) {
    RelaidCase relaid(plain, layout, outputs);
    run_relaid(relaid, execution);
    EXPECT_EQ(first_difference(plain.forward, relaid.forward), "");
    EXPECT_EQ(first_difference(plain.backward, relaid.backward), "");
    EXPECT_EQ(relaid.damage(), "");
  }
};

std::vector<std::array<int, 4>> all_orders() {
  std::array<int, 4> order = {0, 1, 2, 3};
  std::vector<std::array<int, 4>> all;
  do {
    all.push_back(order);
  } while (std::next_permutation(order.begin(), order.end()));
  return all;
}

std::string text(const std::array<int, 4>& order) {
  std::string digits;
  for (const int dimension : order) digits += static_cast<char>('0' + dimension);
  return "dimensions from outermost to innermost: " + digits;
}

// With head_dim 1 every one of the 24 orders of the dimensions is legal.
TEST_P(LayoutTest, AllStridePermutations) {
  const ForceKernel forced(kernel());
  Case plain(rich(1));
  run(plain, kernel());
  for (const auto& order : all_orders()) {
    SCOPED_TRACE(text(order));
    expect_same(plain, {.order = order});
    expect_same(plain, {.order = order, .gap = 3});
  }
}

// With more, the six that leave head_dim contiguous; the others are refused by name.
TEST_P(LayoutTest, StridePermutationsWithWiderHeads) {
  const ForceKernel forced(kernel());
  Case plain(rich(17));
  run(plain, kernel());
  for (const auto& order : all_orders()) {
    SCOPED_TRACE(text(order));
    if (order[3] == 3) {
      expect_same(plain, {.order = order});
      expect_same(plain, {.order = order, .gap = 5});
      expect_same(plain, {.order = order, .gap = 15, .reversed = true});
      continue;
    }
    RelaidCase relaid(plain, {.order = order});
    try {
      tessera::forward(relaid.attention, relaid.forward);
      ADD_FAILURE() << "head_dim is not contiguous, yet the call is accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("strides[3]"), std::string::npos) << error.what();
    }
  }
}

TEST_P(LayoutTest, GarbageStridesOnDimensionsOfSizeOne) {
  const ForceKernel forced(kernel());
  for (CaseSpec spec :
       {CaseSpec{.batch = 1, .q_heads = 1, .kv_heads = 1},
        CaseSpec{.batch = 1, .q_length = 1, .q_heads = 3, .kv_heads = 1, .qk_dim = 1, .v_dim = 1},
        CaseSpec{.batch = 2, .k_length = 1, .bias = BiasKind::row, .grad_lse = true},
        CaseSpec{.batch = 1,
                 .q_length = 1,
                 .k_length = 1,
                 .q_heads = 1,
                 .kv_heads = 1,
                 .qk_dim = 1,
                 .v_dim = 1,
                 .bias = BiasKind::full}}) {
    spec.dtype = dtype();
    SCOPED_TRACE(describe(spec));
    Case plain(spec);
    run(plain, kernel());
    expect_same(plain, {.garbage_strides = true});
  }
}

// Bands of 4 KiB around every tensor and every piece of workspace, over the whole contract.
// Outputs and workspace hold NaN first, then random bits: neither shows in the result.
TEST_P(LayoutTest, GuardBandsAndFormerContents) {
  const ForceKernel forced(kernel());
  std::size_t index = 0;
  const auto step = static_cast<std::size_t>(scaled(1, 8, "guard bands: one case of"));
  for (const CaseSpec& spec : reference::feature_matrix(dtype())) {
    if (index++ % step != 0) continue;
    SCOPED_TRACE(describe(spec));
    Case plain(spec);
    run(plain, kernel());
    for (const Fill fill : {Fill::nan, Fill::random}) {
      GuardedAllocator allocator(fill);
      expect_same(plain, {.gap = 2}, fill, {.allocator = &allocator});
      EXPECT_EQ(allocator.complaints(), "");
    }
  }
}

// Workspace that the caller lends, of exactly the size the plan says.
TEST_P(LayoutTest, LentWorkspace) {
  const ForceKernel forced(kernel());
  Case plain(rich(24));
  run(plain, kernel());
  const std::size_t forward_bytes = plan(plain.attention, plain.forward).workspace_bytes;
  const std::size_t backward_bytes = plan(plain.attention, plain.backward).workspace_bytes;
  for (const Fill fill : {Fill::nan, Fill::random}) {
    RelaidCase relaid(plain, {}, fill);
    const GuardedBuffer forward_space(forward_bytes, fill), backward_space(backward_bytes, fill);
    GuardedAllocator untouched;
    tessera::forward(relaid.attention, relaid.forward,
                     {.workspace = {forward_space.data(), forward_bytes}, .allocator = &untouched});
    tessera::backward(relaid.attention, relaid.backward,
                      {.workspace = {backward_space.data(), backward_bytes}, .allocator = &untouched});
    EXPECT_TRUE(forward_space.intact());
    EXPECT_TRUE(backward_space.intact());
    EXPECT_EQ(untouched.calls(), 0U);
    EXPECT_EQ(first_difference(plain.forward, relaid.forward), "");
    EXPECT_EQ(first_difference(plain.backward, relaid.backward), "");
  }
}

// q, k and v as views of one buffer (batch, sequence, all heads, head_dim), and
// their gradients likewise.
TEST_P(LayoutTest, InterleavedQkvAndGradients) {
  const ForceKernel forced(kernel());
  Case plain({.dtype = dtype(), .q_heads = 4, .kv_heads = 2, .qk_dim = 24, .v_dim = 24, .right = 0});
  run(plain, kernel());
  const Extents shape{2, 65, 8, 24};
  const OwnedTensor qkv(dtype(), shape, {}), gradients(dtype(), shape, {});
  ForwardTensors forward = plain.forward;
  forward.q = slice(qkv.view(), 2, 0, 4);
  forward.k = slice(qkv.view(), 2, 4, 2);
  forward.v = slice(qkv.view(), 2, 6, 2);
  for (const auto& [from, to] :
       {std::pair{plain.forward.q, forward.q}, {plain.forward.k, forward.k}, {plain.forward.v, forward.v}}) {
    for (std::int64_t e = 0; e < reference::count(from.shape); ++e) {
      const std::int64_t d = e % 24, head = e / 24 % from.shape[2], row = e / 24 / from.shape[2];
      reference::write(to, row / 65, row % 65, head, d, reference::read(from, row / 65, row % 65, head, d));
    }
  }
  const OwnedTensor out(dtype(), plain.forward.out.shape, {});
  forward.out = out.view();
  tessera::forward(plain.attention, forward);
  EXPECT_EQ(first_difference(plain.forward, forward), "");

  BackwardTensors backward = plain.backward;
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.grad_q = slice(gradients.view(), 2, 0, 4);
  backward.grad_k = slice(gradients.view(), 2, 4, 2);
  backward.grad_v = slice(gradients.view(), 2, 6, 2);
  tessera::backward(plain.attention, backward);
  EXPECT_EQ(first_difference(plain.backward, backward), "");
  EXPECT_TRUE(gradients.intact());
}

// Keys and values expanded with stride 0, over the batch and over the heads, are
// never copied nor mistaken.
TEST_P(LayoutTest, ExpandedKeysAndValues) {
  const ForceKernel forced(kernel());
  Case shared({.dtype = dtype(), .batch = 3, .q_heads = 4, .kv_heads = 1, .right = 0});
  tessera::forward(shared.attention, shared.forward);
  ForwardTensors expanded = shared.forward;
  const OwnedTensor out(dtype(), shared.forward.out.shape, {});
  const OwnedTensor lse(shared.forward.lse.dtype, shared.forward.lse.shape, {});
  expanded.out = out.view();
  expanded.lse = lse.view();
  for (Tensor* tensor : {&expanded.k, &expanded.v}) {
    tensor->shape[2] = 4;
    tensor->strides[2] = 0;
  }
  tessera::forward(shared.attention, expanded);
  EXPECT_EQ(first_difference(shared.forward, expanded), "") << "expanded over heads";

  // Over the batch: entry b must be what entry b gives with the keys and values of entry 0.
  ForwardTensors one_for_all = shared.forward;
  one_for_all.k.strides[0] = one_for_all.v.strides[0] = 0;
  one_for_all.out = out.view();
  one_for_all.lse = lse.view();
  tessera::forward(shared.attention, one_for_all);
  for (std::int64_t b = 0; b < 3; ++b) {
    const OwnedTensor single(dtype(), {1, 65, 4, 32}, {});
    ForwardTensors entry{.q = slice(shared.forward.q, 0, b, 1),
                         .k = slice(shared.forward.k, 0, 0, 1),
                         .v = slice(shared.forward.v, 0, 0, 1),
                         .out = single.view()};
    tessera::forward(shared.attention, entry);
    EXPECT_EQ(first_difference(slice(one_for_all.out, 0, b, 1), entry.out), "") << "batch entry " << b;
  }
}

// Runs one batch entry or packed sequence by itself, forward and backward: `rows`
// cuts what belongs to its queries out of a tensor, `keys` what belongs to its
// keys, `row_values` out of one like lse. Its results are those within the whole.
template <typename Rows, typename Keys, typename RowValues>
void expect_part_alone(const Case& whole, const Attention& attention, Rows&& rows, Keys&& keys,
                       RowValues&& row_values) {
  const BackwardTensors& t = whole.backward;
  auto fresh = [](const Tensor& like) { return OwnedTensor(like.dtype, like.shape, {}); };
  const OwnedTensor out = fresh(rows(t.out)), lse = fresh(row_values(t.lse));
  const OwnedTensor grad_q = fresh(rows(t.grad_q)), grad_k = fresh(keys(t.grad_k)),
                    grad_v = fresh(keys(t.grad_v));
  const BackwardTensors part{.q = rows(t.q),
                             .k = keys(t.k),
                             .v = keys(t.v),
                             .out = out.view(),
                             .lse = lse.view(),
                             .grad_out = rows(t.grad_out),
                             .grad_q = grad_q.view(),
                             .grad_k = grad_k.view(),
                             .grad_v = grad_v.view()};
  tessera::forward(attention, {.q = part.q, .k = part.k, .v = part.v, .out = part.out, .lse = part.lse});
  tessera::backward(attention, part);
  EXPECT_EQ(first_difference(rows(t.out), part.out), "") << "out";
  EXPECT_EQ(first_difference(row_values(t.lse), part.lse), "") << "lse";
  EXPECT_EQ(first_difference(rows(t.grad_q), part.grad_q), "") << "grad_q";
  EXPECT_EQ(first_difference(keys(t.grad_k), part.grad_k), "") << "grad_k";
  EXPECT_EQ(first_difference(keys(t.grad_v), part.grad_v), "") << "grad_v";
}

// A row is bitwise the same at batch 1 and at batch 8, and packed or alone. Over so many
// keys backward works in chunks; invariance_test.cpp reaches every other rule of cutting.
TEST_P(LayoutTest, BatchInvariance) {
  const ForceKernel forced(kernel());
  Case batch({.dtype = dtype(),
              .batch = 8,
              .q_length = 70,
              .k_length = 1100,
              .q_heads = 4,
              .kv_heads = 2,
              .qk_dim = 16,
              .v_dim = 16,
              .right = 0,
              .alibi = true,
              .dropout = 0.1});
  tessera::forward(batch.attention, batch.forward);
  tessera::backward(batch.attention, batch.backward);
  for (std::int64_t b = 0; b < 8; ++b) {
    SCOPED_TRACE("batch entry " + std::to_string(b));
    Attention attention = batch.attention;
    attention.origin.batch = b;
    auto entry = [b](const Tensor& t) { return slice(t, 0, b, 1); };
    expect_part_alone(batch, attention, entry, entry, entry);
  }
}

TEST_P(LayoutTest, PackedSequencesAreIndependent) {
  const ForceKernel forced(kernel());
  Case packed({.dtype = dtype(),
               .batch = 6,
               .q_length = 80,
               .k_length = 500,
               .qk_dim = 16,
               .v_dim = 16,
               .right = 0,
               .packed = true,
               .dropout = 0.1,
               .seed = 3});
  tessera::forward(packed.attention, packed.forward);
  tessera::backward(packed.attention, packed.backward);
  const Lengths lengths = packed.attention.mask.lengths;
  for (std::int64_t s = 0; s < lengths.count; ++s) {
    const std::int64_t q_length = lengths.q[s + 1] - lengths.q[s], k_length = lengths.k[s + 1] - lengths.k[s];
    if (q_length == 0 || k_length == 0) continue;
    SCOPED_TRACE("sequence " + std::to_string(s));
    Attention attention = packed.attention;
    attention.mask.lengths = {};
    attention.origin.batch = s;
    expect_part_alone(
        packed, attention, [&](const Tensor& t) { return slice(t, 1, lengths.q[s], q_length); },
        [&](const Tensor& t) { return slice(t, 1, lengths.k[s], k_length); },
        [&](const Tensor& t) { return slice(t, 2, lengths.q[s], q_length); });
  }
}

// ---- lent workspace, for every kernel -----------------------------------------------------------

// Workspace of exactly the bytes that the plan names, between guard bands and full
// of NaN, is enough for every kernel of the registry in every direction, at sizes
// of every kind, and changes no bit.
TEST(LentWorkspace, OfThePlansSizeIsEnoughForEveryKernel) {
  const CaseSpec specs[] = {
      {.batch = 1, .q_length = 1, .k_length = 1, .q_heads = 1, .kv_heads = 1, .qk_dim = 1, .v_dim = 1},
      {.q_length = 17,
       .k_length = 33,
       .q_heads = 4,
       .kv_heads = 2,
       .qk_dim = 24,
       .v_dim = 40,
       .bias = BiasKind::row},
      {.batch = 1,
       .q_length = 300,
       .k_length = 129,
       .q_heads = 2,
       .kv_heads = 1,
       .qk_dim = 64,
       .v_dim = 64,
       .right = 0},
      {.batch = 1,
       .q_length = 5,
       .k_length = 1300,
       .q_heads = 2,
       .kv_heads = 1,
       .qk_dim = 33,
       .v_dim = 33,
       .softcap = 3},
      {.batch = 3,
       .q_length = 90,
       .k_length = 130,
       .q_heads = 2,
       .kv_heads = 1,
       .qk_dim = 16,
       .v_dim = 16,
       .packed = true,
       .dropout = 0.2,
       .visible = reference::VisibleKind::full},
      {.batch = 1,
       .q_length = 60,
       .k_length = 70,
       .q_heads = 1,
       .kv_heads = 1,
       .qk_dim = 256,
       .v_dim = 256,
       .bias = BiasKind::per_head}};
  const int count = scaled(static_cast<int>(std::size(specs)), 4, "lent workspace: problems:", 2);
  for (const KernelInfo& info : kernels()) {
    if (info.device != DeviceType::cpu || !obstacle(info.name).empty()) continue;
    for (CaseSpec spec : std::span(specs).first(static_cast<std::size_t>(count))) {
      if (!takes(info.name, spec)) continue;
      for (const DType dtype : kDTypes) {
        spec.dtype = dtype;
        Case plain(spec);
        tessera::forward(plain.attention, plain.forward);
        const ForceKernel forced(info.name);
        for (const int threads : {1, 2, 5}) {
          SCOPED_TRACE(info.name + " " + name(info.direction) + " " + describe(spec) +
                       " threads=" + std::to_string(threads));
          RelaidCase relaid(plain, {});
          auto lend = [&](auto&& call, const auto& tensors, const auto& results) {
            call(plain.attention, tensors, {.threads = threads});
            const std::size_t bytes = plan(plain.attention, tensors, {.threads = threads}).workspace_bytes;
            const GuardedBuffer space(bytes);
            GuardedAllocator untouched;
            call(relaid.attention, results,
                 {.threads = threads, .workspace = {space.data(), bytes}, .allocator = &untouched});
            EXPECT_TRUE(space.intact()) << bytes << " bytes";
            EXPECT_EQ(untouched.calls(), 0U);
            EXPECT_EQ(first_difference(tensors, results), "");
          };
          if (info.direction == Direction::forward) {
            lend([](const Attention& a, const ForwardTensors& t,
                    const Execution& e) { tessera::forward(a, t, e); },
                 plain.forward, relaid.forward);
          } else {  // reads what forward has left
            relaid.backward.out = plain.backward.out, relaid.backward.lse = plain.backward.lse;
            lend([](const Attention& a, const BackwardTensors& t,
                    const Execution& e) { tessera::backward(a, t, e); },
                 plain.backward, relaid.backward);
          }
          ASSERT_EQ(relaid.damage(), "");
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, LayoutTest, testing::ValuesIn(pairs_with_types(cpu_kernels())), test_name);

}  // namespace
}  // namespace tessera::test
