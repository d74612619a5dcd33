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
  for (const int dim : kHeadDims) {
    SCOPED_TRACE(dim);
    EXPECT_TRUE(has(kForwardConfigs<M>, forward_config(M, dim, Variant::plain, true)));
    for (const Variant variant : {Variant::plain, Variant::featured}) {
      SCOPED_TRACE(static_cast<int>(variant));
      EXPECT_TRUE(has(kForwardConfigs<M>, forward_config(M, dim, variant)));
      auto compiled = [&](Gradient gradient) {
        return has(kPassConfigs<M>, pass_config(M, gradient, dim, variant));
      };
      EXPECT_TRUE(compiled(Gradient::queries));
      EXPECT_EQ(compiled(Gradient::keys_and_values), together(dim, variant));
      EXPECT_EQ(compiled(Gradient::keys), !together(dim, variant));
      EXPECT_EQ(compiled(Gradient::values), !together(dim, variant));
    }
    EXPECT_TRUE(has(kBiasGradientConfigs<M>, bias_gradient_config(M, dim)));
  }
}

TEST(Fp32Table, HasEveryConfigThatTheHostMayChoose) {
  expect_complete<Multiply::halves>();
  expect_complete<Multiply::fma>();
  for (const int dim : kHeadDims) EXPECT_TRUE(has(kFusedConfigs, fused_config(dim)));
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
