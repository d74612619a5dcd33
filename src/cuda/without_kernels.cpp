// What stands in for the .cu files in builds without CUDA: the instances as numbers, so that a kernel can be chosen for an
// assumed GPU. Nothing of it is ever launched: `launch` throws.
#include "core/base/immortal.h"
#include "cuda/baselines/minimal/launch.h"
#include "cuda/baselines/standard/cublas.h"
#include "cuda/baselines/standard/passes.h"
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

std::span<const ForwardInstance> flash2_forward_fp16() {
  return instances<ForwardInstance, kForwardConfigs<ptx::Half16::fp16>>();
}
std::span<const ForwardInstance> flash2_forward_bf16() {
  return instances<ForwardInstance, kForwardConfigs<ptx::Half16::bf16>>();
}
std::span<const ForwardInstance> flash2_sm75_forward_fp16() {
  return instances<ForwardInstance, kTuringForwardConfigs>();
}

std::span<const hopper::Instance> hopper_forward_fp16() {
  return instances<hopper::Instance, hopper::kConfigs<ptx::Half16::fp16>>();
}
std::span<const hopper::Instance> hopper_forward_bf16() {
  return instances<hopper::Instance, hopper::kConfigs<ptx::Half16::bf16>>();
}
std::span<const hopper::BackwardInstance> hopper_backward_fp16() {
  return instances<hopper::BackwardInstance, hopper::kBackwardConfigs<ptx::Half16::fp16>>();
}
std::span<const hopper::BackwardInstance> hopper_backward_bf16() {
  return instances<hopper::BackwardInstance, hopper::kBackwardConfigs<ptx::Half16::bf16>>();
}

namespace flash2 {
BackwardFamily backward_family_fp16() { return shapes::backward_family(); }
BackwardFamily backward_family_bf16() { return shapes::backward_family(); }
BackwardFamily backward_family_sm75() { return shapes::backward_family_turing(); }
}  // namespace flash2

namespace flash1 {
template <Engine E, int HeadDim>
const Instances& instances() {
  static constexpr Instances kInstances = shapes::flash1_instances(E, HeadDim);
  return kInstances;
}
template const Instances& instances<Engine::fp32, 64>();
template const Instances& instances<Engine::fp32, 128>();
template const Instances& instances<Engine::fp32, 256>();
template const Instances& instances<Engine::sm75_fp16, 64>();
template const Instances& instances<Engine::sm75_fp16, 128>();
template const Instances& instances<Engine::sm75_fp16, 256>();
template const Instances& instances<Engine::sm80_fp16, 64>();
template const Instances& instances<Engine::sm80_fp16, 128>();
template const Instances& instances<Engine::sm80_fp16, 256>();
template const Instances& instances<Engine::sm80_bf16, 64>();
template const Instances& instances<Engine::sm80_bf16, 128>();
template const Instances& instances<Engine::sm80_bf16, 256>();
}  // namespace flash1

namespace fp32 {
const void* halves_forward(int, Instance) { return nullptr; }
const void* halves_backward(Gradient, int, bool) { return nullptr; }
const void* halves_fused_backward(int) { return nullptr; }
const void* halves_bias_gradient(int) { return nullptr; }
const void* fma_forward(int, Instance) { return nullptr; }
const void* fma_backward(Gradient, int, bool) { return nullptr; }
const void* fma_bias_gradient(int) { return nullptr; }
const void* delta_kernel() { return nullptr; }
}  // namespace fp32

namespace standard {
void row_delta(const core::Problem&, const Matrices&, void*) {
  launch(nullptr, "delta", 1, 1, 0, nullptr, nullptr);
}
}  // namespace standard

const std::string& cublas_missing() {
  static const std::string& reason =
      core::immortal([] { return std::string("cuBLAS is not in this build"); });
  return reason;
}
std::string cublas_description() { return {}; }

}  // namespace tessera::cuda

#endif
