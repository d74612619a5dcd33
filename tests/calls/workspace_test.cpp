// No hidden allocation: what a call takes is what its plan says, and flash2 never
// takes memory for N x N scores.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "counting_new.h"
#include "memory_problem.h"
#include "reference/tolerance/check.h"
#include "support/build.h"
#include "support/kernels.h"
#include "tessera/tessera.h"

namespace tessera::test {
namespace {

struct Sizes {
  std::int64_t batch, rows, keys, heads, kv_heads, dim, v_dim;
};

// The tensors of one call in memory of zeros: zeros of every type are a valid problem.
struct Zeros {
  std::vector<std::vector<double>> memory;

  Tensor make(DType dtype, const Extents& shape) {
    const auto elements = static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]);
    memory.emplace_back(elements * tessera::size_of(dtype) / sizeof(double) + 1);
    return tensor(static_cast<void*>(memory.back().data()), dtype, shape);
  }

  BackwardTensors tensors(DType dtype, const Sizes& s) {
    const Extents q{s.batch, s.rows, s.heads, s.dim}, k{s.batch, s.keys, s.kv_heads, s.dim};
    const Extents v{s.batch, s.keys, s.kv_heads, s.v_dim}, out{s.batch, s.rows, s.heads, s.v_dim};
    const Extents lse{s.batch, s.heads, s.rows, 1};
    return {.q = make(dtype, q),
            .k = make(dtype, k),
            .v = make(dtype, v),
            .out = make(dtype, out),
            .lse = make(accumulator_of(dtype), lse),
            .grad_out = make(dtype, out),
            .grad_q = make(dtype, q),
            .grad_k = make(dtype, k),
            .grad_v = make(dtype, v)};
  }
};

ForwardTensors forward_of(const BackwardTensors& t) {
  return {.q = t.q, .k = t.k, .v = t.v, .out = t.out, .lse = t.lse};
}

// Runs `call` with a counting allocator and checks it against the plan's workspace.
// A call takes nothing besides.
template <typename Call>
void takes_what_it_says(const Plan& plan, Call&& call) {
  Counting allocator;
  call(nullptr);  // warm: tables and threads are made once and stay
  const std::int64_t before = blocks_taken;
  call(&allocator);
  const std::int64_t besides = blocks_taken - before;
  EXPECT_EQ(allocator.asked, plan.workspace_bytes) << plan;
  EXPECT_EQ(allocator.returned, allocator.asked);
  EXPECT_EQ(besides, 0) << plan;
}

TEST(NoHiddenAllocation, BytesAskedForAreThePlans) {
  const Sizes sizes[] = {{1, 1, 1, 1, 1, 1, 1},    {2, 17, 33, 4, 2, 24, 40}, {1, 300, 129, 3, 1, 64, 64},
                         {3, 64, 1, 2, 2, 128, 8}, {1, 5, 700, 8, 4, 33, 33}, {2, 0, 9, 2, 1, 16, 16},
                         {2, 9, 0, 2, 1, 16, 16},  {0, 9, 9, 2, 1, 16, 16},   {1, 130, 130, 1, 1, 256, 256}};
  for (const Sizes& s : sizes) {
    for (const DType dtype : {DType::fp64, DType::fp32, DType::fp16, DType::bf16}) {
      for (const Algorithm algorithm : {Algorithm::standard, Algorithm::flash1, Algorithm::flash2}) {
        if (!served(algorithm)) continue;
        for (const int threads : {1, 2, 5}) {
          Zeros zeros;
          const BackwardTensors t = zeros.tensors(dtype, s);
          const ForwardTensors f = forward_of(t);
          const Attention attention{.mask = causal(), .algorithm = algorithm};
          takes_what_it_says(plan(attention, f, {.threads = threads}), [&](Allocator* allocator) {
            forward(attention, f, {.threads = threads, .allocator = allocator});
          });
          takes_what_it_says(plan(attention, t, {.threads = threads}), [&](Allocator* allocator) {
            backward(attention, t, {.threads = threads, .allocator = allocator});
          });
        }
      }
    }
  }
}

// Workspace that is lent is enough, and then nothing is asked for.
TEST(NoHiddenAllocation, LentWorkspaceIsEnough) {
  Problem problem;
  Counting allocator;
  allocator.empty = true;
  const std::size_t bytes = std::max(plan({}, problem.forward_tensors).workspace_bytes,
                                     plan({}, problem.backward_tensors).workspace_bytes);
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  const Execution execution{.workspace = {memory, bytes}, .allocator = &allocator};
  forward({}, problem.forward_tensors, execution);
  backward({}, problem.backward_tensors, execution);
  EXPECT_TRUE(problem.forward_is_right());
  EXPECT_TRUE(problem.backward_is_right());
  std::free(memory);
}

