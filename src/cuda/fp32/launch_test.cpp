// Which tiles and passes fp32 takes on which GPU, without one.
#include <gtest/gtest.h>

#include "cuda/common/host/gpus.h"
#include "tessera/plan.h"

namespace tessera {
namespace {

Plan plan_of(int capability, std::int64_t dim, Direction direction, std::int64_t q_length = 1024,
             bool deterministic = false) {
  const cuda::AssumedGpu gpu(capability);
  const Shapes shapes{.batch = 64, .q_length = q_length, .k_length = 1024, .q_heads = 16, .qk_dim = dim};
  return plan({.deterministic = deterministic}, shapes, Device::cuda(0), direction);
}

TEST(CudaFlash2Fp32, LargeTilesForLongSequencesWhereTheyFit) {
  struct Case {
    int capability;
    std::int64_t dim, q_length, block_q, block_k;
  };
  for (const Case& c :
       {Case{90, 64, 2048, 256, 64}, Case{90, 128, 2048, 256, 32}, Case{90, 256, 2048, 128, 32},
        Case{80, 128, 2048, 256, 32}, Case{80, 256, 2048, 64, 16}, Case{86, 64, 2048, 256, 64},
        Case{86, 128, 2048, 128, 32}, Case{90, 64, 2047, 128, 32}, Case{90, 128, 128, 128, 32},
        Case{90, 128, 2047, 128, 32}, Case{90, 256, 64, 64, 16}, Case{90, 256, 2047, 64, 16}}) {
    const Plan chosen = plan_of(c.capability, c.dim, Direction::forward, c.q_length);
    EXPECT_EQ(chosen.kernel, "cuda.flash2");
    EXPECT_EQ(chosen.block_q, c.block_q) << c.capability << " " << c.dim << " " << c.q_length;
    EXPECT_EQ(chosen.block_k, c.block_k) << c.capability << " " << c.dim << " " << c.q_length;
  }
}

TEST(CudaFlash2Fp32, OnePassForAllGradientsUnlessDeterministic) {
  auto fused = [](const Plan& plan) { return plan.details.find("in one pass") != std::string::npos; };
  for (const std::int64_t dim : {64, 128, 256}) {
    EXPECT_TRUE(fused(plan_of(90, dim, Direction::backward))) << dim;
    EXPECT_FALSE(fused(plan_of(90, dim, Direction::backward, 1024, true))) << dim;
    EXPECT_EQ(fused(plan_of(86, dim, Direction::backward)), dim == 64) << dim;
  }
}

}  // namespace
}  // namespace tessera
