// The numbers that builds without CUDA choose by are those of the kernels.
#include "cuda/shapes.h"

#include <gtest/gtest.h>

namespace tessera::cuda {
namespace {

#if TESSERA_HAVE_CUDA

void expect_same(std::span<const mma::backward::Instance> kernels,
                 std::span<const mma::backward::Instance> numbers) {
  ASSERT_EQ(kernels.size(), numbers.size());
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const mma::backward::Instance &a = kernels[i], &b = numbers[i];
    SCOPED_TRACE("head_dim " + std::to_string(a.head_dim) + ", number " + std::to_string(i));
    EXPECT_EQ(a.head_dim, b.head_dim);
    EXPECT_EQ(a.variant, b.variant);
    EXPECT_EQ(a.block_q, b.block_q);
    EXPECT_EQ(a.block_k, b.block_k);
    EXPECT_EQ(a.threads, b.threads);
    EXPECT_EQ(a.shared_memory, b.shared_memory);
    EXPECT_EQ(a.in_turns, b.in_turns);
    EXPECT_EQ(a.thread_blocks, b.thread_blocks);
    EXPECT_EQ(a.bias_bytes, b.bias_bytes);
  }
}

void expect_same(const mma::backward::Family& kernels, const mma::backward::Family& numbers) {
  for (int i = 0; i < 3; ++i) {
    expect_same(kernels.tables[i].keys, numbers.tables[i].keys);
    expect_same(kernels.tables[i].queries, numbers.tables[i].queries);
  }
  expect_same(kernels.bias, numbers.bias);
}

TEST(CudaShapes, Flash2Backward) {
  expect_same(mma::backward::family_fp16(), shapes::backward_family());
  expect_same(mma::backward::family_bf16(), shapes::backward_family());
  expect_same(mma::backward::family_sm75(), shapes::backward_family_turing());
}

void expect_same(const flash1::Instance& a, const flash1::Instance& b) {
  EXPECT_EQ(a.kernel == nullptr, a.head_dim == 0);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.block_q, b.block_q);
  EXPECT_EQ(a.step_k, b.step_k);
  EXPECT_EQ(a.threads, b.threads);
  EXPECT_EQ(a.splits, b.splits);
  EXPECT_EQ(a.fixed_bytes, b.fixed_bytes);
  EXPECT_EQ(a.bytes_per_key, b.bytes_per_key);
}

template <flash1::Engine E>
void expect_flash1_of_every_width() {
  for (int i = 0; i < 3; ++i) {
    const int head_dim = 64 << i;
    SCOPED_TRACE("engine " + std::to_string(static_cast<int>(E)) + ", head_dim " + std::to_string(head_dim));
    const flash1::Instances& kernels = flash1::engine_instances<E>()[static_cast<std::size_t>(i)];
    const flash1::Instances numbers = shapes::flash1_instances(E, head_dim);
    for (int variant = 0; variant < 2; ++variant) {
      expect_same(kernels.forward[variant], numbers.forward[variant]);
      expect_same(kernels.backward[variant], numbers.backward[variant]);
    }
    expect_same(kernels.bias, numbers.bias);
  }
}

TEST(CudaShapes, Flash1) {
  expect_flash1_of_every_width<flash1::Engine::fp32>();
  expect_flash1_of_every_width<flash1::Engine::sm75_fp16>();
  expect_flash1_of_every_width<flash1::Engine::sm80_fp16>();
  expect_flash1_of_every_width<flash1::Engine::sm80_bf16>();
}

#endif

}  // namespace
}  // namespace tessera::cuda
