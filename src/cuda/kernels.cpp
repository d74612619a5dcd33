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

using core::Feature;
using core::Features;
using core::Kernel;
using enum Algorithm;
using enum Direction;

// No kernel reads a boolean mask; a bias of -infinity does the same.
constexpr Features kAll = Features::all().without(Feature::fp64 | Feature::visible);
constexpr Features kFp32 = kAll.without(Feature::fp16 | Feature::bf16);
constexpr Features kFp16 = kAll.without(Feature::fp32 | Feature::bf16);
constexpr Features kHalves = kAll.without(Feature::fp32);
constexpr Features kSimple = Feature::fp32 | Feature::causal | Feature::window | Feature::packed |
                             Feature::gqa | Feature::value_dim | Feature::shard;

// The rest, which is bias, ALiBi, softcap, block masks and forward dropout, and deterministic
// backward, is left to cuda.flash2.
constexpr Features kHopper = Feature::fp16 | Feature::bf16 | Feature::causal | Feature::window |
                             Feature::packed | Feature::gqa | Feature::value_dim | Feature::shard;
constexpr Features kHopperBackward = kHopper | Feature::dropout | Feature::lse_gradient;

constexpr std::string_view kSm90 = "a GPU of compute capability 9.0";
constexpr std::string_view kFrom80 = "a GPU of compute capability 8.0 or newer";
constexpr std::string_view kFrom75 = "a GPU of compute capability 7.5 or newer";

constexpr auto kHalvesForward = fp32::choose_forward<fp32::Multiply::halves>;
constexpr auto kHalvesBackward = fp32::choose_backward<fp32::Multiply::halves>;
constexpr auto kFmaForward = fp32::choose_forward<fp32::Multiply::fma>;
constexpr auto kFmaBackward = fp32::choose_backward<fp32::Multiply::fma>;

constexpr Kernel kernel(std::string_view name, Algorithm algorithm, int priority, Direction direction,
                        std::string_view hardware, Features features, decltype(Kernel::choose) choose,
                        decltype(Kernel::details) details, decltype(Kernel::run) run) {
  return {.name = name,
          .algorithm = algorithm,
          .direction = direction,
          .device = DeviceType::cuda,
          .hardware = hardware,
          .priority = priority,
          .features = features,
          .choose = choose,
          .details = details,
          .run = run};
}

// Faster kernels have higher priorities. A name may stand for several rows, which share the work by
// type.
constexpr Kernel kKernels[] = {
    kernel("cuda.hopper", flash3, 110, forward, kSm90, kHopper, sm90::forward::choose, sm90::forward::details,
           sm90::forward::run),
    kernel("cuda.hopper", flash3, 110, backward, kSm90, kHopperBackward, sm90::backward::choose,
           sm90::backward::details, sm90::backward::run),
    kernel("cuda.flash2", flash2, 100, forward, kFrom80, kHalves, mma::forward::choose_from80,
           mma::forward::details, mma::forward::run),
    kernel("cuda.flash2", flash2, 100, backward, kFrom80, kHalves, mma::backward::choose_from80,
           mma::backward::details, mma::backward::run),
    kernel("cuda.flash2", flash2, 100, forward, kFrom80, kFp32, kHalvesForward, fp32::forward_details,
           fp32::run_forward),
    kernel("cuda.flash2", flash2, 100, backward, kFrom80, kFp32, kHalvesBackward, fp32::backward_details,
           fp32::run_backward),
    kernel("cuda.flash2_sm75", flash2, 90, forward, kFrom75, kFp16, mma::forward::choose_sm75,
           mma::forward::details, mma::forward::run),
    kernel("cuda.flash2_sm75", flash2, 90, backward, kFrom75, kFp16, mma::backward::choose_sm75,
           mma::backward::details, mma::backward::run),
    kernel("cuda.flash2_sm75", flash2, 90, forward, kFrom75, kFp32, kFmaForward, fp32::forward_details,
           fp32::run_forward),
    kernel("cuda.flash2_sm75", flash2, 90, backward, kFrom75, kFp32, kFmaBackward, fp32::backward_details,
           fp32::run_backward),
    kernel("cuda.flash1", flash1, 50, forward, kFrom75, kAll, flash1::choose, flash1::details, flash1::run),
    kernel("cuda.flash1", flash1, 50, backward, kFrom75, kAll, flash1::choose, flash1::details, flash1::run),
    kernel("cuda.flash1_sm75", flash1, 45, forward, kFrom75, kFp16, flash1::choose_sm75, flash1::details,
           flash1::run),
    kernel("cuda.flash1_sm75", flash1, 45, backward, kFrom75, kFp16, flash1::choose_sm75, flash1::details,
           flash1::run),
    kernel("cuda.standard", standard, 10, forward, kFrom75, kAll, standard::choose_separate,
           standard::details, standard::run),
    kernel("cuda.standard", standard, 10, backward, kFrom75, kAll, standard::choose_separate,
           standard::details, standard::run),
    kernel("cuda.standard_fused", standard, 9, forward, kFrom75, kAll, standard::choose_fused,
           standard::details, standard::run),
    kernel("cuda.standard_fused", standard, 9, backward, kFrom75, kAll, standard::choose_fused,
           standard::details, standard::run),
    kernel("cuda.minimal", minimal, 1, forward, kFrom75, kSimple, minimal::choose, minimal::details,
           minimal::run),
};

}  // namespace

std::span<const Kernel> kernels() { return kKernels; }

bool kernels_exist() { return TESSERA_HAVE_CUDA || AssumedGpu::active(); }

}  // namespace tessera::cuda
