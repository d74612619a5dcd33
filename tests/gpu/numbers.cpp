// Numbers at the edge: what a bias of -inf hides, factors that fp32 can just hold,
// dropout near 1; and rows that must not depend on what else is in a call.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "reference/oracle/elements.h"
#include "support/gpu.h"
#include "support/tensors.h"

namespace tessera::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Sets a row of a head to a value, in all columns.
void fill_row(const Tensor& tensor, std::int64_t batch, std::int64_t row, std::int64_t head, double value) {
  for (std::int64_t d = 0; d < tensor.shape[3]; ++d) reference::write(tensor, batch, row, head, d, value);
}

// Where two tensors of a computation in `dtype` differ by more than rounding;
// empty: nowhere. Infinite and NaN must be the same on both sides.
std::string difference(const char* name, const Tensor& a, const Tensor& b, DType dtype) {
  if (a.data == nullptr) return {};
  const std::vector<double> x = reference::values(a), y = reference::values(b);
  double largest = 0;
  for (const double value : x) largest = std::isfinite(value) ? std::max(largest, std::abs(value)) : largest;
  const double allowed = std::max(4 * reference::epsilon(dtype), 1e-5) * (largest + 1);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool same = std::isfinite(x[i]) ? std::abs(x[i] - y[i]) <= allowed
                      : std::isnan(x[i])  ? std::isnan(y[i])
                                          : x[i] == y[i];
    if (!same) {
      return std::string(name) + ", element " + std::to_string(i) + ": " + std::to_string(x[i]) + " and " +
             std::to_string(y[i]);
    }
  }
  return {};
}

std::string all_differences(const Case& a, const Case& b, bool with_backward) {
  const DType dtype = a.forward.q.dtype;
  std::string text = difference("out", a.forward.out, b.forward.out, dtype);
  if (text.empty()) text = difference("lse", a.forward.lse, b.forward.lse, dtype);
  if (!with_backward) return text;
  constexpr const char* kNames[] = {"grad_q", "grad_k", "grad_v", "grad_bias"};
  const Tensor BackwardTensors::* const kMembers[] = {&BackwardTensors::grad_q, &BackwardTensors::grad_k,
                                                      &BackwardTensors::grad_v, &BackwardTensors::grad_bias};
  for (int i = 0; i < 4 && text.empty(); ++i) {
    text = difference(kNames[i], a.backward.*kMembers[i], b.backward.*kMembers[i], dtype);
  }
  return text;
}

// What is not finite and hidden everywhere by a bias of -inf reaches nothing, as
// behind a mask: a key that all rows hide, and a row that hides all keys.
TEST_F(Gpu, ABiasOfMinusInfinityHidesWhatIsNotFinite) {
  enum Where { q, k, v, grad_out };
  constexpr const char* kNames[] = {"q", "k", "v", "grad_out"};
  for_each_lane([&](const std::string& kernel, DType dtype) {
    for (const std::int64_t dim : {64, 128, 200}) {
      for (const bool other_type : {false, true}) {
        const CaseSpec spec{.dtype = dtype,
                            .batch = 1,
                            .q_length = 200,
                            .k_length = 264,
                            .q_heads = 2,
                            .kv_heads = 1,
                            .qk_dim = dim,
                            .v_dim = dim,
                            .right = dim == 128 ? 20 : -1,
                            .bias = reference::BiasKind::full,
                            .softcap = dim == 200 ? 5.0 : 0.0,
                            .bias_in_accumulator_type = other_type};
        if (!serves(kernel, Case(spec), Direction::forward)) return;
        const bool with_backward = serves(kernel, Case(spec), Direction::backward);
        for (const Where where : {q, k, v, grad_out}) {
          constexpr std::int64_t kRow = 130;
          const bool of_keys = where == k || where == v;
          auto make = [&](double value) {
            Case problem(spec);
            const Tensor& bias = problem.forward.bias;
            for (std::int64_t head = 0; head < 2; ++head) {
              for (std::int64_t i = 0; i < (of_keys ? spec.q_length : spec.k_length); ++i) {
                reference::write(bias, 0, head, of_keys ? i : kRow, of_keys ? kRow : i, -kInfinity);
              }
            }
            if (value != 0) {
              const Tensor* const tensors[] = {&problem.forward.q, &problem.forward.k, &problem.forward.v,
                                               &problem.backward.grad_out};
              fill_row(*tensors[where], 0, kRow, 0, value);
            }
            return problem;
          };
          Case clean = make(0);
          EXPECT_TRUE(run_where_served(clean, kernel));
          for (const double value : {kNan, kInfinity, -kInfinity}) {
            SCOPED_TRACE(describe(spec) + ": " + std::to_string(value) + " in " + kNames[where]);
            Case poisoned = make(value);
            EXPECT_TRUE(run_where_served(poisoned, kernel));
            EXPECT_EQ(all_differences(clean, poisoned, with_backward), "");
          }
        }
      }
    }
  });
}

