#include "cuda/baselines/minimal/launch.h"

#include <algorithm>

#include "core/base/text.h"
#include "cuda/common/host/device.h"

namespace tessera::cuda {
namespace {

std::size_t shared_bytes(const core::Problem& p) {
  const std::size_t step = minimal_tile_floats(std::max(p.qk_dim, p.v_dim));
  return (minimal_tile_floats(p.qk_dim) + minimal_tile_floats(p.v_dim) + step) * sizeof(float);
}

core::BasicTaskOrder<std::uint32_t> task_order(const core::Problem& p) {
  const auto tiles = static_cast<std::uint32_t>((p.q_length + kMinimalTile - 1) / kMinimalTile);
  return {static_cast<std::uint32_t>(p.batch), static_cast<std::uint32_t>(p.q_heads), tiles};
}

}  // namespace

bool minimal_limits(const core::Problem& p, core::Reason reason) {
  const DeviceLimits& gpu = device_limits(p.device.index, Code::any);
  if (!gpu.failure.empty()) return reason.give(gpu.failure);
  if (gpu.capability < 75) {
    return reason.give("needs compute capability 7.5, the GPU has ", gpu.capability / 10, ".",
                       gpu.capability % 10);
  }
  if (size_limits(p, kMinimalTile, reason)) return true;
  if (const std::size_t bytes = shared_bytes(p); bytes > static_cast<std::size_t>(gpu.shared_memory)) {
    return reason.give("head_dim ", p.qk_dim, " and ", p.v_dim, " take ", bytes,
                       " bytes of shared memory, the GPU has ", gpu.shared_memory);
  }
  return false;
}

registry::Configuration minimal_configuration(const core::Problem& problem, int /*workers*/) {
  const std::size_t bytes = shared_bytes(problem);
  return {.block_q = kMinimalTile,
          .block_k = kMinimalTile,
          .shared_memory_bytes = bytes,
          .fast_memory_bytes = static_cast<double>(bytes)};
}

std::string minimal_details(const core::Problem& /*problem*/,
                            const registry::Configuration& /*configuration*/) {
  return "one thread per row of Q, fp32 arithmetic, no tensor cores";
}

void minimal_forward(const core::Problem& problem, const registry::Configuration& configuration,
                     const registry::Resources& resources) {
  const DeviceScope scope(problem.device.index);
  const auto order = task_order(problem);
  launch(minimal_kernel(), "cuda.minimal", order.count(), kMinimalTile, configuration.shared_memory_bytes,
         resources.stream, MinimalArguments{problem, order});
}

}  // namespace tessera::cuda
