// Which backward kernels run what on which GPU: choose_kernels is a pure function and requires no
// GPU.
#include <gtest/gtest.h>

#include "cuda/common/host/gpus.h"
#include "cuda/mma/backward/launch.h"

namespace tessera::cuda {
namespace {

using mma::backward::choose_kernels;
using mma::backward::Family;
using mma::backward::Instance;
using mma::backward::KernelChoice;

core::Problem problem(std::int64_t head_dim) {
  core::Problem p;
  p.direction = Direction::backward;
  p.dtype = DType::fp16;
  p.batch = 2, p.q_heads = 4, p.kv_heads = 2;
  p.q_length = p.k_length = 300;
  p.q_tokens = p.k_tokens = p.batch * p.q_length;
  p.qk_dim = p.v_dim = head_dim;
  p.has_grad_q = p.has_grad_k = p.has_grad_v = true;
  return p;
}

core::Problem with_variant(core::Problem p, Variant variant) {
  if (variant != Variant::plain) p.softcap = 5;
  if (variant == Variant::dropout) p.dropout = true, p.dropout_threshold = 1 << 14;
  return p;
}

// The kernel runs such a problem on the device.
void expect_fits(const Instance& kernel, Variant variant, int head_dim, const DeviceLimits& device) {
  EXPECT_EQ(kernel.kernel != nullptr, TESSERA_HAVE_CUDA != 0);
  EXPECT_GE(kernel.head_dim, head_dim);
  EXPECT_GE(kernel.variant, variant);
  EXPECT_LE(kernel.shared_memory, device.shared_memory);
  EXPECT_GT(kernel.block_q * kernel.block_k * kernel.threads, 0);
}

TEST(BackwardChoice, EveryGpuSupportsEveryHeadDimWithEveryOption) {
  for (const int capability : AssumedGpu::known()) {
    const AssumedGpu gpu(capability);
    const DeviceLimits& device = device_limits(0);
    std::vector<Family> families = {mma::backward::family_sm75()};
    if (capability >= 80) {
      families.push_back(mma::backward::family_fp16());
      families.push_back(mma::backward::family_bf16());
    }
    for (const Family& family : families) {
      for (const int head_dim : {1, 64, 65, 128, 129, 256}) {
        for (const Variant variant : {Variant::plain, Variant::featured, Variant::dropout}) {
          for (const bool deterministic : {false, true}) {
            SCOPED_TRACE(testing::Message() << capability << " head_dim " << head_dim << " variant "
                                            << static_cast<int>(variant) << " " << deterministic);
            core::Problem p = with_variant(problem(head_dim), variant);
            p.deterministic = deterministic;
            p.has_grad_bias = p.has_bias = variant != Variant::plain;
            std::string reason;
            const std::optional<KernelChoice> chosen =
                choose_kernels(family, device, p, core::Reason(reason));
            ASSERT_TRUE(chosen) << reason;
            const KernelChoice& choice = *chosen;
            ASSERT_NE(choice.keys, nullptr);
            expect_fits(*choice.keys, variant, head_dim, device);
            // dQ is computed once: with the keys, or by a kernel of its own.
            EXPECT_NE(choice.queries != nullptr, choice.head_dim != 0);
            if (choice.queries != nullptr) expect_fits(*choice.queries, variant, head_dim, device);
            ASSERT_EQ(choice.bias != nullptr, p.has_grad_bias);
            if (choice.bias != nullptr) expect_fits(*choice.bias, variant, 0, device);
          }
        }
      }
    }
  }
}

TEST(BackwardChoice, ComputesOnlyTheRequestedGradients) {
  const AssumedGpu gpu(80);
  for (int asked = 0; asked < 8; ++asked) {
    core::Problem p = problem(64);
    p.has_grad_q = (asked & 1) != 0, p.has_grad_k = (asked & 2) != 0, p.has_grad_v = (asked & 4) != 0;
    const KernelChoice choice = choose_kernels(mma::backward::family_fp16(), device_limits(0), p).value();
    EXPECT_EQ(choice.keys != nullptr, p.has_grad_k || p.has_grad_v) << asked;
    EXPECT_EQ(choice.queries != nullptr || choice.head_dim != 0, p.has_grad_q) << asked;
    EXPECT_EQ(choice.bias, nullptr) << asked;
  }
}

// Of made-up instances, the first in the table that has the options and fits.
TEST(BackwardChoice, TakesTheFirstThatFits) {
  auto instance = [](Variant variant, int shared_memory) {
    return Instance{.head_dim = 64,
                    .variant = variant,
                    .block_q = 64,
                    .block_k = 64,
                    .threads = 128,
                    .shared_memory = shared_memory};
  };
  const Instance keys[] = {instance(Variant::plain, 90), instance(Variant::plain, 50),
                           instance(Variant::featured, 70), instance(Variant::dropout, 60)};
  Family family;
  family.tables[0].keys = family.tables[0].queries = keys;
  std::string reason;
  auto chosen = [&](Variant variant, int shared_memory) {
    const DeviceLimits device{.capability = 80, .multiprocessors = 100, .shared_memory = shared_memory};
    reason.clear();
    const core::Problem p = with_variant(problem(64), variant);
    return choose_kernels(family, device, p, core::Reason(reason)).value_or(KernelChoice{}).keys;
  };
  EXPECT_EQ(chosen(Variant::plain, 100), &keys[0]);
  EXPECT_EQ(chosen(Variant::plain, 89), &keys[1]);
  EXPECT_EQ(chosen(Variant::featured, 100), &keys[2]);
  EXPECT_EQ(chosen(Variant::featured, 69), &keys[3]) << "more options run problems with fewer";
  EXPECT_EQ(chosen(Variant::dropout, 60), &keys[3]);
  EXPECT_EQ(chosen(Variant::dropout, 59), nullptr);
  EXPECT_EQ(reason, "has no instance for head_dim 64 that fits into 59 bytes of shared memory");
}

TEST(BackwardChoice, DeterministicModeAddsInTurnsUnlessThereIsABlockMask) {
  const std::int64_t offsets[] = {0, 0};
  for (const int capability : AssumedGpu::known()) {
    const AssumedGpu gpu(capability);
    const Family family = capability < 80 ? mma::backward::family_sm75() : mma::backward::family_fp16();
    for (const int head_dim : {64, 128, 256}) {
      for (const Variant variant : {Variant::plain, Variant::featured, Variant::dropout}) {
        core::Problem p = with_variant(problem(head_dim), variant);
        EXPECT_FALSE(choose_kernels(family, device_limits(0), p)->in_turns);
        p.deterministic = true;
        const KernelChoice in_turns = choose_kernels(family, device_limits(0), p).value();
        EXPECT_TRUE(in_turns.in_turns && in_turns.keys->in_turns) << capability << " " << head_dim;
        EXPECT_EQ(in_turns.queries, nullptr);
        core::Problem without_queries = p;
        without_queries.q_length = without_queries.q_tokens = 0;
        EXPECT_FALSE(choose_kernels(family, device_limits(0), without_queries)->in_turns)
            << "no kernel would clear the counters";
        p.blocks = {.block_q = 512, .block_k = 512, .q_blocks = 1, .k_blocks = 1, .row_offsets = offsets};
        const KernelChoice masked = choose_kernels(family, device_limits(0), p).value();
        EXPECT_FALSE(masked.in_turns);
        EXPECT_NE(masked.queries, nullptr);
      }
    }
  }
}

TEST(BackwardChoice, ABiasComesThroughSharedMemoryWhereItsTileFits) {
  alignas(16) static std::uint16_t number[8];
  for (const int capability : {75, 80, 86, 90}) {
    const AssumedGpu gpu(capability);
    const Family family = capability < 80 ? mma::backward::family_sm75() : mma::backward::family_fp16();
    for (const int head_dim : {64, 128, 256}) {
      core::Problem p = with_variant(problem(head_dim), Variant::featured);
      p.q_length = p.k_length = 304;
      p.has_bias = true;
      p.bias_dtype = p.dtype;
      p.bias.data = number;
      p.bias.row_stride = p.k_length;
      auto staged = [&] { return choose_kernels(family, device_limits(0), p)->bias_staged; };
      const KernelChoice choice = choose_kernels(family, device_limits(0), p).value();
      const bool depends = capability == 80 || capability == 86;  // on how much shared memory head_dim leaves
      EXPECT_TRUE(depends || choice.bias_staged == (capability == 90)) << capability << ' ' << head_dim;
      if (choice.bias_staged) {
        EXPECT_EQ(choice.keys->bias_bytes, choice.keys->block_q * choice.keys->block_k * 2);
        EXPECT_LE(choice.keys->shared_memory + choice.keys->bias_bytes, device_limits(0).shared_memory);
      }
      p.bias_dtype = DType::fp32;
      EXPECT_FALSE(staged());
      p.bias_dtype = p.dtype;
      p.bias.row_stride += 1;
      EXPECT_FALSE(staged());
    }
  }
}

TEST(BackwardChoice, RefusesMoreTilesThanAGridHolds) {
  const AssumedGpu gpu(80);
  core::Problem p = problem(64);
  p.batch = std::int64_t{1} << 26;
  p.q_length = p.k_length = 1 << 12;
  std::string reason;
  EXPECT_FALSE(choose_kernels(mma::backward::family_fp16(), device_limits(0), p, core::Reason(reason)));
  EXPECT_NE(reason.find("supports at most 2^31 - 1 thread blocks"), std::string::npos) << reason;
}

}  // namespace
}  // namespace tessera::cuda
