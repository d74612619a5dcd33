#include "cuda/fp32/table.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera::cuda::fp32 {
namespace {

template <typename Configs, typename Config>
bool has(const Configs& configs, const Config& config) {
  return std::find(configs.begin(), configs.end(), config) != configs.end();
}

// Every config that the host may choose has a kernel.
template <Multiply M>
void expect_complete() {
  for (const int dim : kDims) {
    SCOPED_TRACE(dim);
    for (const Instance instance : {Instance::plain, Instance::large, Instance::featured})
      EXPECT_TRUE(has(kForwardConfigs<M>, forward_config(M, dim, instance)));
    for (const bool featured : {false, true}) {
      SCOPED_TRACE(featured);
      auto compiled = [&](Gradient gradient) {
        return has(kBackwardConfigs<M>, backward_config(M, gradient, dim, featured));
      };
      EXPECT_TRUE(compiled(Gradient::queries));
      EXPECT_EQ(compiled(Gradient::keys_and_values), together(dim, featured));
      EXPECT_EQ(compiled(Gradient::keys), !together(dim, featured));
      EXPECT_EQ(compiled(Gradient::values), !together(dim, featured));
    }
    EXPECT_TRUE(has(kBiasGradientConfigs<M>, bias_gradient_config(M, dim)));
  }
}

TEST(Fp32Table, HasEveryConfigThatTheHostMayChoose) {
  expect_complete<Multiply::halves>();
  expect_complete<Multiply::fma>();
  for (const int dim : kDims) EXPECT_TRUE(has(kFusedConfigs, fused_config(dim)));
}

void first(BiasGradientArguments /*arguments*/) {}
void second(BiasGradientArguments /*arguments*/) {}

TEST(Fp32Table, KernelsAreFoundByTheirConfig) {
  const BiasGradientConfig narrow = bias_gradient_config(Multiply::fma, 64);
  const BiasGradientConfig wide = bias_gradient_config(Multiply::fma, 256);
  const BiasGradientInstance instances[] = {{narrow, first}, {wide, second}};
  const std::span<const BiasGradientInstance> all = instances;
  EXPECT_EQ(kernel_for(all, narrow), &first);
  EXPECT_EQ(kernel_for(all, wide), &second);
  EXPECT_EQ(kernel_for(all, bias_gradient_config(Multiply::halves, 64)), nullptr);
}

}  // namespace
}  // namespace tessera::cuda::fp32
