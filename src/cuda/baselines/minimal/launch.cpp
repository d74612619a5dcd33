#include "cuda/baselines/minimal/launch.h"

#include <algorithm>

#include "cuda/common/host/launch.h"
#include "cuda/common/host/limits.h"

namespace tessera::cuda::minimal {
namespace {

std::size_t shared_bytes(const core::Problem& p) {
  const std::size_t step = minimal_tile_floats(std::max(p.qk_dim, p.v_dim));
  return (minimal_tile_floats(p.qk_dim) + minimal_tile_floats(p.v_dim) + step) * sizeof(float);
}

// How one problem is run: the tile of queries of each thread block.
struct Decision {
  core::BasicTaskOrder<std::uint32_t> order{};
};

}  // namespace

std::optional<core::Choice> choose(const core::Problem& p, int /*workers*/, core::Reason reason) {
  const std::size_t bytes = shared_bytes(p);
  if (gpu_limit(p, {.least = 75}, Code::any, reason) || size_limits(p, kMinimalTile, reason) ||
      shared_memory_limit(p, Code::any, static_cast<std::int64_t>(bytes), reason)) {
    return std::nullopt;
  }
  const auto tiles = static_cast<std::uint32_t>((p.q_length + kMinimalTile - 1) / kMinimalTile);
  return core::Choice{.block_q = kMinimalTile,
                      .block_k = kMinimalTile,
                      .shared_memory_bytes = bytes,
                      .traffic_cache_bytes = static_cast<double>(bytes),
                      .decision = Decision{{static_cast<std::uint32_t>(p.batch),
                                            static_cast<std::uint32_t>(p.q_heads), tiles}}};
}

std::string details(const core::Problem& /*p*/, const core::Choice& /*choice*/) {
  return "one thread per row of Q, fp32 arithmetic, no tensor cores";
}

void run(const core::Problem& p, const core::Choice& choice, const core::Resources& resources) {
  const auto order = choice.decision.as<Decision>().order;
  const DeviceScope scope(p.device.index);
  launch(minimal_kernel(), "cuda.minimal", order.count(), kMinimalTile, choice.shared_memory_bytes,
         resources.stream, MinimalArguments{p, order});
}

}  // namespace tessera::cuda::minimal