// A NaN value that some rows hide by their bias reaches the others.
TEST_F(Gpu, OnlyRowsWithoutABiasOfMinusInfinityAreReached) {
  for_each_lane([&](const std::string& kernel, DType dtype) {
    constexpr std::int64_t kKey = 70, kColumn = 3;
    const CaseSpec spec{.dtype = dtype,
                        .batch = 1,
                        .q_length = 150,
                        .k_length = 200,
                        .q_heads = 1,
                        .kv_heads = 1,
                        .qk_dim = 64,
                        .v_dim = 64,
                        .bias = reference::BiasKind::full};
    if (!serves(kernel, Case(spec), Direction::forward)) return;
    Case problem(spec);
    for (std::int64_t i = 0; i < spec.q_length; i += 2)
      reference::write(problem.forward.bias, 0, 0, i, kKey, -kInfinity);
    reference::write(problem.forward.v, 0, kKey, 0, kColumn, kNan);
    DeviceCase copy(problem.attention, problem.forward, {}, Device::cuda(0));
    const ForceKernel forced(kernel);
    forward(copy.attention, copy.forward);
    EXPECT_EQ(copy.fetch(), "");
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < spec.q_length; ++i) {
      for (std::int64_t d = 0; d < 64; ++d) {
        const bool reached = i % 2 == 1 && d == kColumn;
        wrong += std::isnan(reference::read(problem.forward.out, 0, i, 0, d)) != reached;
      }
    }
    EXPECT_EQ(wrong, 0);
  });
}

// Multiplies a tensor of fp32 by a power of 2.
void multiply(const Tensor& tensor, double factor) {
  auto* numbers = static_cast<float*>(tensor.data);
  const auto count = tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * tensor.shape[3];
  for (std::int64_t i = 0; i < count; ++i)
    numbers[i] = static_cast<float>(static_cast<double>(numbers[i]) * factor);
}

// Queries times 2^100 and keys times 2^-100, or the other way round, give the same scores: bit for
// bit the same output. The gradients of queries and keys have the other's factor. Without it they
// agree within rounding.
TEST_F(Gpu, Fp32HasNoRangeThatLosesScores) {
  for (const std::string kernel : {"cuda.flash2", "cuda.flash2_sm75"}) {
    for (const std::int64_t dim : {64, 128, 256}) {
      for (const double softcap : {0.0, 5.0}) {
        const CaseSpec spec{
            .q_length = 300, .k_length = 300, .qk_dim = dim, .v_dim = dim, .right = 0, .softcap = softcap};
        if (!serves(kernel, Case(spec), Direction::forward)) continue;
        const bool with_backward = serves(kernel, Case(spec), Direction::backward);
        auto run = [&](double factor) {
          Case problem(spec);
          multiply(problem.forward.q, factor);
          multiply(problem.forward.k, 1 / factor);
          DeviceCase copy(problem.attention, problem.forward, problem.backward, Device::cuda(0));
          const ForceKernel forced(kernel);
          forward(copy.attention, copy.forward);
          if (with_backward) backward(copy.attention, copy.backward);
          EXPECT_EQ(copy.fetch(), "");
          multiply(problem.backward.grad_q, factor);
          multiply(problem.backward.grad_k, 1 / factor);
          return problem;
        };
        const Case usual = run(1);
        for (const int exponent : {-100, 100}) {
          SCOPED_TRACE(kernel + " " + describe(spec) + ", q times 2^" + std::to_string(exponent));
          const Case scaled = run(std::ldexp(1.0, exponent));
          EXPECT_EQ(first_difference(usual.forward, scaled.forward), "");
          EXPECT_EQ(all_differences(usual, scaled, with_backward), "");
        }
      }
    }
  }
}

// Almost everything is dropped; what is kept is scaled by what really is kept, in 2^15ths.
TEST_F(Gpu, DropoutNearOneIsNotBiased) {
  for_each_lane([&](const std::string& kernel, DType dtype) {
    for (const double probability : {0.99, 0.9995, 0.9999}) {
      const CaseSpec spec{.dtype = dtype,
                          .q_length = 130,
                          .k_length = 500,
                          .qk_dim = 64,
                          .v_dim = 64,
                          .dropout = probability};
      Case problem(spec);
      SCOPED_TRACE(describe(spec));
      // The baselines keep dS in the type of q: a factor of 10^4 leaves the range of fp16.
      if (dtype == DType::fp16 && probability > 0.9995 && kernel.starts_with("cuda.standard")) continue;
      if (!run_where_served(problem, kernel)) continue;
      const reference::Verdict verdict = judge(problem, expect(problem));
      EXPECT_TRUE(verdict.ok) << verdict.message;
    }
  });
}

