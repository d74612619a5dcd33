#include "cuda/kernels.h"

#if TESSERA_HAVE_CUDA
#include "cuda/flash1.h"
#include "cuda/flash2_backward.h"
#include "cuda/flash2_forward.h"
#include "cuda/flash2_fp32.h"
#include "cuda/minimal.h"
#include "cuda/standard.h"
#endif

namespace tessera::cuda {

#if TESSERA_HAVE_CUDA

namespace {

using registry::Feature;
using registry::Features;
using registry::Kernel;

constexpr Features kWithoutTypes =
    Features::all().without(Feature::fp64 | Feature::fp32 | Feature::fp16 | Feature::bf16);

using Fp32 = Flash2Fp32<fp32::Multiply::tf32>;
using Fp32Sm75 = Flash2Fp32<fp32::Multiply::fma>;

// What is faster has the higher priority. A name may stand for several rows that share the work by type.
constexpr Kernel kKernels[] = {
    {
        .name = "cuda.flash2",
        .algorithm = Algorithm::flash2,
        .direction = Direction::forward,
        .device = DeviceType::cuda,
        .priority = 100,
        .features = kWithoutTypes | Feature::fp16 | Feature::bf16,
        .limits = flash2_forward_limits,
        .configure = flash2_forward_configuration,
        .details = flash2_forward_details,
        .run = flash2_forward,
    },
    {
        .name = "cuda.flash2",
        .algorithm = Algorithm::flash2,
        .direction = Direction::backward,
        .device = DeviceType::cuda,
        .priority = 100,
        .features = kWithoutTypes | Feature::fp16 | Feature::bf16,
        .limits = flash2_backward_limits,
        .configure = flash2_backward_configuration,
        .details = flash2_backward_details,
        .run = flash2_backward,
    },
    {
        .name = "cuda.flash2_sm75",
        .algorithm = Algorithm::flash2,
        .direction = Direction::forward,
        .device = DeviceType::cuda,
        .priority = 90,
        .features = kWithoutTypes | Feature::fp16,
        .limits = flash2_sm75_forward_limits,
        .configure = flash2_sm75_forward_configuration,
        .details = flash2_sm75_forward_details,
        .run = flash2_sm75_forward,
    },
    {
        .name = "cuda.flash2_sm75",
        .algorithm = Algorithm::flash2,
        .direction = Direction::backward,
        .device = DeviceType::cuda,
        .priority = 40,  // below cuda.flash1_sm75: it has not been verified on a GPU
        .features = kWithoutTypes | Feature::fp16,
        .limits = flash2_sm75_backward_limits,
        .configure = flash2_sm75_backward_configuration,
        .details = flash2_sm75_backward_details,
        .run = flash2_sm75_backward,
    },
    {
        .name = "cuda.flash1",
        .algorithm = Algorithm::flash1,
        .direction = Direction::forward,
        .device = DeviceType::cuda,
        .priority = 50,
        .features = Features::all().without(Feature::fp64),
        .limits = flash1_limits,
        .configure = flash1_configuration,
        .details = flash1_details,
        .run = flash1_run,
    },
    {
        .name = "cuda.flash1",
        .algorithm = Algorithm::flash1,
        .direction = Direction::backward,
        .device = DeviceType::cuda,
        .priority = 50,
        .features = Features::all().without(Feature::fp64),
        .limits = flash1_limits,
        .configure = flash1_configuration,
        .details = flash1_details,
        .run = flash1_run,
    },
    {
        .name = "cuda.flash1_sm75",
        .algorithm = Algorithm::flash1,
        .direction = Direction::forward,
        .device = DeviceType::cuda,
        .priority = 45,
        .features = kWithoutTypes | Feature::fp16,
        .limits = flash1_sm75_limits,
        .configure = flash1_sm75_configuration,
        .details = flash1_sm75_details,
        .run = flash1_sm75_run,
    },
    {
        .name = "cuda.flash1_sm75",
        .algorithm = Algorithm::flash1,
        .direction = Direction::backward,
        .device = DeviceType::cuda,
        .priority = 45,
        .features = kWithoutTypes | Feature::fp16,
        .limits = flash1_sm75_limits,
        .configure = flash1_sm75_configuration,
        .details = flash1_sm75_details,
        .run = flash1_sm75_run,
    },
    {
        .name = "cuda.standard",
        .algorithm = Algorithm::standard,
        .direction = Direction::forward,
        .device = DeviceType::cuda,
        .priority = 10,
        .features = Features::all().without(Feature::fp64),
        .limits = standard_limits,
        .configure = standard_configuration,
        .details = standard_details,
        .run = standard_forward,
    },
    {
        .name = "cuda.standard",
        .algorithm = Algorithm::standard,
        .direction = Direction::backward,
        .device = DeviceType::cuda,
        .priority = 10,
        .features = Features::all().without(Feature::fp64),
        .limits = standard_limits,
        .configure = standard_configuration,
        .details = standard_details,
        .run = standard_backward,
    },
    {
        .name = "cuda.standard_fused",
        .algorithm = Algorithm::standard,
        .direction = Direction::forward,
        .device = DeviceType::cuda,
        .priority = 9,
        .features = Features::all().without(Feature::fp64),
        .limits = standard_limits,
        .configure = standard_fused_configuration,
        .details = standard_details,
        .run = standard_fused_forward,
    },
    {
        .name = "cuda.standard_fused",
        .algorithm = Algorithm::standard,
        .direction = Direction::backward,
        .device = DeviceType::cuda,
        .priority = 9,
        .features = Features::all().without(Feature::fp64),
        .limits = standard_limits,
        .configure = standard_fused_configuration,
        .details = standard_details,
        .run = standard_fused_backward,
    },
    {
        .name = "cuda.minimal",
        .algorithm = Algorithm::minimal,
        .direction = Direction::forward,
        .device = DeviceType::cuda,
        .priority = 1,
        .features = Feature::fp32 | Feature::causal | Feature::window | Feature::packed | Feature::gqa |
                    Feature::value_dim | Feature::shard,
        .limits = minimal_limits,
        .configure = minimal_configuration,
        .details = minimal_details,
        .run = minimal_forward,
    },
    {
        .name = "cuda.flash2",
        .algorithm = Algorithm::flash2,
        .direction = Direction::forward,
        .device = DeviceType::cuda,
        .priority = 100,
        .features = kWithoutTypes | Feature::fp32,
        .limits = Fp32::limits,
        .configure = Fp32::forward_configuration,
        .details = Fp32::forward_details,
        .run = Fp32::forward,
    },
    {
        .name = "cuda.flash2",
        .algorithm = Algorithm::flash2,
        .direction = Direction::backward,
        .device = DeviceType::cuda,
        .priority = 100,
        .features = kWithoutTypes | Feature::fp32,
        .limits = Fp32::limits,
        .configure = Fp32::backward_configuration,
        .details = Fp32::backward_details,
        .run = Fp32::backward,
    },
    {
        .name = "cuda.flash2_sm75",
        .algorithm = Algorithm::flash2,
        .direction = Direction::forward,
        .device = DeviceType::cuda,
        .priority = 90,
        .features = kWithoutTypes | Feature::fp32,
        .limits = Fp32Sm75::limits,
        .configure = Fp32Sm75::forward_configuration,
        .details = Fp32Sm75::forward_details,
        .run = Fp32Sm75::forward,
    },
    {
        .name = "cuda.flash2_sm75",
        .algorithm = Algorithm::flash2,
        .direction = Direction::backward,
        .device = DeviceType::cuda,
        .priority = 90,
        .features = kWithoutTypes | Feature::fp32,
        .limits = Fp32Sm75::limits,
        .configure = Fp32Sm75::backward_configuration,
        .details = Fp32Sm75::backward_details,
        .run = Fp32Sm75::backward,
    },
};

}  // namespace

std::span<const Kernel> kernels() { return kKernels; }

#else

std::span<const registry::Kernel> kernels() { return {}; }

#endif

}  // namespace tessera::cuda
