// What stands in for the .cu files in builds without CUDA: the instances as numbers, so that a
// kernel can be chosen for an assumed GPU. Nothing of it is ever launched: `launch` throws.
#include "core/base/immortal.h"
#include "cuda/baselines/delta.h"
#include "cuda/baselines/minimal/launch.h"
#include "cuda/baselines/standard/cublas.h"
#include "cuda/common/host/launch.h"
#include "cuda/fp32/launch.h"
#include "cuda/mma/forward/launch.h"
#include "cuda/mma/forward/table.h"
#include "cuda/shapes.h"
#include "cuda/sm90/backward/launch.h"
#include "cuda/sm90/backward/table.h"
#include "cuda/sm90/forward/launch.h"
#include "cuda/sm90/forward/table.h"

#if !TESSERA_HAVE_CUDA

namespace tessera::cuda {
namespace {

template <typename Instance, const auto& Configs>
std::span<const Instance> instances() {
  static const auto all = [] {
    std::array<Instance, Configs.size()> result{};
    for (std::size_t i = 0; i < Configs.size(); ++i) result[i].config = Configs[i];
    return result;
  }();
  return all;
}

}  // namespace

void (*minimal_kernel())(MinimalArguments) { return nullptr; }

std::span<const mma::forward::Instance> flash2_forward_fp16() {
  return instances<mma::forward::Instance, mma::forward::kConfigs<ptx::Half16::fp16>>();
}
std::span<const mma::forward::Instance> flash2_forward_bf16() {
  return instances<mma::forward::Instance, mma::forward::kConfigs<ptx::Half16::bf16>>();
}
std::span<const mma::forward::Instance> flash2_sm75_forward_fp16() {
  return instances<mma::forward::Instance, mma::forward::kTuringConfigs>();
}

std::span<const sm90::forward::Instance> hopper_forward_fp16() {
  return instances<sm90::forward::Instance, sm90::forward::kConfigs<ptx::Half16::fp16>>();
}
std::span<const sm90::forward::Instance> hopper_forward_bf16() {
  return instances<sm90::forward::Instance, sm90::forward::kConfigs<ptx::Half16::bf16>>();
}
std::span<const sm90::backward::Instance> hopper_backward_fp16() {
  return instances<sm90::backward::Instance, sm90::backward::kConfigs<ptx::Half16::fp16>>();
}
std::span<const sm90::backward::Instance> hopper_backward_bf16() {
  return instances<sm90::backward::Instance, sm90::backward::kConfigs<ptx::Half16::bf16>>();
}

namespace mma::backward {
Family family_fp16() { return shapes::backward_family(); }
Family family_bf16() { return shapes::backward_family(); }
Family family_sm75() { return shapes::backward_family_turing(); }
}  // namespace mma::backward

namespace flash1 {
template <Engine E>
std::span<const Instances> engine_instances() {
  static constexpr Instances kInstances[] = {
      shapes::flash1_instances(E, 64), shapes::flash1_instances(E, 128), shapes::flash1_instances(E, 256)};
  return kInstances;
}
template std::span<const Instances> engine_instances<Engine::fp32>();
template std::span<const Instances> engine_instances<Engine::sm75_fp16>();
template std::span<const Instances> engine_instances<Engine::sm80_fp16>();
template std::span<const Instances> engine_instances<Engine::sm80_bf16>();
}  // namespace flash1

namespace fp32 {
std::span<const ForwardInstance> halves_forward() { return {}; }
std::span<const BackwardInstance> halves_backward() { return {}; }
std::span<const FusedInstance> halves_fused_backward() { return {}; }
std::span<const BiasGradientInstance> halves_bias_gradient() { return {}; }
std::span<const ForwardInstance> fma_forward() { return {}; }
std::span<const BackwardInstance> fma_backward() { return {}; }
std::span<const BiasGradientInstance> fma_bias_gradient() { return {}; }
void (*delta_kernel())(DeltaArguments) { return nullptr; }
}  // namespace fp32

void row_delta(const core::Problem&, float*, void*) { launch(KernelCall{}, "delta", 1, 1, 0, nullptr); }

const std::string& cublas_missing() {
  static const std::string& reason =
      core::immortal([] { return std::string("cuBLAS is not in this build"); });
  return reason;
}
std::string cublas_description() { return {}; }

}  // namespace tessera::cuda

#endif