// One entry of a batch, or one packed sequence, with its results.
template <typename Tensors>
Tensors entry_of(Tensors t, std::int64_t index, const Lengths& lengths = {}) {
  auto cut = [&](int dimension, const std::int32_t* cumulative, auto... members) {
    const std::int64_t begin = cumulative == nullptr ? index : cumulative[index];
    const std::int64_t count = cumulative == nullptr ? 1 : cumulative[index + 1] - begin;
    (((t.*members) = slice(t.*members, cumulative == nullptr ? 0 : dimension, begin, count)), ...);
  };
  cut(1, lengths.q, &Tensors::q, &Tensors::out);
  cut(1, lengths.k, &Tensors::k, &Tensors::v);
  cut(2, lengths.q, &Tensors::lse);
  if constexpr (std::is_same_v<Tensors, BackwardTensors>) {
    cut(1, lengths.q, &Tensors::grad_out, &Tensors::grad_q);
    cut(1, lengths.k, &Tensors::grad_k, &Tensors::grad_v);
  }
  return t;
}

// The same bits alone and among the others, forward and deterministic backward, for some entries of
// a batch or some packed sequences.
void expect_each_alone(const std::string& kernel, const CaseSpec& spec,
                       const std::vector<std::int64_t>& entries) {
  Case all(spec);
  all.attention.deterministic = true;
  if (!serves(kernel, all, Direction::forward)) return;
  SCOPED_TRACE(describe(spec));
  // cuBLAS multiplies the sequences of a backward call of cuda.standard together, in an order of
  // its own choice.
  const bool with_backward =
      kernel.find("standard") == std::string::npos && serves(kernel, all, Direction::backward);
  const Lengths& lengths = all.attention.mask.lengths;
  const ForceKernel forced(kernel);
  DeviceCase together(all.attention, all.forward, all.backward, Device::cuda(0));
  forward(together.attention, together.forward);
  if (with_backward) backward(together.attention, together.backward);
  EXPECT_EQ(together.fetch(), "");
  for (const std::int64_t index : entries) {
    Case single(spec);
    single.attention.deterministic = true;
    const ForwardTensors part = entry_of(single.forward, index, lengths);
    const BackwardTensors gradients = entry_of(single.backward, index, lengths);
    if (part.q.shape[1] == 0 || part.k.shape[1] == 0) continue;  // an empty sequence
    const std::int32_t own_q[] = {0, static_cast<std::int32_t>(part.q.shape[1])};
    const std::int32_t own_k[] = {0, static_cast<std::int32_t>(part.k.shape[1])};
    if (spec.packed) single.attention.mask.lengths = {.q = own_q, .k = own_k, .count = 1};
    DeviceCase copy(single.attention, part, gradients, Device::cuda(0));
    forward(copy.attention, copy.forward);
    if (with_backward) backward(copy.attention, copy.backward);
    EXPECT_EQ(copy.fetch(), "");
    EXPECT_EQ(first_difference(entry_of(all.forward, index, lengths), part), "") << "entry " << index;
    if (!with_backward) continue;
    EXPECT_EQ(first_difference(entry_of(all.backward, index, lengths), gradients), "") << "entry " << index;
  }
}

// Nothing is chosen by the size of the batch.
TEST_F(Gpu, ABatchOf64ChangesNoRow) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    for (const std::int64_t dim : {64, 128}) {
      const CaseSpec spec{.dtype = dtype,
                          .batch = 64,
                          .q_length = 130,
                          .k_length = 70,
                          .q_heads = 2,
                          .kv_heads = 2,
                          .qk_dim = dim,
                          .v_dim = dim,
                          .right = dim == 64 ? 0 : -1};
      expect_each_alone(kernel, spec, {0, 63});
    }
  });
}

// So long that kernels take their instances for many queries and many keys.
TEST_F(Gpu, ABatchOfLongSequencesChangesNoRow) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    const CaseSpec spec{.dtype = dtype,
                        .batch = 6,
                        .q_length = 2100,
                        .k_length = 6200,
                        .q_heads = 1,
                        .kv_heads = 1,
                        .qk_dim = 64,
                        .v_dim = 64};
    expect_each_alone(kernel, spec, {0, 5});
  });
}

// Packed sequences beside shorter and longer ones, of which some are as long as above.
TEST_F(Gpu, PackedNeighboursOfOtherLengthsChangeNoRow) {
  for_each_lane([](const std::string& kernel, DType dtype) {
    // cuBLAS chooses by the longest sequence.
    if (kernel.find("standard") != std::string::npos) return;
    for (const std::int64_t right : {-1, 0}) {
      CaseSpec spec{.dtype = dtype,
                    .batch = 6,
                    .q_length = 300,
                    .k_length = 400,
                    .q_heads = 2,
                    .kv_heads = 1,
                    .qk_dim = 64,
                    .v_dim = 64,
                    .right = right,
                    .packed = true};
      expect_each_alone(kernel, spec, {0, 1, 2, 3, 4, 5});
      spec.q_length = 2500, spec.k_length = 7000;
      expect_each_alone(kernel, spec, {0, 2, 5});
    }
  });
}

}  // namespace
}  // namespace tessera::test
