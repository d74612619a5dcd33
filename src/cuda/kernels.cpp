#include "cuda/kernels.h"

#include "cuda/baselines/flash1/launch.h"
#include "cuda/baselines/minimal/launch.h"
#include "cuda/baselines/standard/launch.h"
#include "cuda/common/host/gpus.h"
#include "cuda/fp32/launch.h"
#include "cuda/mma/backward/launch.h"
#include "cuda/mma/forward/launch.h"
#include "cuda/sm90/backward/launch.h"
#include "cuda/sm90/forward/launch.h"

namespace tessera::cuda {
namespace {

using registry::Feature;
using registry::Features;
using registry::Kernel;

constexpr Features kAll = Features::all().without(Feature::fp64);
constexpr Features kFp32 = kAll.without(Feature::fp16 | Feature::bf16);
constexpr Features kFp16 = kAll.without(Feature::fp32 | Feature::bf16);
constexpr Features kHalves = kAll.without(Feature::fp32);
constexpr Features kSimple = Feature::fp32 | Feature::causal | Feature::window | Feature::packed |
                             Feature::gqa | Feature::value_dim | Feature::shard;

// What cuda.flash2 serves in its place: bias, ALiBi, softcap, dropout and block masks.
constexpr Features kHopper = Feature::fp16 | Feature::bf16 | Feature::causal | Feature::window |
                             Feature::packed | Feature::gqa | Feature::value_dim | Feature::shard;

// Likewise; and deterministic sums.
constexpr Features kHopperBackward = kHopper | Feature::dropout | Feature::lse_gradient;

using Fp32 = Flash2Fp32<fp32::Multiply::halves>;
using Fp32Sm75 = Flash2Fp32<fp32::Multiply::fma>;

constexpr Kernel kernel(std::string_view name, Algorithm algorithm, int priority, Direction direction,
                        Features features, decltype(Kernel::limits) limits,
                        decltype(Kernel::configure) configure, decltype(Kernel::details) details,
                        decltype(Kernel::run) run) {
  return {.name = name,
          .algorithm = algorithm,
          .direction = direction,
          .device = DeviceType::cuda,
          .priority = priority,
          .features = features,
          .limits = limits,
          .configure = configure,
          .details = details,
          .run = run};
}

using enum Algorithm;
using enum Direction;

// What is faster has the higher priority. A name may stand for several rows that share the work by type.
constexpr Kernel kKernels[] = {
    kernel("cuda.hopper", flash3, 110, forward, kHopper, hopper_forward_limits, hopper_forward_configuration,
           hopper_forward_details, hopper_forward),
    kernel("cuda.hopper", flash3, 110, backward, kHopperBackward, hopper_backward_limits,
           hopper_backward_configuration, hopper_backward_details, hopper_backward),
    kernel("cuda.flash2", flash2, 100, forward, kHalves, flash2_forward_limits, flash2_forward_configuration,
           flash2_forward_details, flash2_forward),
    kernel("cuda.flash2", flash2, 100, backward, kHalves, flash2_backward_limits,
           flash2_backward_configuration, flash2_backward_details, flash2_backward),
    kernel("cuda.flash2", flash2, 100, forward, kFp32, Fp32::limits, Fp32::forward_configuration,
           Fp32::forward_details, Fp32::forward),
    kernel("cuda.flash2", flash2, 100, backward, kFp32, Fp32::limits, Fp32::backward_configuration,
           Fp32::backward_details, Fp32::backward),
    kernel("cuda.flash2_sm75", flash2, 90, forward, kFp16, flash2_sm75_forward_limits,
           flash2_sm75_forward_configuration, flash2_sm75_forward_details, flash2_sm75_forward),
    kernel("cuda.flash2_sm75", flash2, 90, backward, kFp16, flash2_sm75_backward_limits,
           flash2_sm75_backward_configuration, flash2_sm75_backward_details, flash2_sm75_backward),
    kernel("cuda.flash2_sm75", flash2, 90, forward, kFp32, Fp32Sm75::limits, Fp32Sm75::forward_configuration,
           Fp32Sm75::forward_details, Fp32Sm75::forward),
    kernel("cuda.flash2_sm75", flash2, 90, backward, kFp32, Fp32Sm75::limits,
           Fp32Sm75::backward_configuration, Fp32Sm75::backward_details, Fp32Sm75::backward),
    kernel("cuda.flash1", flash1, 50, forward, kAll, flash1_limits, flash1_configuration, flash1_details,
           flash1_run),
    kernel("cuda.flash1", flash1, 50, backward, kAll, flash1_limits, flash1_configuration, flash1_details,
           flash1_run),
    kernel("cuda.flash1_sm75", flash1, 45, forward, kFp16, flash1_sm75_limits, flash1_sm75_configuration,
           flash1_sm75_details, flash1_sm75_run),
    kernel("cuda.flash1_sm75", flash1, 45, backward, kFp16, flash1_sm75_limits, flash1_sm75_configuration,
           flash1_sm75_details, flash1_sm75_run),
    kernel("cuda.standard", standard, 10, forward, kAll, standard_limits, standard_configuration,
           standard_details, standard_forward),
    kernel("cuda.standard", standard, 10, backward, kAll, standard_limits, standard_configuration,
           standard_details, standard_backward),
    kernel("cuda.standard_fused", standard, 9, forward, kAll, standard_limits, standard_fused_configuration,
           standard_details, standard_fused_forward),
    kernel("cuda.standard_fused", standard, 9, backward, kAll, standard_limits, standard_fused_configuration,
           standard_details, standard_fused_backward),
    kernel("cuda.minimal", minimal, 1, forward, kSimple, minimal_limits, minimal_configuration,
           minimal_details, minimal_forward),
};

}  // namespace

std::span<const Kernel> kernels() { return kKernels; }

bool kernels_exist() { return TESSERA_HAVE_CUDA || AssumedGpu::active(); }

}  // namespace tessera::cuda
