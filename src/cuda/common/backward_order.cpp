#include "cuda/common/backward_order.h"

#include "core/band.h"
#include "cuda/common/backward_call.h"
#include "cuda/common/host/limits.h"

namespace tessera::cuda {
namespace {

core::Band band_of_longest(const core::Problem& p) {
  return {p.left, p.right, p.packed ? p.k_length - p.q_length : core::sequence(p, 0).band.diagonal};
}

}  // namespace

core::Tiling backward_tiling(const core::Problem& p, bool of_keys, std::int64_t tile) {
  return of_keys ? core::Tiling{p.k_length, tile, p.blocks ? p.blocks.block_k : 0}
                 : core::Tiling{p.q_length, tile, p.blocks ? p.blocks.block_q : 0};
}

core::BasicTaskOrder<std::uint32_t> backward_order(const core::Problem& p, bool of_keys, std::int64_t tile,
                                                   const DeviceLimits& device) {
  const core::Band band = band_of_longest(p);
  const std::int64_t tiles = backward_tiling(p, of_keys, tile).count(),
                     heads = of_keys ? p.kv_heads : p.q_heads;
  // What a tile revisits, within half of L2: the queries with their sums of dQ, or the keys.
  const auto element = static_cast<std::int64_t>(size_of(p.dtype));
  const std::int64_t row_bytes =
      (p.qk_dim + p.v_dim) * element + (of_keys ? p.qk_dim * static_cast<std::int64_t>(sizeof(float)) : 0);
  const std::int64_t bytes = row_bytes * (of_keys ? p.q_length * p.group() : p.k_length / p.group());
  const std::int64_t together =
      heads_together(p.batch * heads, tiles, bytes, device.l2_bytes / 2, device.multiprocessors);
  return {.sequences = static_cast<std::uint32_t>(p.batch),
          .heads = static_cast<std::uint32_t>(heads),
          .tiles = static_cast<std::uint32_t>(tiles),
          .order = of_keys ? core::tile_order(band.transposed(), p.k_length, p.q_length)
                           : core::tile_order(band, p.q_length, p.k_length),
          .together = static_cast<std::uint32_t>(together)};
}

core::BasicTaskOrder<std::uint32_t> query_block_order(const core::Problem& p) {
  return {.sequences = static_cast<std::uint32_t>(p.batch),
          .heads = static_cast<std::uint32_t>(p.q_heads),
          .tiles = static_cast<std::uint32_t>((p.q_length + kQueryBlock - 1) / kQueryBlock)};
}

}  // namespace tessera::cuda
