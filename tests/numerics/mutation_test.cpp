// The proof that the accuracy tests catch what they are there for: wrong results of the kinds that
// attention kernels have really had, each of which the comparison must reject, in every type.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "reference/oracle/sequences.h"
#include "reference/tolerance/check.h"
#include "support/build.h"
#include "support/kernels.h"
#include "support/tensors.h"

namespace tessera::test {
namespace {

using reference::BiasKind;
using reference::BlockKind;
using reference::Case;
using reference::CaseSpec;
using reference::count;
using reference::dense_index;
using reference::Expected;
using reference::Forward;
using reference::Gradients;
using reference::oracle_backward;
using reference::oracle_forward;
using reference::read;
using reference::write;

struct Results {
  Forward forward;
  Gradients gradients;
};

// The inputs of a wrong implementation: the right ones, or copies that differ.
struct Inputs {
  Attention attention;
  BackwardTensors tensors;
  std::vector<OwnedTensor> copies{};
  std::vector<std::vector<std::int32_t>> lengths{};
  std::vector<float> slopes{};

  // Replaces a tensor by a copy that may be changed.
  Tensor& own(Tensor& tensor) {
    copies.emplace_back(tensor, MemoryLayout{});
    return tensor = copies.back().view();
  }
};

// A wrong implementation: the oracle with other inputs, or with its results tampered with.
struct Mutation {
  const char* name;
  CaseSpec spec;
  std::function<void(Inputs&)> inputs{};
  std::function<void(Results&, const Case&)> results{};
};

Results oracle(const Attention& attention, const BackwardTensors& t) {
  return {oracle_forward(attention, {.q = t.q, .k = t.k, .v = t.v, .bias = t.bias, .visible = t.visible}),
          oracle_backward(attention, t)};
}

void store(const Tensor& tensor, const std::vector<double>& values) {
  ASSERT_EQ(static_cast<std::size_t>(count(tensor.shape)), values.size());
  for (std::size_t e = 0; e < values.size(); ++e)
    write(tensor, 0, 0, 0, static_cast<std::int64_t>(e), values[e]);
}

void store(const Case& problem, const Results& results) {
  store(problem.forward.out, results.forward.out);
  store(problem.forward.lse, results.forward.lse);
  store(problem.backward.grad_q, results.gradients.q);
  store(problem.backward.grad_k, results.gradients.k);
  store(problem.backward.grad_v, results.gradients.v);
  if (problem.backward.grad_bias.given()) store(problem.backward.grad_bias, results.gradients.bias);
}

// tensor(a, b, c, d) = value(a, b, c, d)
void assign(const Tensor& t,
            const std::function<double(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>& value) {
  for (std::int64_t a = 0; a < t.shape[0]; ++a) {
    for (std::int64_t b = 0; b < t.shape[1]; ++b) {
      for (std::int64_t c = 0; c < t.shape[2]; ++c) {
        for (std::int64_t d = 0; d < t.shape[3]; ++d) write(t, a, b, c, d, value(a, b, c, d));
      }
    }
  }
}

void scale(std::vector<double>& values, double factor) {
  for (double& x : values) x *= factor;
}

// Keys and values of tokens from `begin` on replaced by those of `distance` tokens earlier.
void make_stale(Inputs& in, std::int64_t begin, std::int64_t distance) {
  for (Tensor* tensor : {&in.tensors.k, &in.tensors.v}) {
    const Tensor from = *tensor;
    assign(in.own(*tensor), [&](auto a, auto b, auto c, auto d) {
      return read(from, a, b >= begin ? b - distance : b, c, d);
    });
  }
}

// Output of an online softmax over tiles of 16 keys that forgets to rescale what it has accumulated
// when the maximum grows: tile results come from the oracle by shifting each tile to the front.
void forget_rescale(Results& results, const Case& problem) {
  constexpr std::int64_t kTile = 16;
  const ForwardTensors& t = problem.forward;
  const std::int64_t keys = t.k.shape[1], width = t.v.shape[3];
  const std::size_t rows = results.forward.lse.size();
  std::vector<Forward> tiles;
  for (std::int64_t begin = 0; begin < keys; begin += kTile) {
    auto part = [&](Tensor tensor) {
      const std::int64_t bytes = begin * tensor.strides[1] * static_cast<std::int64_t>(size_of(tensor.dtype));
      tensor.data = static_cast<std::byte*>(tensor.data) + bytes;
      tensor.shape[1] = std::min(kTile, keys - begin);
      return tensor;
    };
    tiles.push_back(oracle_forward(problem.attention, {.q = t.q, .k = part(t.k), .v = part(t.v)}));
  }
  const std::int64_t heads = t.q.shape[2], tokens = t.q.shape[1];
  for (std::size_t r = 0; r < rows; ++r) {  // r counts (batch, head, token)
    const auto row = static_cast<std::int64_t>(r);
    const std::int64_t batch = row / (heads * tokens), head = row / tokens % heads, token = row % tokens;
    for (std::int64_t d = 0; d < width; ++d) {
      const std::int64_t at = dense_index(t.out.shape, batch, token, head, d);
      double maximum = -std::numeric_limits<double>::infinity(), accumulated = 0;
      for (const Forward& tile : tiles) {
        maximum = std::max(maximum, tile.lse[r]);
        accumulated += std::exp(tile.lse[r] - maximum) * tile.out[at];  // not rescaled by the old maximum
      }
      results.forward.out[at] = accumulated / std::exp(results.forward.lse[r] - maximum);
    }
  }
}

// Each output row divided by the sum of the probabilities that dropout left over.
void drop_in_denominator(Results& results, const Case& problem) {
  Inputs ones{.attention = problem.attention, .tensors = problem.backward};
  assign(ones.own(ones.tensors.v), [](auto...) { return 1.0; });
  const Forward sums = oracle(ones.attention, ones.tensors).forward;
  for (std::size_t e = 0; e < sums.out.size(); ++e) results.forward.out[e] /= sums.out[e];
}

// dS = P * dP without the row's mean: the same as a gradient of the LSE that cancels it.
void forget_mean(Inputs& in) {
  const Forward exact = oracle(in.attention, in.tensors).forward;
  Tensor& grad_lse = in.own(in.tensors.grad_lse);
  const Tensor& grad_out = in.tensors.grad_out;
  assign(grad_lse, [&](auto batch, auto head, auto token, auto) {
    double mean = read(grad_lse, batch, head, token, 0);
    for (std::int64_t d = 0; d < grad_out.shape[3]; ++d) {
      mean += read(grad_out, batch, token, head, d) *
              exact.out[dense_index(grad_out.shape, batch, token, head, d)];
    }
    return mean;
  });
}

// Query head h reads key/value head h mod Hkv instead of h / group.
void interleave_groups(Inputs& in) {
  for (Tensor* tensor : {&in.tensors.k, &in.tensors.v}) {
    const Tensor from = *tensor;
    const std::int64_t heads = in.tensors.q.shape[2], kv_heads = from.shape[2];
    Extents shape = from.shape;
    shape[2] = heads;
    in.copies.emplace_back(from.dtype, shape, MemoryLayout{});
    *tensor = in.copies.back().view();
    assign(*tensor, [&](auto a, auto b, auto c, auto d) { return read(from, a, b, c % kv_heads, d); });
  }
}

void swap_first_heads(std::vector<double>& values, const Extents& shape) {
  for (std::int64_t a = 0; a < shape[0]; ++a) {
    for (std::int64_t b = 0; b < shape[1]; ++b) {
      for (std::int64_t d = 0; d < shape[3]; ++d) {
        std::swap(values[dense_index(shape, a, b, 0, d)], values[dense_index(shape, a, b, 1, d)]);
      }
    }
  }
}

const CaseSpec kPlain{};
const CaseSpec kCausal{.q_length = 49, .k_length = 65, .right = 0};
const CaseSpec kWindow{.left = 17, .right = 5};
const CaseSpec kGrouped{.q_heads = 6, .kv_heads = 2};
const CaseSpec kDropout{.dropout = 0.3};
const CaseSpec kPacked{.batch = 4, .packed = true, .seed = 2};
const CaseSpec kBias{.batch = 3, .bias = BiasKind::per_head};
const CaseSpec kVisible{.batch = 3, .visible = reference::VisibleKind::per_head};
const CaseSpec kAlibi{.q_length = 49, .k_length = 65, .alibi = true};
const CaseSpec kSoftcap{.softcap = 5, .input_scale = 2};
const CaseSpec kEmptyRows{.q_length = 65, .k_length = 49, .right = 0};
const CaseSpec kBlocks{
    .q_length = 96, .k_length = 96, .blocks = BlockKind::random, .block_q = 16, .block_k = 16};
const CaseSpec kGradLse{.grad_lse = true};

std::vector<Mutation> whole_results() {
  std::vector<Mutation> all;
  auto results = [&](const char* name, const CaseSpec& spec,
                     std::function<void(Results&, const Case&)> change) {
    all.push_back({.name = name, .spec = spec, .results = std::move(change)});
  };
  results("everything zero", kPlain, [](Results& r, const Case&) {
    for (auto* values : {&r.forward.out, &r.forward.lse, &r.gradients.q, &r.gradients.k, &r.gradients.v}) {
      scale(*values, 0);
    }
  });
  results("out zero", kPlain, [](Results& r, const Case&) { scale(r.forward.out, 0); });
  results("lse zero", kPlain, [](Results& r, const Case&) { scale(r.forward.lse, 0); });
  results("grad_q zero", kPlain, [](Results& r, const Case&) { scale(r.gradients.q, 0); });
  results("grad_k zero", kPlain, [](Results& r, const Case&) { scale(r.gradients.k, 0); });
  results("grad_v zero", kPlain, [](Results& r, const Case&) { scale(r.gradients.v, 0); });
  results("grad_bias zero", kBias, [](Results& r, const Case&) { scale(r.gradients.bias, 0); });
  results("two heads swapped", kPlain,
          [](Results& r, const Case& c) { swap_first_heads(r.forward.out, c.forward.out.shape); });
  results("two gradient heads swapped", kPlain,
          [](Results& r, const Case& c) { swap_first_heads(r.gradients.k, c.forward.k.shape); });
  results("missing rescale", {.q_length = 65, .k_length = 65, .input_scale = 2}, forget_rescale);
  results("dropout in the denominator", kDropout, drop_in_denominator);
  results("dropout without 1/(1-p)", kDropout, [](Results& r, const Case&) { scale(r.forward.out, 0.7); });
  results("lse in base 2", kPlain, [](Results& r, const Case&) { scale(r.forward.lse, 1 / std::log(2.0)); });
  results("lse of an empty row finite", kEmptyRows, [](Results& r, const Case&) {
    for (double& x : r.forward.lse) x = std::max(x, -1e30);
  });
  results("empty row gives the mean of v", kEmptyRows, [](Results& r, const Case& c) {
    double mean = 0;
    for (std::int64_t j = 0; j < c.forward.v.shape[1]; ++j) mean += read(c.forward.v, 0, j, 0, 0);
    r.forward.out[0] = mean / static_cast<double>(c.forward.v.shape[1]);
  });
  results("one row not written", kPlain,
          [](Results& r, const Case&) { r.forward.out.back() = std::numeric_limits<double>::quiet_NaN(); });
  results("one row is its neighbour", kPlain, [](Results& r, const Case& c) {
    const std::int64_t row = c.forward.out.strides[1];
    for (std::int64_t d = 0; d < row; ++d) r.forward.out[10 * row + d] = r.forward.out[11 * row + d];
  });
  results("scale missing in grad_q", kPlain,
          [](Results& r, const Case&) { scale(r.gradients.q, std::sqrt(32.0)); });
  results("gradient too small by 5 %", kPlain, [](Results& r, const Case&) { scale(r.gradients.k, 0.95); });
  return all;
}

std::vector<Mutation> wrong_masks() {
  std::vector<Mutation> all;
  auto description = [&](const char* name, const CaseSpec& spec,
                         const std::function<void(Attention&)>& change) {
    all.push_back({.name = name, .spec = spec, .inputs = [=](Inputs& in) { change(in.attention); }});
  };
  description("dropped causal mask", kCausal, [](Attention& a) { a.mask.right = -1; });
  description("causal mask aligned top left", kCausal, [](Attention& a) { a.mask.align = Align::top_left; });
  description("causal mask without the diagonal", kCausal, [](Attention& a) { a.mask.diagonal = 15; });
  description("causal mask one too far", kCausal, [](Attention& a) { a.mask.right = 1; });
  description("window one too wide on the left", kWindow, [](Attention& a) { ++a.mask.left; });
  description("window one too narrow on the left", kWindow, [](Attention& a) { --a.mask.left; });
  description("window one too wide on the right", kWindow, [](Attention& a) { ++a.mask.right; });
  description("window sides swapped", kWindow, [](Attention& a) { std::swap(a.mask.left, a.mask.right); });
  description("block mask dropped", kBlocks, [](Attention& a) { a.mask.blocks = {}; });
  description("block mask of another row", kBlocks, [](Attention& a) {
    const BlockMask& old = a.mask.blocks;
    std::vector<std::uint8_t> kept(static_cast<std::size_t>(old.q_blocks() * old.k_blocks()));
    for (std::int64_t row = 0; row < old.q_blocks(); ++row) {
      for (const std::int32_t column : old.row(0, (row + 1) % old.q_blocks())) {
        kept[row * old.k_blocks() + column] = 1;
      }
    }
    a.mask.blocks = BlockMask::from_blocks(old.layout(), kept);
  });
  all.push_back({.name = "sequence boundary off by one", .spec = kPacked, .inputs = [](Inputs& in) {
                   Lengths& lengths = in.attention.mask.lengths;
                   std::vector<std::int32_t> k(lengths.k, lengths.k + lengths.count + 1);
                   for (std::size_t s = 1; s + 1 < k.size(); ++s) {
                     if (k[s] > 0 && k[s] > k[s - 1]) --k[s];
                   }
                   in.lengths.push_back(std::move(k));
                   lengths.k = in.lengths.back().data();
                 }});
  return all;
}

std::vector<Mutation> wrong_inputs() {
  std::vector<Mutation> all;
  auto inputs = [&](const char* name, const CaseSpec& spec, std::function<void(Inputs&)> change) {
    all.push_back({.name = name, .spec = spec, .inputs = std::move(change)});
  };
  inputs("stale last tile of keys and values", kPlain, [](Inputs& in) { make_stale(in, 48, 16); });
  inputs("last key ignored", kPlain, [](Inputs& in) {
    --in.tensors.k.shape[1];
    --in.tensors.v.shape[1];
  });
  inputs("strides of k taken for v", {.qk_dim = 24, .v_dim = 32},
         [](Inputs& in) { in.tensors.v.strides = in.tensors.k.strides; });
  inputs("wrong head of a group", kGrouped, interleave_groups);
  inputs("scale 1", kPlain, [](Inputs& in) { in.attention.scale = 1; });
  inputs("scale of d_v", {.qk_dim = 32, .v_dim = 40},
         [](Inputs& in) { in.attention.scale = 1 / std::sqrt(40.0); });
  inputs("softcap missing", kSoftcap, [](Inputs& in) { in.attention.softcap = 0; });
  inputs("softcap 10 % off", kSoftcap, [](Inputs& in) { in.attention.softcap *= 1.1; });
  inputs("dropout off", kDropout, [](Inputs& in) { in.attention.dropout.probability = 0; });
  inputs("dropout with another seed", kDropout, [](Inputs& in) { ++in.attention.dropout.seed; });
  inputs("dropout one column off", kDropout, [](Inputs& in) { ++in.attention.origin.column; });
  inputs("dropout one head off", kDropout, [](Inputs& in) { ++in.attention.origin.head; });
  inputs("ALiBi missing", kAlibi, [](Inputs& in) { in.attention.alibi = {}; });
  inputs("ALiBi of the next head", kAlibi, [](Inputs& in) {
    for (int h = 0; h < 4; ++h) in.slopes.push_back(in.attention.alibi.slopes[(h + 1) % 4]);
    in.attention.alibi.slopes = in.slopes.data();
  });
  inputs("ALiBi from the wrong diagonal", kAlibi,
         [](Inputs& in) { in.attention.mask.align = Align::top_left; });
  inputs("bias of head 0 for all", kBias, [](Inputs& in) {
    const Tensor from = in.tensors.bias;
    assign(in.own(in.tensors.bias), [&](auto a, auto, auto c, auto d) { return read(from, a, 0, c, d); });
  });
  inputs("bias one column off", kBias, [](Inputs& in) {
    const Tensor from = in.tensors.bias;
    assign(in.own(in.tensors.bias),
           [&](auto a, auto b, auto c, auto d) { return read(from, a, b, c, (d + 1) % 65); });
  });
  inputs("boolean mask missing", kVisible, [](Inputs& in) { in.tensors.visible = {}; });
  inputs("boolean mask of head 0 for all", kVisible, [](Inputs& in) {
    const Tensor from = in.tensors.visible;
    assign(in.own(in.tensors.visible), [&](auto a, auto, auto c, auto d) { return read(from, a, 0, c, d); });
  });
  inputs("boolean mask one column off", kVisible, [](Inputs& in) {
    const Tensor from = in.tensors.visible;
    assign(in.own(in.tensors.visible),
           [&](auto a, auto b, auto c, auto d) { return read(from, a, b, c, (d + 1) % 65); });
  });
  inputs("grad_lse ignored", kGradLse, [](Inputs& in) { in.tensors.grad_lse = {}; });
  inputs("mean missing in the gradient of softmax", kGradLse, forget_mean);
  return all;
}

class MutationTest : public testing::TestWithParam<DType> {};

void expect_rejected(const std::vector<Mutation>& mutations, DType dtype) {
  for (const Mutation& mutation : mutations) {
    SCOPED_TRACE(mutation.name);
    CaseSpec spec = mutation.spec;
    spec.dtype = dtype;
    Case problem(spec);
    const Expected expected = expect(problem);
    Inputs inputs{.attention = problem.attention, .tensors = problem.backward};
    Results results = oracle(inputs.attention, inputs.tensors);

    store(problem, results);
    const reference::Verdict right = judge(problem, expected);
    EXPECT_TRUE(right.ok) << "the right result is rejected: " << right.message;

    if (mutation.inputs) {
      mutation.inputs(inputs);
      Results wrong = oracle(inputs.attention, inputs.tensors);
      // A mutation may change the shape of keys and values; their gradients then
      // stay the right ones.
      if (wrong.gradients.k.size() != results.gradients.k.size()) {
        wrong.gradients.k = results.gradients.k;
        wrong.gradients.v = results.gradients.v;
      }
      results = std::move(wrong);
    }
    if (mutation.results) mutation.results(results, problem);
    store(problem, results);
    EXPECT_FALSE(judge(problem, expected).ok) << "a wrong result is accepted";
  }
}

TEST_P(MutationTest, WrongResultsAreRejected) { expect_rejected(whole_results(), GetParam()); }
TEST_P(MutationTest, WrongMasksAreRejected) { expect_rejected(wrong_masks(), GetParam()); }
TEST_P(MutationTest, WrongInputsAreRejected) { expect_rejected(wrong_inputs(), GetParam()); }

// The judgement is the same code for every type: under a sanitizer one is enough.
INSTANTIATE_TEST_SUITE_P(Types, MutationTest,
                         testing::ValuesIn(kReduced ? std::vector<DType>{DType::fp32} : kDTypes),
                         dtype_test_name);

TEST(Mutations, ThereAreEnough) {
  EXPECT_GE(whole_results().size() + wrong_masks().size() + wrong_inputs().size(), 25U);
}

// What must not match anything: results of another size, and infinities or NaN in the wrong place.
TEST(Compare, NonFiniteValuesMustBeWhereTheyBelong) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> exact = {1, 2, -infinity}, model = {1, 2, -infinity};
  auto accepted = [&](std::vector<double> actual, const std::vector<double>& wanted) {
    const Tensor t = tensor(actual.data(), {1, 1, 1, static_cast<std::int64_t>(actual.size())});
    return reference::compare("t", t, wanted, model, 1.5).ok;
  };
  EXPECT_TRUE(accepted({1, 2, -infinity}, exact));
  EXPECT_FALSE(accepted({1, 2, -1e300}, exact));
  EXPECT_FALSE(accepted({1, 2, infinity}, exact));
  EXPECT_FALSE(accepted({1, 2, nan}, exact));
  EXPECT_FALSE(accepted({1, nan, -infinity}, exact));
  EXPECT_FALSE(accepted({1, 2}, exact));
  EXPECT_TRUE(accepted({1, nan, -infinity}, {1, nan, -infinity}));
  EXPECT_FALSE(accepted({1, 2, -infinity}, {1, nan, -infinity}));
}

}  // namespace
}  // namespace tessera::test