// With lent workspace a call of any kernel takes no memory at all, whatever the
// options, types and threads.
TEST(NoHiddenAllocation, LentWorkspaceMeansNoAllocation) {
  std::vector<std::byte> memory(std::size_t{64} << 20);
  void* start = memory.data();
  std::size_t bytes = memory.size();
  std::align(256, bytes - 256, start, bytes);
  const int step = scaled(1, 8, "one case in `step` per type");
  const std::vector<std::string> with_backward = cpu_kernels(), forward_only = forward_only_kernels();
  std::vector<std::string> kernels = with_backward;
  kernels.insert(kernels.end(), forward_only.begin(), forward_only.end());
  for (const DType dtype : kDTypes) {
    int index = 0;
    for (const reference::CaseSpec& spec : reference::feature_matrix(dtype)) {
      if (index++ % step != 0 && !spec.packed) continue;
      reference::Case problem(spec);
      for (const std::string& kernel : kernels) {
        if (!takes(kernel, spec)) continue;
        const bool backwards =
            std::find(with_backward.begin(), with_backward.end(), kernel) != with_backward.end();
        const reference::ForceKernel forced(kernel);
        for (const int threads : {1, 0}) {
          const Execution execution{.threads = threads, .workspace = {start, bytes}};
          auto call = [&] {
            forward(problem.attention, problem.forward, execution);
            if (backwards) backward(problem.attention, problem.backward, execution);
          };
          call();
          const std::int64_t before = blocks_taken;
          call();
          EXPECT_EQ(blocks_taken, before) << kernel << ' ' << describe(spec) << ", threads " << threads;
        }
      }
    }
  }
}

// The kernel that is chosen is not forced there: those that are passed over have
// their reasons, which nobody reads.
TEST(NoHiddenAllocation, ChoosingAKernelTakesNoMemory) {
  for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::standard, Algorithm::flash1}) {
    if (!served(algorithm)) continue;
    for (const std::int64_t rows : {1, 40}) {
      Zeros zeros;
      const BackwardTensors t = zeros.tensors(DType::bf16, {2, rows, 33, 4, 2, 24, 40});
      const Attention attention{.algorithm = algorithm};
      takes_what_it_says(plan(attention, t),
                         [&](Allocator* allocator) { backward(attention, t, {.allocator = allocator}); });
      takes_what_it_says(plan(attention, forward_of(t)), [&](Allocator* allocator) {
        forward(attention, forward_of(t), {.allocator = allocator});
      });
    }
  }
}

// The extra memory of flash2 does not depend on N * N: forward takes tiles per
// thread, backward some rows of accumulators per row of the problem besides (dK,
// dV, packed Q and dO, and at most eight partial dQ).
TEST(NoHiddenAllocation, Flash2IsLinearInTheLength) {
  const Attention attention{.algorithm = Algorithm::flash2};
  constexpr std::int64_t kDim = 16;
  std::size_t first_forward = 0, first_backward = 0;
  for (std::int64_t n = 256; n <= 4096; n *= 2) {
    Zeros zeros;
    const BackwardTensors t = zeros.tensors(DType::fp32, {1, n, n, 1, 1, kDim, kDim});
    const ForwardTensors f = forward_of(t);
    const Execution two{.threads = 2};
    const Plan forward_plan = plan(attention, f, two), backward_plan = plan(attention, t, two);
    if (first_forward == 0) first_forward = forward_plan.workspace_bytes;
    EXPECT_LE(forward_plan.workspace_bytes, first_forward) << "at " << n;
    if (first_backward == 0) first_backward = backward_plan.workspace_bytes;
    const auto row_bytes = static_cast<std::size_t>(16 * kDim * 4);
    EXPECT_LE(backward_plan.workspace_bytes, first_backward + row_bytes * static_cast<std::size_t>(n))
        << "at " << n;
    takes_what_it_says(forward_plan, [&](Allocator* allocator) {
      forward(attention, f, {.threads = 2, .allocator = allocator});
    });
    if (n > 1024) continue;  // backward is several times the work
    takes_what_it_says(backward_plan, [&](Allocator* allocator) {
      backward(attention, t, {.threads = 2, .allocator = allocator});
    });
  }
}

// Under a causal mask the keys of one head have twice as many chunks, but only
// queries that see a chunk have a partial dQ of it.
TEST(NoHiddenAllocation, CausalBackwardTakesAsMuchAsFull) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const Shapes shapes{.batch = 1, .q_length = 4096, .k_length = 4096, .q_heads = 1, .dtype = dtype};
    auto bytes = [&](const Mask& mask) {
      return plan({.mask = mask, .algorithm = Algorithm::flash2}, shapes, Device::cpu(), Direction::backward,
                  {.threads = 16})
          .workspace_bytes;
    };
    EXPECT_LE(static_cast<double>(bytes(causal())), 1.1 * static_cast<double>(bytes({})));
  }
}

// The standard algorithm, for comparison, does hold the N x N matrix.
TEST(NoHiddenAllocation, StandardHoldsTheMatrix) {
  if (!served(Algorithm::standard))
    GTEST_SKIP() << "this build has no standard kernel (OpenBLAS was not found)";
  const Shapes shapes{.q_length = 1024, .k_length = 1024};
  const Plan standard =
      plan({.algorithm = Algorithm::standard}, shapes, Device::cpu(), Direction::forward, {.threads = 1});
  EXPECT_GE(standard.workspace_bytes, 1024U * 1024U * sizeof(float));
}

}  // namespace
}  // namespace tessera::test
