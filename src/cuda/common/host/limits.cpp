#include "cuda/common/host/limits.h"

#include <algorithm>
#include <ostream>

#include "core/visibility.h"
#include "cuda/common/step_cursor.h"

namespace tessera::cuda {

std::ostream& operator<<(std::ostream& stream, Capability capability) {
  return stream << capability.value / 10 << '.' << capability.value % 10;
}

bool gpu_limit(const core::Problem& p, Capabilities capabilities, Code code, core::Reason reason) {
  const DeviceLimits& own = device_limits(p.device.index);
  if (!own.failure.empty()) return reason.give(own.failure);
  if (own.capability < capabilities.least || own.capability > capabilities.most) {
    const bool only = capabilities.least == capabilities.most;
    return reason.give("requires compute capability ", Capability{capabilities.least},
                       only ? "" : " or newer", "; cuda:", p.device.index, " has ",
                       Capability{own.capability});
  }
  const DeviceLimits& compiled = device_limits(p.device.index, code);
  return !compiled.failure.empty() && reason.give(compiled.failure);
}

bool shared_memory_limit(const core::Problem& p, Code code, std::int64_t bytes, core::Reason reason) {
  const int most = device_limits(p.device.index, code).shared_memory;
  return bytes > most &&
         reason.give("requires ", bytes, " bytes of shared memory; cuda:", p.device.index, " has ", most);
}

bool length_limit(const core::Problem& p, core::Reason reason) {
  const std::int64_t longest = std::max(p.q_length, p.k_length);
  return longest >= kLongestWalk &&
         reason.give("supports sequences of at most 2^29 - 1 tokens; this call has ", longest);
}

bool size_limits(const core::Problem& p, std::int64_t tile_rows, core::Reason reason) {
  if (length_limit(p, reason)) return true;
  // Tiles do not cross the blocks of a mask.
  auto tiles = [&](std::int64_t length, std::int64_t block) {
    return core::Tiling{length, tile_rows, block}.count();
  };
  const std::int64_t most = std::max(tiles(p.q_length, p.blocks ? p.blocks.block_q : 0),
                                     tiles(p.k_length, p.blocks ? p.blocks.block_k : 0));
  return product(p.batch, p.q_heads, most) > kMostBlocks &&
         reason.give("supports at most 2^31 - 1 thread blocks; batch ", p.batch, " x ", p.q_heads,
                     " heads x ", most, " tiles exceed that: split the batch");
}

bool row_limit(const core::Problem& p, std::int64_t length, core::Reason reason) {
  return product(p.batch, p.q_heads, std::max<std::int64_t>(length, 1)) > kMostBlocks &&
         reason.give("supports at most 2^31 - 1 rows; batch ", p.batch, " x ", p.q_heads, " heads x ", length,
                     " rows exceed that: split the batch");
}

bool grid_limit(std::int64_t blocks, core::Reason reason) {
  return blocks > kMostBlocks &&
         reason.give("supports at most 2^31 - 1 thread blocks; this call needs ", blocks);
}

bool aligned(const core::View& view, DType dtype) {
  const auto chunk = static_cast<std::int64_t>(16 / size_of(dtype));
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && view.row_stride % chunk == 0 &&
         view.head_stride % chunk == 0 && view.batch_stride % chunk == 0;
}

bool aligned(const core::View& view, std::int64_t columns, DType dtype) {
  return columns % static_cast<std::int64_t>(16 / size_of(dtype)) == 0 && aligned(view, dtype);
}

std::int64_t heads_together(std::int64_t heads, std::int64_t tiles, std::int64_t bytes_per_head,
                            std::size_t cache_bytes, int multiprocessors) {
  if (heads == 0 || tiles == 0) return 0;
  const std::int64_t two_waves = (2 * multiprocessors + tiles - 1) / tiles;
  const std::int64_t cached =
      static_cast<std::int64_t>(cache_bytes) / std::max<std::int64_t>(bytes_per_head, 1);
  const std::int64_t together = std::clamp(std::max(two_waves, cached), std::int64_t{1}, heads);
  const std::int64_t groups = (heads + together - 1) / together;
  return (heads + groups - 1) / groups;
}

}  // namespace tessera::cuda
